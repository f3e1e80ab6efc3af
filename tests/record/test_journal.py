"""A journal outlives the run that writes it: whole lines stay, torn ones go, writers do not mix."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.errors import RecordError
from stepladder.record import Journal, read_journal
from stepladder.record import journal as journals
from stepladder.record.journal import BLOCK, JOURNAL_FILE


def entries(folder, **which):
    return list(read_journal(folder, **which))


def start(code, *words):
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), *map(str, words)])


def test_entries_read_back_in_order_and_by_kind(tmp_path):
    with Journal(tmp_path / "a" / "b") as journal:
        journal.write("start", plan="bf16")
        journal.write("step", step=0, loss=1.5, skipped=False)
        journal.write("step", step=1, loss=1.25, nested={"a": [1, None, "é"]})
    assert entries(tmp_path / "a" / "b") == [
        {"kind": "start", "plan": "bf16"},
        {"kind": "step", "step": 0, "loss": 1.5, "skipped": False},
        {"kind": "step", "step": 1, "loss": 1.25, "nested": {"a": [1, None, "é"]}},
    ]
    assert [entry["step"] for entry in entries(tmp_path / "a" / "b", kind="step")] == [0, 1]


def test_reopening_appends(tmp_path):
    for number in range(3):
        with Journal(tmp_path) as journal:
            journal.write("step", step=number)
    assert [entry["step"] for entry in entries(tmp_path)] == [0, 1, 2]


def test_numbers_json_has_no_word_for_are_written_as_strings(tmp_path):
    with Journal(tmp_path) as journal:
        journal.write("step", loss=math.nan, norms=[math.inf, (-math.inf, 1.0)], by={2: math.nan})
    (line,) = (tmp_path / JOURNAL_FILE).read_text().splitlines()
    entry = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert entry == {
        "kind": "step",
        "loss": "nan",
        "norms": ["inf", ["-inf", 1.0]],
        "by": {"2": "nan"},
    }


def test_a_value_of_another_kind_is_written_as_its_text(tmp_path):
    with Journal(tmp_path) as journal:
        journal.write("save", path=tmp_path)
    assert entries(tmp_path)[0]["path"] == str(tmp_path)


@pytest.mark.parametrize("torn", [b'{"kind":"st', b"{", b'{"kind":"step"}', b"\xff\xfe", b"x" * 10])
def test_a_torn_last_line_is_passed_over_and_cut_at_the_next_opening(tmp_path, torn):
    with Journal(tmp_path) as journal:
        journal.write("step", step=0)
    whole = (tmp_path / JOURNAL_FILE).read_bytes()
    (tmp_path / JOURNAL_FILE).write_bytes(whole + torn)
    assert entries(tmp_path) == [{"kind": "step", "step": 0}]
    with Journal(tmp_path) as journal:
        assert (tmp_path / JOURNAL_FILE).read_bytes() == whole
        journal.write("step", step=1)
    assert [entry["step"] for entry in entries(tmp_path)] == [0, 1]


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 7])
@pytest.mark.parametrize("before", [b"", b'{"kind":"step"}\n', b"x" * BLOCK + b"\n"])
def test_a_torn_line_longer_than_a_block_is_cut_whole(tmp_path, size, before):
    (tmp_path / JOURNAL_FILE).write_bytes(before + b"y" * size)
    Journal(tmp_path).close()
    assert (tmp_path / JOURNAL_FILE).read_bytes() == before


@given(lines=st.lists(st.integers(0, 9), max_size=5), cut=st.integers(0, 200))
def test_a_journal_cut_anywhere_keeps_its_whole_lines(tmp_path_factory, lines, cut):
    folder = tmp_path_factory.mktemp("cut")
    with Journal(folder) as journal:
        for number in lines:
            journal.write("step", step=number)
    text = (folder / JOURNAL_FILE).read_bytes()[:cut]
    (folder / JOURNAL_FILE).write_bytes(text)
    kept = [json.loads(line)["step"] for line in text.split(b"\n")[:-1]]
    assert [entry["step"] for entry in entries(folder)] == kept
    Journal(folder).close()
    assert (folder / JOURNAL_FILE).read_bytes() == text[: text.rfind(b"\n") + 1]


def test_foreign_lines_are_passed_over(tmp_path):
    foreign = ["5", "[1]", "not json", '"text"', "", "null", "[" * 10**5, '{"kind":"step"}']
    (tmp_path / JOURNAL_FILE).write_text("\n".join(foreign) + "\n")
    assert entries(tmp_path) == [{"kind": "step"}]


def test_two_threads_of_one_run_interleave_whole_lines(tmp_path):
    with Journal(tmp_path) as journal, ThreadPoolExecutor(2) as threads:

        def fill(name):
            for number in range(2000):
                journal.write("step", writer=name, number=number, padding=name * (number % 3000))

        list(threads.map(fill, "ab"))
    found = entries(tmp_path)
    assert len(found) == 4000
    for name in "ab":
        assert [e["number"] for e in found if e["writer"] == name] == list(range(2000))


HOLDER = """
    import os, sys, time
    from stepladder.record import Journal
    journal = Journal(sys.argv[1])
    journal.write("step", step=0)
    if len(sys.argv) > 2 and os.fork() == 0:
        open(f"{sys.argv[1]}/forked", "w").close()
        time.sleep(10)
        os._exit(0)
    time.sleep(60)
