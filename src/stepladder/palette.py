"""The colours of every picture: on the page, in reports, PNG files and the documentation.

A colour has a meaning: an owner of memory, a cause of time, a collective, a rank, a run and a sort
of event keep theirs wherever they are drawn. Each hue is there twice, for light and for dark
grounds, and stands out from its ground as far as small text must (4.5 : 1);
text on it has the colour of the ground.
"""

from __future__ import annotations

from colorsys import hls_to_rgb
from typing import NamedTuple


class Hue(NamedTuple):
    light: str  # on a light ground
    dark: str


HUES = {
    "blue": Hue("#2458a6", "#73a9ff"),
    "orange": Hue("#bd4c28", "#f08a66"),
    "green": Hue("#2a7f4d", "#6cc493"),
    "violet": Hue("#8a5fa8", "#bd9ade"),
    "gold": Hue("#86701b", "#d3b75c"),
    "pink": Hue("#b83f73", "#ee8bb4"),
    "teal": Hue("#1b7b8a", "#5fc3d2"),
    "brown": Hue("#6b4f3a", "#c7a287"),
    "lime": Hue("#677a22", "#b9cf68"),
    "slate": Hue("#5a6672", "#a3b0bd"),
}
OWNERS = {  # from what stays to what passes; what owners and causes share has one colour
    "parameters": "blue", "working": "lime", "gradients": "green", "optimizer": "violet",
    "activations": "orange", "logits": "pink", "communication": "gold", "temporary": "teal",
    "context": "slate", "reserved": "brown",
}  # fmt: skip
CAUSES = {
    "matrix": "blue", "attention": "teal", "memory_bound": "green", "communication": "gold",
    "bubble": "orange", "optimizer": "violet", "data": "brown", "launch": "pink", "host": "lime",
    "unexplained": "slate",
}  # fmt: skip
COLLECTIVES = {
    "all_reduce": "orange", "all_gather": "blue", "reduce_scatter": "green", "all_to_all": "violet",
    "broadcast": "teal", "send": "pink", "recv": "brown", "send_recv": "lime", "gather": "gold",
    "scatter": "slate",
}  # fmt: skip
PASSES = {"F": "blue", "B": "orange", "W": "green"}  # of a pipeline: forward, backward, weights
EVENTS = {
    "save": "green", "restart": "blue", "skipped": "gold", "spike": "lime", "memory": "violet",
    "slow": "pink", "failure": "orange", "nonfinite": "brown", "note": "slate",
}  # fmt: skip
SERIES = tuple(HUES)  # runs and ranks, in the order of their numbers
COLOURS = tuple(HUES[name].light for name in SERIES)
STROKES = ("-", "--", ":")  # of several lines of a run
LIMIT, REFERENCE = "#b3382c", "#20262c"  # a line not to be passed; one to compare with
TEXT, SOFT = "#1d2125", "#5c646d"  # on a light ground


def owner_colour(owner: str) -> str:
    """The colour of an owner of memory on a light ground."""
    return HUES[OWNERS.get(owner.replace(" ", "_"), "slate")].light


def cause_colour(cause: str) -> str:
    """The colour of a cause of time on a light ground."""
    return HUES[CAUSES.get(cause.replace(" ", "_"), "slate")].light


def collective_colour(name: str) -> str:
    """The colour of a collective on a light ground."""
    plain = {"send_receive": "send_recv"}.get(name, name)
    return HUES[COLLECTIVES.get(plain, "slate")].light


def series_colours(count: int) -> list[str]:
    """So many colours for things that have none of their own, all different, on a light ground."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    return [hue_on_circle(index / count) for index in range(count)]


def hue_on_circle(turn: float) -> str:
    """A colour by its place on the colour circle, dark enough for a light ground."""
    red, green, blue = hls_to_rgb(turn, 0.36, 0.62)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def style_sheet() -> str:
    """The colours as CSS variables, such as --blue, and --owner-logits by meaning.

    Dark ones hold where the page says so, or where it says nothing and the system is dark.
    """
    light, dark = variables("light"), variables("dark")
    meanings = {"owner": OWNERS, "cause": CAUSES, "collective": COLLECTIVES, "pass": PASSES}
    meant = [
        f"--{kind}-{name}: var(--{hue});"
        for kind, names in {**meanings, "event": EVENTS}.items()
        for name, hue in names.items()
    ]
    meant += [f"--series-{number}: var(--{hue});" for number, hue in enumerate(SERIES)]
    unsaid = ":root:not([data-theme])"
    return (
        f":root {{ {light} {' '.join(meant)} }}\n"
        f'@media (prefers-color-scheme: dark) {{ {unsaid} {{ {dark} }} }}\n:root[data-theme="dark"]'
        f" {{ {dark} }}\n"
    )


def variables(ground: str) -> str:
    return " ".join(f"--{name}: {getattr(hue, ground)};" for name, hue in HUES.items())


def tone(colour: str, place: int) -> str:
    """The colour of one of several lines of a run: its own, half black, half grey."""
    if place % 3 == 0:
        return colour
    other = (TEXT, SOFT)[place % 3 - 1]
    parts = [(int(colour[at : at + 2], 16) + int(other[at : at + 2], 16)) // 2 for at in (1, 3, 5)]
    return "#" + "".join(f"{part:02x}" for part in parts)


def in_css(drawing: str) -> str:
    """An SVG drawing whose light colours become variables, so that it is read on any ground."""
    for name, hue in HUES.items():
        drawing = drawing.replace(hue.light, f"var(--{name})")
        for place, other in ((1, "--text"), (2, "--soft")):
            mixed = f"color-mix(in oklab, var(--{name}) 50%, var({other}))"
            drawing = drawing.replace(tone(hue.light, place), mixed)
    return drawing
