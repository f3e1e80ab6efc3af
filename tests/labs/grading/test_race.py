"""What a solution costs is taken in a process of its own; one that fails is told in a line."""

import pytest

from stepladder.errors import RecordError
from stepladder.labs.catalogue.courses import find_lab
from stepladder.labs.grading.race import race

LAB = find_lab("views")


def raced(folder, text, limit_seconds=60.0):
    path = folder / "mine.py"
    path.write_text(text)
    return race(LAB, path, limit_seconds=limit_seconds)


def test_more_work_costs_more_of_the_processor_and_sleep_costs_nothing(tmp_path):
    work = "def measure():\n    return sum(i * i for i in range({}))\n"
    asleep = "import time\ndef measure():\n    time.sleep(1.0)\n"
    held = "def measure():\n    return len(bytearray(64 * 2**20))\n"
    little, much = raced(tmp_path, work.format(10**5)), raced(tmp_path, work.format(10**7))
    assert much.seconds > 10 * little.seconds and raced(tmp_path, asleep).seconds < 0.5
    assert raced(tmp_path, held).bytes > 32 * 2**20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def measure():\n    raise ValueError('no')\n", "ValueError: no"),
        ("import os\ndef measure():\n    os._exit(3)\n", "the process ended without an answer"),
        ("def measure():\n    while True: pass\n", "it took over 1 s"),
    ],
)
def test_a_file_that_does_not_end_well_is_told_in_a_line(tmp_path, text, said):
    with pytest.raises(RecordError) as refused:
        raced(tmp_path, text, limit_seconds=1.0 if "while" in text else 60.0)
    assert str(refused.value) == (
        f"race: mine.py does not run to its end: {said}. "
        "'stepladder lab check views' says what is wrong."
    )