"""


def holder_of(folder, *words):
    """A process that writes to the folder until it is killed."""
    holder = start(HOLDER, folder, *words)
    while not any_line(folder) or not (folder / JOURNAL_FILE).read_bytes():
        assert holder.poll() is None
        time.sleep(0.01)
    return holder


def test_a_second_run_is_refused_by_the_name_of_the_first_and_nothing_is_lost(tmp_path):
    holder = holder_of(tmp_path)
    try:
        with (tmp_path / JOURNAL_FILE).open("ab") as journal:
            journal.write(b'{"kind":"st')  # a line the first is just writing
        with pytest.raises(RecordError) as caught:
            Journal(tmp_path)
        assert str(caught.value) == (
            f"run folder: {tmp_path} is being written by another run "
            f"(process {holder.pid} on {socket.gethostname()}). "
            "Name another folder, or stop that run first."
        )
        assert (tmp_path / JOURNAL_FILE).read_bytes() == b'{"kind":"step","step":0}\n{"kind":"st'
    finally:
        holder.kill()
        holder.wait()
    with Journal(tmp_path) as journal:
        journal.write("step", step=1)
    assert [entry["step"] for entry in entries(tmp_path)] == [0, 1]


def test_a_child_that_outlives_a_killed_run_does_not_hold_its_folder(tmp_path):
    holder = holder_of(tmp_path, "fork")
    try:
        while not (tmp_path / "forked").exists():
            time.sleep(0.01)
    finally:
        holder.kill()
        holder.wait()
    Journal(tmp_path).close()


def test_one_process_cannot_open_a_folder_twice_but_can_again_after_closing(tmp_path):
    with Journal(tmp_path), pytest.raises(RecordError, match="is being written by another run"):
        Journal(tmp_path)
    Journal(tmp_path).close()


def test_a_journal_that_cannot_be_opened_leaves_the_folder_unlocked(tmp_path):
    (tmp_path / JOURNAL_FILE).mkdir()
    for _ in range(2):
        with pytest.raises(RecordError, match=r"cannot be written \(Is a directory\)"):
            Journal(tmp_path)


def test_a_reader_sees_whole_lines_while_a_writer_writes_and_is_killed(tmp_path):
    writer = start(SLOW_WRITER, tmp_path)
    try:
        seen = 0
        while seen < 200:
            alive = writer.poll() is None
            numbers = [entry["number"] for entry in entries(tmp_path)] if any_line(tmp_path) else []
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= seen
            seen = len(numbers)
            assert alive or seen >= 200
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    Journal(tmp_path).close()
    assert (tmp_path / JOURNAL_FILE).read_bytes().endswith(b"}\n")


def test_a_line_that_ends_while_it_is_read_is_not_taken_for_two(tmp_path, monkeypatch):
    path, lines = (
        tmp_path / JOURNAL_FILE,
        [b'{"kind":"step","number":%d}\n' % number for number in range(3)],
    )
    path.write_bytes(lines[0] + lines[1][:9])
    read_line = journals.read_line

    def read(line):
        if not line.endswith(b"\n"):
            path.write_bytes(b"".join(lines))  # the writer goes on between two reads
        return read_line(line)

    monkeypatch.setattr(journals, "read_line", read)
    assert [entry["number"] for entry in entries(tmp_path)] in ([0], [0, 1, 2])


SLOW_WRITER = """
    import sys, time
    from stepladder.record import Journal
    with Journal(sys.argv[1]) as journal:
        for number in range(20_000):
            journal.write("step", number=number, padding="x" * (number % 3000))
            time.sleep(0.002)  # a reader slower than the writer would never see the end
