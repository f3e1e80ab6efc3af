"""A run folder is read once and followed; what was resumed replaces what it repeats."""

import json
import threading

import pytest

from stepladder.dashboard import JournalIndex
from stepladder.dashboard import journal_index as indexing
from stepladder.dashboard.downsample import Table
from stepladder.record import Journal, journal_path

FAR = 2**62


def read(folder):
    index = JournalIndex(folder)
    catch_up(index)
    return index


def catch_up(index):
    while index.follow():
        pass


def losses(index, kind="step", first=0, last=FAR):
    found = index.window(kind, first, last, 10**6)
    return dict(zip(found["steps"], found["columns"].get("loss", {"mean": []})["mean"]))


def write_steps(journal, steps, loss=1.0):
    for step in steps:
        journal.write("step", step=step, loss=loss + step)


def test_appended_lines_are_seen_without_reading_the_rest_again(tmp_path):
    with Journal(tmp_path) as journal:
        write_steps(journal, range(5))
        index = read(tmp_path)
        revision, position = index.revision, index.lines.position
        assert losses(index) == {step: 1.0 + step for step in range(5)}
        assert not index.follow() and index.revision == revision
        write_steps(journal, [5])
        assert index.follow() and index.revision > revision and index.lines.position > position
        assert losses(index)[5] == 6.0


def test_steps_that_a_resumed_run_repeats_count_as_it_took_them(tmp_path):
    with Journal(tmp_path) as journal:
        journal.write("start", plan="fp32", step=0)
        write_steps(journal, range(10))
        journal.write("evaluation", step=9, loss=5.0)
        journal.write("start", plan="bf16", step=6)
        write_steps(journal, range(6, 8), loss=100.0)
    index = read(tmp_path)
    assert losses(index) == {**{s: 1.0 + s for s in range(6)}, 6: 106.0, 7: 107.0}
    assert losses(index, "evaluation") == {}
    assert [event["text"] for event in index.events] == ["went on from step 6"]


def test_a_step_written_twice_without_a_start_counts_the_second_time(tmp_path):
    with Journal(tmp_path) as journal:
        write_steps(journal, range(4))
        write_steps(journal, [2], loss=50.0)
    assert losses(read(tmp_path)) == {0: 1.0, 1: 2.0, 2: 52.0}


def logged(index, name):
    found = index.window(f"logged {name}", 0, FAR, 100)
    return dict(zip(found["steps"], found["columns"]["value"]["mean"]))


def test_each_term_of_the_loss_has_a_curve_and_a_resumed_run_replaces_it(tmp_path):
    with Journal(tmp_path) as journal:
        for step in range(4):
            journal.write("step", step=step, loss=1.0, terms={"kl": step / 4})
        journal.write("step", step=1, loss=2.0, terms={"kl": 0.9})
        journal.write("event", step=1, text="saved")
    index = read(tmp_path)
    assert logged(index, "loss/kl") == {0: 0.0, 1: 0.9}
    assert losses(index) == {0: 1.0, 1: 2.0}


def test_each_name_that_was_logged_has_a_curve_of_its_own(tmp_path):
    with Journal(tmp_path) as journal:
        for step in range(4):
            journal.write("logged", step=step, name="accuracy", value=step / 4)
            journal.write("logged", step=step, name="f1", value=1.0)
        journal.write("logged", step=1, name="accuracy", value=0.9)
        journal.write("logged", step=2, name=["odd"], value="nan")
    index = read(tmp_path)
    assert logged(index, "accuracy") == {0: 0.0, 1: 0.9}
    assert logged(index, "f1") == dict.fromkeys(range(4), 1.0)
    with Journal(tmp_path) as journal:
        journal.write("start", step=0)
        journal.write("start", step=2)
        for number in range(200):
            journal.write("logged", step=3, name=f"name {number}", value=1)
    catch_up(index)
    assert logged(index, "f1") == {0: 1.0, 1: 1.0}
    assert len(index.tables) == indexing.MAX_TABLES


@pytest.fixture
def small(monkeypatch):
    """Tables so small that a hundred steps are many."""
    monkeypatch.setattr(
        indexing, "Table", lambda capacity=0, names=None: Table(min(capacity or 16, 16), names)
    )


def test_a_name_that_was_logged_is_rewound_through_a_bucket_without_others(tmp_path, small):
    with Journal(tmp_path) as journal:
        for step in range(64):
            journal.write("logged", step=step, name="one", value=1.0)
            journal.write("logged", step=step, name="two", value=2.0)
        journal.write("logged", step=42, name="one", value=3.0)
    index = read(tmp_path)
    means = index.window("logged one", 0, FAR, 100)["columns"]["value"]["mean"]
    assert means[:-1] == [1.0] * (len(means) - 1) and 1.0 < means[-1] < 3.0
    assert set(logged(index, "two").values()) == {2.0}


