"""Lines are read once, in blocks, as far as they are whole."""

import pytest

from stepladder.dashboard import journal_lines as lines
from stepladder.dashboard.journal_lines import JournalReader, lines_between


def everything(reader):
    found = []
    while block := reader.next_block():
        found += block
    return found


def line(step, padding=0):
    return b'{"kind":"step","step":%d,"x":"%s"}\n' % (step, b"x" * padding)


@pytest.mark.parametrize("padding", [0, 1000, 70_000])
def test_lines_come_with_their_places(tmp_path, monkeypatch, padding):
    monkeypatch.setattr(lines, "BLOCK", 1000)
    text = b"".join(line(step, padding) for step in range(40))
    (tmp_path / "j").write_bytes(text)
    found = everything(JournalReader(tmp_path / "j"))
    assert [one.entry["step"] for one in found] == list(range(40))
    assert [text[one.start : one.end] for one in found] == text.splitlines(keepends=True)


def test_a_line_without_its_end_waits_for_it(tmp_path):
    path = tmp_path / "j"
    path.write_bytes(line(0) + line(1)[:9])
    reader = JournalReader(path)
    assert [one.entry["step"] for one in everything(reader)] == [0]
    path.write_bytes(line(0) + line(1))
    assert [one.entry["step"] for one in everything(reader)] == [1]
    assert reader.bad == 0


def test_bad_lines_are_counted_and_passed_over(tmp_path):
    path = tmp_path / "j"
    path.write_bytes(b"not json\n\n[1]\n{}\n\xff\xfe\n" + line(7) + b'{"kind":5}\r\n')
    reader = JournalReader(path)
    assert [one.entry["step"] for one in everything(reader)] == [7]
    assert reader.bad == 6


def test_a_line_that_never_ends_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK", 100)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "j"
    path.write_bytes(line(0) + b"x" * 2500 + b"\n" + line(1))
    reader = JournalReader(path)
    found = []
    for _ in range(10):
        found += reader.next_block()
    assert [one.entry["step"] for one in found] == [0, 1]
    assert reader.bad == 1


def test_a_range_of_lines_is_read_by_itself(tmp_path):
    (tmp_path / "j").write_bytes(b"".join(map(line, range(9))))
    size = len(line(0))
    found = lines_between(tmp_path / "j", 2 * size, 5 * size)
    assert [one.entry["step"] for one in found] == [2, 3, 4]
