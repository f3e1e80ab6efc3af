"""What every place is asked for: names, sizes, and the words that have machines meet."""

from pathlib import Path

import pytest

from stepladder.errors import PlanError
from stepladder.launch import Request, Resources
from stepladder.launch.run_request import read_bytes


def request_of(folder: str = "/shared/run", **more) -> Request:
    return Request(
        words=("-m", "stepladder.cli.main", "train", "/w/RUN.toml", "--run.folder", folder),
        rank_words=("-m", "stepladder.cli.rank", "train", "/w/RUN.toml"),
        folder=Path(folder),
        **{"directory": Path("/w"), "python": "/py", **more},
    )


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("runs/My_Run.1", "my-run-1"),
        ("runs/2026-11-15-120000", "run-2026-11-15-120000"),
        ("runs/" + "a" * 80, "a" * 48),
        ("runs/_", "run"),
    ],
)
def test_a_name_is_one_that_every_scheduler_takes(folder, name):
    assert request_of(folder).name == name


@pytest.mark.parametrize("text", ["64G", "64GiB", "64Gi", "64 GiB", "65536M"])
def test_sizes_are_read_as_all_schedulers_write_them(text):
    assert read_bytes("storage", text) == 64 * 2**30


@pytest.mark.parametrize("text", ["64", "0G", "a lot", "64g", "-1G"])
def test_what_is_no_size_is_said(text):
    with pytest.raises(PlanError) as refused:
        read_bytes("storage", text)
    assert str(refused.value) == (
        f"storage: '{text}' is not an amount of memory. Write --storage 64GiB."
    )


def test_one_machine_meets_nobody_and_a_range_is_written_as_one():
    assert request_of().meeting("1", "h:1") == ()
    several = request_of(least=1, most=4, resources=Resources(cpus=6), ranks=2)
    assert several.nodes == "1:4" and request_of(least=4, most=4).nodes == "4"
    assert several.meeting("1:4", "h:1") == ("--nodes", "1:4", "--rendezvous", "h:1")
    assert (several.cpus, request_of(ranks=2).cpus) == (6, 2)


def test_a_shells_line_is_quoted_but_for_what_the_shell_is_to_fill_in():
    line = request_of("/my runs/a").line('"$host"')
    assert line.endswith("""--run.folder '/my runs/a' "$host\"""")
