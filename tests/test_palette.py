"""Colours keep their meaning, differ from each other, and are read on light and dark grounds."""

import ast
import re
from itertools import combinations
from pathlib import Path

import pytest

from stepladder import palette
from stepladder.record import Memory, Time
from stepladder.record.profile import CAUSES

ROOT = Path(__file__).parents[1]
GROUNDS = {"light": "#ffffff", "dark": "#181c20"}
GRAPHICS = ("src/stepladder/cli", "docs", "benchmarks", "src/stepladder/dashboard")


def luminance(colour):
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("ground", GROUNDS)
def test_every_hue_is_read_as_text_on_its_ground(ground):
    for name, hue in palette.HUES.items():
        dark, light = sorted([luminance(getattr(hue, ground)), luminance(GROUNDS[ground])])
        assert (light + 0.05) / (dark + 0.05) >= 4.5, name


def test_all_owners_and_causes_have_a_colour_and_none_twice():
    assert list(palette.OWNERS) == list(Memory().by_owner())
    assert {*palette.CAUSES} >= {*CAUSES, *Time().by_cause()}
    for meanings in (palette.OWNERS, palette.CAUSES, palette.COLLECTIVES, palette.EVENTS):
        assert len({*meanings.values()}) == len(meanings) and {*meanings.values()} <= {
            *palette.HUES
        }
    both = palette.OWNERS.keys() & palette.CAUSES.keys()
    assert both and all(palette.OWNERS[name] == palette.CAUSES[name] for name in both)


@pytest.mark.parametrize("count", [3, 10, 24])
def test_a_series_has_no_colour_twice(count):
    found = palette.series_colours(count)
    assert len({*found}) == count
    apart = (
        sum(abs(int(one[i : i + 2], 16) - int(two[i : i + 2], 16)) for i in (1, 3, 5))
        for one, two in combinations(found, 2)
    )
    assert min(apart) > 15


def test_the_style_sheet_has_every_colour_light_and_dark():
    text = palette.style_sheet()
    for name, hue in palette.HUES.items():
        assert text.count(f"--{name}: {hue.dark};") == 2 and f"--{name}: {hue.light};" in text
    assert "--owner-logits: var(--pink);" in text and "--cause-matrix: var(--blue);" in text
    drawn = palette.in_css(f"stroke: {palette.HUES['blue'].light}")
    assert drawn == "stroke: var(--blue)"


def test_no_picture_has_colours_of_its_own():
    """Greys of axes and grounds are the page's and the report's own; hues are not."""
    own = re.compile(r"#[0-9a-f]{6}")
    found = {
        (path.relative_to(ROOT).as_posix(), colour)
        for folder in GRAPHICS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for colour in own.findall(node.value.lower())
        if len({colour[1:3], colour[3:5], colour[5:7]}) > 1 and "STYLE" not in path.stem
    }
    assert {where for where, _ in found} <= {"src/stepladder/cli/results/report_page.py"}, found
