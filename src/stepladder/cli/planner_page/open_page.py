"""`stepladder plan --page`: the options of the page, and what its fields hold at first."""

from __future__ import annotations

import argparse
from contextlib import suppress

from stepladder.errors import PlanError
from stepladder.plan import Plan
from stepladder.plan.reference import Reference
from stepladder.record.cost import WORLD_GRAMS_PER_KWH
from stepladder.workload import find_shape
from stepladder.workload.convnet import RESNETS
from stepladder.workload.presets import PRESETS
from stepladder.workload.shape import FAMILIES, Shape

from .form import NUMBERS, OWN, PlannerForm, cluster_fields, plan_fields
from .server import serve

DEFAULT_PORT = 8687
NOT_ON_PAGE = (
    "data", "sample", "loss", "from_deepspeed", "from_accelerate", "calibration", "all", "json",
    "save", "plot",
)  # fmt: skip


def configure_page(parser: argparse.ArgumentParser) -> None:
    page = parser.add_argument_group("as a page", "MODEL, --on and the rest are then optional")
    page.add_argument("--page", action="store_true", help="sliders for all of it, in a browser")
    page.add_argument("--port", type=int, default=DEFAULT_PORT, metavar="N", help="0: any")
    page.add_argument("--open", action="store_true", help="open it in this machine's browser")


def require_both(options: argparse.Namespace) -> None:
    """Without a page both must be given."""
    given = {"model": options.model, "on": options.on}
    if missing := [name for name, text in given.items() if not text]:
        remedy = 'Write stepladder plan llama3-8b --on "8 x H100-80GB", or --page to choose there.'
        raise PlanError(missing[0], "is not given, and a forecast needs it", remedy)


def open_page(options: argparse.Namespace) -> int:
    """Serve the page until it is interrupted."""
    start = first_fields(options)

    def ready(url: str) -> None:
        print(f"The planner: {url}  (Ctrl-C ends it)", flush=True)
        if options.open:
            import webbrowser

            webbrowser.open(url)

    with suppress(KeyboardInterrupt):  # the way it is meant to end
        serve(options.port, start, ready)
    return 0


def first_fields(options: argparse.Namespace) -> dict[str, str]:
    """What the command's words say of the fields."""
    if given := [name for name in NOT_ON_PAGE if getattr(options, name)]:
        name = given[0].replace("_", "-")
        raise PlanError(name, "the page has no field for it", "Leave --page or this out.")
    if options.grid != WORLD_GRAMS_PER_KWH:
        raise PlanError("grid", "the page has no field for it", "Leave --page or this out.")
    start: dict[str, str] = {}
    if options.model:
        start |= model_fields(options.model)
    if options.on:
        start |= cluster_fields(options.on)
    for name in ("sequence", "batch", "tokens", "price"):
        if (number := getattr(options, name)) is not None:
            start[name] = f"{number:g}" if isinstance(number, float) else str(number)
    form = PlannerForm.read(start)
    ranks = int(form.nodes) * int(form.per_node)
    if options.plan:
        return start | plan_fields(Plan.parse(options.plan).settle(ranks))
    return start | shared_batch(int(form.batch), ranks) if options.on else start


def shared_batch(size: int, ranks: int) -> dict[str, str]:
    """A batch of at least one sequence a device, one at a time: the likeliest to fit."""
    size = max(size, ranks)
    return {"batch": str(size), "accumulate": str(size // ranks if size % ranks == 0 else 1)}


def model_fields(text: str) -> dict[str, str]:
    """What the form holds of a preset, or of the numbers of a shape."""
    if text in RESNETS:
        return {"model": text}
    if text in PRESETS:
        return {"model": text, "sequence": str(PRESETS[text].sequence)}
    if Reference.parse(text, taken=FAMILIES) is not None:
        problem = f"{text} is traced on one batch, and the page plans from numbers"
        raise PlanError("model", problem, "Leave --page out, or write its shape: llama:layers=32.")
    shape = find_shape(text)
    if lost := unshown(shape):
        problem = f"the page has no field for {lost} of {text}"
        raise PlanError("model", problem, "Leave --page or that number out.")
    numbers = {name: str(getattr(shape, name)) for name in NUMBERS}
    return {"model": OWN, "family": shape.family, "sequence": str(shape.sequence), **numbers}


def unshown(shape: Shape) -> str:
    """A number of the shape that differs from its family's and is not in the form."""
    plain = FAMILIES[shape.family]
    names = ("tied", "head", "experts", "extra")
    return next((name for name in names if getattr(shape, name) != getattr(plain, name)), "")
