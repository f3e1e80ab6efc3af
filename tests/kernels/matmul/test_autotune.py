"""Which algorithm wins a trial, and that it is saved; the timings themselves need a GPU."""

import json

import pytest
import torch

from stepladder.kernels.matmul import autotune
from stepladder.kernels.matmul.cublaslt import Algorithm, MatmulShape


def algorithm(number):
    made = Algorithm()
    made.data[:] = [number] * 8
    return made


def number(found):
    return None if found is None else found.data[0]


@pytest.fixture
def timed(monkeypatch):
    """Algorithms cost what their number says, torch's own matmul 100."""
    monkeypatch.setattr(autotune, "measure_seconds", lambda run, each, turn: run(each))


def cost(found):
    return 100 if found is None else number(found)


def test_the_fastest_algorithm_wins(timed):
    assert number(autotune.fastest([algorithm(98), algorithm(80), algorithm(90)], cost)) == 80


def test_torchs_own_stays_where_nothing_is_clearly_faster(timed):
    assert autotune.fastest([algorithm(100), algorithm(100)], cost) is None
    assert autotune.fastest([], cost) is None


def test_an_algorithm_that_rounds_otherwise_is_not_taken():
    def run(found):
        return torch.tensor([1.0 if found is None or number(found) == 1 else 1.5])

    assert [number(w) for w in autotune.same_as_torch([algorithm(1), algorithm(2)], run)] == [1]


def test_algorithms_that_may_round_otherwise_all_round_as_the_first_of_them():
    def run(found):
        return torch.tensor([0.0 if found is None else float(number(found) % 10)])

    def near(got, wanted):
        return bool((got - wanted).abs() <= 2)

    algorithms = [algorithm(n) for n in (5, 12, 1, 2, 22)]
    assert [number(w) for w in autotune.same_as_torch(algorithms, run, near)] == [12, 2, 22]


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A file of saved choices of its own."""
    path = tmp_path / "deep" / "matmul.json"
    monkeypatch.setattr(autotune, "cache_file", lambda: path)
    autotune.saved_choices.cache_clear()
    yield path
    autotune.saved_choices.cache_clear()


class Offers:
    """The algorithms a shape's matmul offers; counts how often it is asked."""

    def __init__(self, *algorithms, supports=True):
        self.offered, self.accepts, self.asked = list(algorithms), supports, 0

    def algorithms(self):
        self.asked += 1
        return self.offered

    def supports(self, each):
        return self.accepts


SHAPE = MatmulShape(4, 5, 6, False, True, 6, 6, torch.bfloat16, torch.bfloat16, False, False, 256)


def always_same(found):
    return torch.ones(1)


@pytest.fixture
def won(monkeypatch):
    monkeypatch.setattr(
        autotune, "fastest", lambda algorithms, run: algorithms[0] if algorithms else None
    )


def test_what_won_is_found_by_a_later_process(cache, won):
    assert number(autotune.best_algorithm(SHAPE, Offers(algorithm(7)), always_same)) == 7
    autotune.saved_choices.cache_clear()  # as a new process would begin
    later = Offers(algorithm(8))
    assert number(autotune.best_algorithm(SHAPE, later, always_same)) == 7
    assert later.asked == 0


def test_that_torch_won_is_remembered_too(cache, won):
    assert autotune.best_algorithm(SHAPE, Offers(), always_same) is None
    autotune.saved_choices.cache_clear()
    later = Offers(algorithm(8))
    assert autotune.best_algorithm(SHAPE, later, always_same) is None
    assert later.asked == 0


def test_an_algorithm_that_the_library_no_longer_supports_is_tuned_anew(cache, won):
    autotune.best_algorithm(SHAPE, Offers(algorithm(7)), always_same)
    assert (
        number(autotune.best_algorithm(SHAPE, Offers(algorithm(9), supports=False), always_same))
        == 9
    )


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 3}', '{"a": "zz"}', "{"])
def test_a_file_of_something_else_is_as_good_as_none(cache, text):
    cache.parent.mkdir()
    cache.write_text(text)
    assert autotune.saved_choices() == {}


def test_what_others_saved_meanwhile_stays_and_comes_first(cache, won):
    autotune.best_algorithm(SHAPE, Offers(algorithm(7)), always_same)
    key = autotune.key_of(SHAPE)
    theirs = {"other": autotune.TORCH, key: bytes(algorithm(5).data).hex()}
    cache.write_text(json.dumps(theirs))
    autotune.save_choice("third", autotune.TORCH)
    assert json.loads(cache.read_text()) == {**theirs, "third": autotune.TORCH}


def test_a_file_that_cannot_be_written_costs_only_a_later_trial(cache, won):
    cache.parent.write_text("a file where the folder should be")
    assert number(autotune.best_algorithm(SHAPE, Offers(algorithm(7)), always_same)) == 7
