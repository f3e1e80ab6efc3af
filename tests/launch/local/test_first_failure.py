"""The first of several failures, as the files of real errors tell it."""

import signal

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from stepladder.errors import LostRank, PlanError, RankOutOfMemory
from stepladder.launch.local.first_failure import first_failure
from stepladder.launch.local.rank_logs import RankLogs
from stepladder.launch.local.rank_process import in_a_line, record_failure

MISTAKE = PlanError("batch", "3 does not divide", "Use 4.")
LOST = LostRank("rank 1", "did not join", "See why.")


def failure(logs, monkeypatch, rank, error=None, code=1):
    """What the agent finds of a rank that failed with this error."""
    file = logs.path(rank, "error.json")
    if error:
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
        try:
            raise error
        except Exception as raised:
            record_failure(raised)
    return ProcessFailure(rank, 1, code, str(file))


def logs_in(tmp_path):
    logs = RankLogs(tmp_path, {})
    logs.clear()
    return logs


def test_a_mistake_that_all_ranks_made_is_one_line_without_a_rank(tmp_path, monkeypatch):
    logs = logs_in(tmp_path)
    found = {rank: failure(logs, monkeypatch, rank, MISTAKE, 2) for rank in (1, 0)}
    ending = first_failure(found, logs)
    assert (ending.code, ending.lines) == (2, ("batch: 3 does not divide. Use 4.",))


def test_a_mistake_of_one_rank_carries_its_label(tmp_path, monkeypatch):
    logs = logs_in(tmp_path)
    found = {
        1: failure(logs, monkeypatch, 1, MISTAKE, 2),
        0: failure(logs, monkeypatch, 0, code=-15),
    }
    assert first_failure(found, logs).lines == ("[rank 1] batch: 3 does not divide. Use 4.",)


def test_memory_that_ran_out_is_worth_another_start_with_less(tmp_path, monkeypatch):
    """All ranks leave the step with the same words; only where less is left is it their end."""
    logs = logs_in(tmp_path)
    for micro, code in ((2, 1), (0, 2)):
        short = RankOutOfMemory("step 3", "out of memory on rank 1", "Go on with less.")
        short.micro = micro
        found = {rank: failure(logs, monkeypatch, rank, short) for rank in (1, 0)}
        ending = first_failure(found, logs)
        said = ("step 3: out of memory on rank 1. Go on with less.",)
        assert (ending.code, ending.lines, ending.reported) == (code, said, True)


def test_the_cause_counts_and_not_who_lost_it(tmp_path, monkeypatch):
    logs = logs_in(tmp_path)
    cause = failure(logs, monkeypatch, 1, ValueError("boom\nsecond line"))
    ending = first_failure({0: failure(logs, monkeypatch, 0, LOST), 1: cause}, logs)
    line, trace = ending.lines
    assert line.startswith("[rank 1] ValueError: boom (test_first_failure.py:")
    assert trace == f"Its traceback: {tmp_path}/rank-1.traceback"
    assert "second line" in (tmp_path / "rank-1.traceback").read_text()
    assert ending.code == 1


def test_the_earlier_of_two_causes_counts(tmp_path, monkeypatch):
    logs = logs_in(tmp_path)
    early = failure(logs, monkeypatch, 1, ValueError("first"))
    late = failure(logs, monkeypatch, 0, ValueError("second"))
    assert "[rank 1] ValueError: first" in first_failure({0: late, 1: early}, logs).lines[0]


def test_a_rank_that_hung_is_told_by_the_one_that_waited(tmp_path, monkeypatch):
    logs = logs_in(tmp_path)
    found = {0: failure(logs, monkeypatch, 0, LOST), 1: failure(logs, monkeypatch, 1, code=-9)}
    ending = first_failure(found, logs)
    assert ending.lines[0] == "rank 1: did not join. See why."
    assert ending.code == 1 and not ending.reported


def test_a_rank_killed_before_it_was_missed_is_the_first(tmp_path, monkeypatch):
    logs = logs_in(tmp_path)
    found = {1: failure(logs, monkeypatch, 1, code=-9), 0: failure(logs, monkeypatch, 0, LOST)}
    assert first_failure(found, logs).lines[0].startswith("[rank 1] ended by SIGKILL")


def test_a_rank_that_stopped_as_asked_is_no_failure(tmp_path, monkeypatch):
    logs = logs_in(tmp_path)
    found = {0: failure(logs, monkeypatch, 0, code=128 + signal.SIGTERM)}
    assert (first_failure(found, logs).code, first_failure(found, logs).lines) == (143, ())


def test_an_error_without_words_is_its_kind():
    assert in_a_line(KeyError()) == "KeyError"


def test_nothing_is_written_where_no_launcher_looks(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    record_failure(ValueError("x"))
    assert list(tmp_path.iterdir()) == []
