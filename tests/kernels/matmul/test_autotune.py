"""Who wins a trial, and that it is remembered; the timings themselves are a GPU's."""

import json

import pytest
import torch

from stepladder.kernels.matmul import autotune as trials
from stepladder.kernels.matmul.cublaslt import Shape, Way


def way(number):
    made = Way()
    made.algorithm[:] = [number] * 8
    return made


def number(found):
    return None if found is None else found.algorithm[0]


@pytest.fixture
def timed(monkeypatch):
    """Ways cost what their number says, torch's own product 100."""
    monkeypatch.setattr(trials, "seconds", lambda run, way, turn: run(way))


def cost(found):
    return 100 if found is None else number(found)


def test_the_fastest_way_wins(timed):
    assert number(trials.fastest([way(98), way(80), way(90)], cost)) == 80


def test_torchs_own_stays_where_nothing_is_clearly_faster(timed):
    assert trials.fastest([way(100), way(100)], cost) is None
    assert trials.fastest([], cost) is None


def test_a_way_that_rounds_otherwise_is_not_taken():
    def run(found):
        return torch.tensor([1.0 if found is None or number(found) == 1 else 1.5])

    assert [number(w) for w in trials.same_as_torch([way(1), way(2)], run)] == [1]


def test_ways_that_may_round_otherwise_all_round_as_the_first_of_them():
    def run(found):
        return torch.tensor([0.0 if found is None else float(number(found) % 10)])

    def near(got, wanted):
        return bool((got - wanted).abs() <= 2)

    ways = [way(n) for n in (5, 12, 1, 2, 22)]
    assert [number(w) for w in trials.same_as_torch(ways, run, near)] == [12, 2, 22]


@pytest.fixture
def shelf(monkeypatch, tmp_path):
    """A table of its own."""
    path = tmp_path / "deep" / "products.json"
    monkeypatch.setattr(trials, "place", lambda: path)
    trials.table.cache_clear()
    yield path
    trials.table.cache_clear()


class Offers:
    """What a shape's product says of its ways; counts how often it is asked."""

    def __init__(self, *ways, takes=True):
        self.offered, self.accepts, self.asked = list(ways), takes, 0

    def ways(self):
        self.asked += 1
        return self.offered

    def takes(self, way):
        return self.accepts


SHAPE = Shape(4, 5, 6, False, True, 6, 6, torch.bfloat16, torch.bfloat16, False, False, 256)


def always_same(found):
    return torch.ones(1)


@pytest.fixture
def won(monkeypatch):
    monkeypatch.setattr(trials, "fastest", lambda ways, run: ways[0] if ways else None)


def test_what_won_is_found_by_a_later_process(shelf, won):
    assert number(trials.find(SHAPE, Offers(way(7)), always_same)) == 7
    trials.table.cache_clear()  # as a new process would begin
    later = Offers(way(8))
    assert number(trials.find(SHAPE, later, always_same)) == 7
    assert later.asked == 0


def test_that_torch_won_is_remembered_too(shelf, won):
    assert trials.find(SHAPE, Offers(), always_same) is None
    trials.table.cache_clear()
    later = Offers(way(8))
    assert trials.find(SHAPE, later, always_same) is None
    assert later.asked == 0


def test_a_way_that_the_library_no_longer_takes_is_tried_anew(shelf, won):
    trials.find(SHAPE, Offers(way(7)), always_same)
    assert number(trials.find(SHAPE, Offers(way(9), takes=False), always_same)) == 9


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 3}', '{"a": "zz"}', "{"])
def test_a_table_of_something_else_is_as_good_as_none(shelf, text):
    shelf.parent.mkdir()
    shelf.write_text(text)
    assert trials.table() == {}


def test_what_others_wrote_meanwhile_stays_and_comes_first(shelf, won):
    trials.find(SHAPE, Offers(way(7)), always_same)
    key = trials.name_of(SHAPE)
    theirs = {"another": trials.TORCH, key: bytes(way(5).algorithm).hex()}
    shelf.write_text(json.dumps(theirs))
    trials.note("third", trials.TORCH)
    assert json.loads(shelf.read_text()) == {**theirs, "third": trials.TORCH}


def test_a_place_that_cannot_be_written_costs_nothing_but_the_memory(shelf, won):
    shelf.parent.write_text("a file where the folder should be")
    assert number(trials.find(SHAPE, Offers(way(7)), always_same)) == 7