def test_a_rewind_through_a_bucket_keeps_what_lies_before_it(tmp_path, small):
    with Journal(tmp_path) as journal:
        write_steps(journal, range(64))
        journal.write("start", step=42)
        write_steps(journal, [42], loss=1000.0)
        journal.write("start", step=41)  # and once more through the same bucket
        write_steps(journal, range(41, 44), loss=2000.0)
    index = read(tmp_path)
    assert index.steps.rows_per_bucket == 4
    column = index.steps.columns["loss"]
    index.window("step", 0, FAR, 10)
    assert sum(index.steps.rows) == 44 == sum(column.counts)
    assert sum(column.totals) == sum(1.0 + s for s in range(41)) + sum(
        2000.0 + s for s in range(41, 44)
    )


def test_a_short_range_of_a_long_run_is_read_row_by_row(tmp_path, monkeypatch):
    monkeypatch.setattr(indexing, "MAX_DETAIL_ROWS", 40)
    with Journal(tmp_path) as journal:
        journal.write("start", step=0)
        write_steps(journal, range(300))
        journal.write("start", step=200)
        write_steps(journal, range(200, 500), loss=7.0)
    index = JournalIndex(tmp_path)
    index.tables["step"] = Table(64, indexing.FIELDS)
    catch_up(index)
    assert index.steps.rows_per_bucket > 1
    assert losses(index, first=190, last=209) == {
        **{s: 1.0 + s for s in range(190, 200)}, **{s: 7.0 + s for s in range(200, 210)}
    }  # fmt: skip
    assert len(losses(index)) <= 64


@pytest.mark.parametrize("torn", [b'{"kind":"st', b"garbage\n", b"\x00\x01\n\n"])
def test_half_written_and_foreign_lines_cost_nothing_else(tmp_path, torn):
    with Journal(tmp_path) as journal:
        write_steps(journal, range(3))
    with journal_path(tmp_path).open("ab") as file:
        file.write(torn)
    index = read(tmp_path)
    assert list(losses(index)) == [0, 1, 2]
    assert index.lines.bad == torn.count(b"\n")


def test_a_journal_that_was_replaced_is_read_from_its_beginning(tmp_path):
    with Journal(tmp_path) as journal:
        write_steps(journal, range(50))
    index = read(tmp_path)
    revision = index.revision
    journal_path(tmp_path).write_text(json.dumps({"kind": "step", "step": 3, "loss": 9.0}) + "\n")
    catch_up(index)
    assert losses(index) == {3: 9.0} and index.revision > revision


def test_unknown_kinds_and_entries_that_make_no_sense_are_borne(tmp_path):
    with Journal(tmp_path) as journal:
        for step in (None, "3", 1.5, True, [1], {}):
            journal.write("step", step=step, loss=1.0)
        journal.write("dream", step=1)
        journal.write("memory", step=1, owners=[1], peak_bytes="x")
        journal.write("ranks", step=1, own_seconds="slow", wait_seconds=[None, "x"])
        journal.write("collectives", step=1, seconds=None)
        journal.write("event", text=None)
        journal.write("start", step="x")
        journal.write("start", step="y")
        write_steps(journal, [4])
    assert losses(read(tmp_path)) == {4: 5.0}


def test_what_happened_is_told_by_sort(tmp_path):
    with Journal(tmp_path) as journal:
        journal.write("step", step=1, loss="nan")
        journal.write("step", step=2, loss=1.0, skipped=True)
        journal.write("save", step=3, path="step-000004")
        for text in (
            "out of memory at step 4: half the micro-batch",
            "step 5: loss 9, and the last 64 were about 2",
            "save failed: no room",
            "rank 3 is 2.1 × slower than the median",
            "hello",
        ):
            journal.write("event", step=4, text=text)
    sorts = [event["sort"] for event in read(tmp_path).events]
    assert sorts == ["nonfinite", "skipped", "save", "memory", "spike", "failure", "slow", "note"]


def test_owners_collectives_and_ranks_become_columns(tmp_path):
    with Journal(tmp_path) as journal:
        journal.write("memory", step=1, owners={"gradients": 10, "logits": 4}, peak_bytes=14)
        journal.write("collectives", step=1, seconds={"all_gather": 0.5})
        journal.write("ranks", step=1, own_seconds=[1, 3, 2], wait_seconds=[2, 0, 1])
    index = read(tmp_path)

    def columns(kind):
        found = index.window(kind, 0, FAR, 10)["columns"]
        return {name: column["mean"][0] for name, column in found.items()}

    assert columns("memory") == {"gradients": 10, "logits": 4, "peak": 14}
    assert columns("collectives") == {"all_gather": 0.5}
    assert columns("ranks") == {"quickest": 1, "mean": 2, "slowest": 3, "wait": 1}


def test_readers_and_the_follower_do_not_disturb_each_other(tmp_path):
    index = None
    with Journal(tmp_path) as journal:
        write_steps(journal, [0])
        index = read(tmp_path)
        done = threading.Event()

        def follow():
            while not done.is_set() or index.follow():
                index.follow()

        thread = threading.Thread(target=follow)
        thread.start()
        for step in range(1, 2000):
            write_steps(journal, [step])
            if step % 50 == 0:
                found = losses(index)
                assert all(loss == 1.0 + step for step, loss in found.items())
        done.set()
        thread.join()
    assert len(losses(index)) == 2000
