"""The architecture page shows the source as it is: its table of paths and its table of floors."""

import re
from pathlib import Path

from tests.laws.test_floors import FLOORS, STANDARD_LIBRARY_ONLY

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
TOPICS = {
    "ZeRO-2", "token-weighted loss", "commit of a checkpoint", "sum of the step time",
    "kernel choice", "Slurm script", "hang detection", "tensor cuts", "pipeline schedule",
    "RNG state", "data order", "memory forecast",
}  # fmt: skip


def table(name: str) -> list[list[str]]:
    """The rows of the table that follows the marker of that name, without its head."""
    text = PAGE.split(f"<!-- {name} -->\n")[1].split("<!-- end -->")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def test_each_of_the_twelve_places_is_one_file_that_exists():
    rows = table("where")
    assert {topic.partition(" (")[0] for topic, _ in rows} == TOPICS and len(rows) == len(TOPICS)
    paths = [path.strip("`") for _, path in rows]
    assert [path for path in paths if not (ROOT / "src/stepladder" / path).is_file()] == []


def test_every_package_is_shown_on_its_floor():
    shown = {
        name: (int(floor), bool(star))
        for floor, packages, _ in table("floors")
        for name, star in re.findall(r"`(\w+)`( ★)?", packages)
    }
    assert shown == {name: (floor, name in STANDARD_LIBRARY_ONLY) for name, floor in FLOORS.items()}