"""


def any_line(folder):
    return (folder / JOURNAL_FILE).exists()


def visible(name):
    """A name as a message shows it: what is no letter cannot act on a terminal."""
    return name.replace("\0", r"\x00")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("file/run", "Not a directory"),
        ("a\0b", "embedded null byte"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_folder_that_cannot_be_written_is_named(tmp_path, name, why):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError) as caught:
        Journal(tmp_path / name)
    assert str(caught.value) == (
        f"run folder: {tmp_path / visible(name)} cannot be written ({why}). "
        "Name another folder, or give this user the right to write there."
    )


@pytest.mark.parametrize("name", ["missing", "a\0b"])
def test_a_folder_without_a_journal_is_named(tmp_path, name):
    why = "No such file or directory" if name == "missing" else "embedded null byte"
    with pytest.raises(RecordError) as caught:
        entries(tmp_path / name)
    assert str(caught.value) == (
        f"run folder: {tmp_path / visible(name) / JOURNAL_FILE} cannot be read ({why}). "
        "Name a folder that a run wrote, such as runs/first."
    )


def test_a_disk_that_stays_full_is_an_error_and_not_a_lost_line(tmp_path):
    (tmp_path / JOURNAL_FILE).symlink_to("/dev/full")
    journal = Journal(tmp_path, patience_seconds=0)
    with pytest.raises(RecordError) as caught:
        journal.write("step", step=0)
        journal.write("step", step=1)
    assert str(caught.value) == (
        f"journal: {tmp_path / JOURNAL_FILE} does not take another line (No space left on device). "
        "Make room on that disk, then go on with --run.resume true."
    )
    with pytest.raises(RecordError, match="No space left on device"):
        journal.close()
    Journal(tmp_path, patience_seconds=0).close()  # the folder is free again


def test_a_disk_that_is_full_for_a_while_costs_no_line_and_not_the_run(tmp_path):
    """The disk takes 300 bytes of a file at first, then as many as it likes."""
    code = """
        import resource, signal, sys
        from stepladder.record import Journal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        with Journal(sys.argv[1]) as journal:
            resource.setrlimit(resource.RLIMIT_FSIZE, (300, most))
            for step in range(20):
                journal.write("step", step=step, padding="x" * 40)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            for step in range(20, 25):
                journal.write("step", step=step)
    """
    assert start(code, tmp_path).wait(60) == 0
    assert [entry["step"] for entry in entries(tmp_path)] == list(range(25))


def test_a_line_that_is_taken_only_in_part_is_completed_or_an_error(tmp_path):
    code = """
        import resource, signal, sys
        from stepladder.errors import RecordError
        from stepladder.record import Journal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        journal = Journal(sys.argv[1], patience_seconds=0)
        try:
            journal.write("step", padding="x" * 200)
        except RecordError as refused:
            sys.exit(7 if "(100 of 229 bytes were taken)" in str(refused) else 1)
    """
    assert start(code, tmp_path).wait(60) == 7
    Journal(tmp_path).close()
    assert (tmp_path / JOURNAL_FILE).read_bytes() == b""


def test_a_closed_journal_refuses_and_may_be_closed_twice(tmp_path):
    journal = Journal(tmp_path)
    journal.close()
    journal.close()
    with pytest.raises(RecordError, match=r"does not take another line \(Bad file descriptor\)"):
        journal.write("step")
    assert os.path.getsize(tmp_path / JOURNAL_FILE) == 0
