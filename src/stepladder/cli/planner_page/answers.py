"""What the planner page asks: its choices, one forecast, the fastest plan. All need no torch.

A mistake in a field is an answer too: the lines that the command would print.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from stepladder.cli.results.plan_command import one_json
from stepladder.cli.results.price import price_of
from stepladder.errors import PlanError, StepladderError
from stepladder.hardware import Cluster
from stepladder.hardware.device_table import DEVICES, USUAL
from stepladder.plan.options import parse_count
from stepladder.plan.plan_text import DATA_WORDS
from stepladder.plan.precision import PRECISIONS
from stepladder.plan.typed_values import real
from stepladder.planner import plan
from stepladder.planner.parse_inputs import at_price
from stepladder.record.cost import WORLD_GRAMS_PER_KWH
from stepladder.workload import Facts, find_facts, find_shape
from stepladder.workload.convnet import RESNETS
from stepladder.workload.presets import PRESETS
from stepladder.workload.shape import FAMILIES

from .form import NUMBERS, OWN, PlannerForm, plan_fields

Fields = Mapping[str, str]
ALIASES = ("fsdp", "hsdp")  # of data words that the form has under another name


def choices(start: Fields) -> dict[str, Any]:
    """What the fields offer, and what they hold at first."""
    rest = sorted(name for name in DEVICES if name not in USUAL)
    return {
        "start": asdict(PlannerForm.read(start)),
        "model": [OWN, *PRESETS, *RESNETS],
        "sequences": {name: shape.sequence for name, shape in PRESETS.items()},
        "shapes": {
            name: {"family": shape.family} | {key: getattr(shape, key) for key in NUMBERS}
            for name, shape in PRESETS.items()
        },
        "family": list(FAMILIES),
        "device": [*USUAL, *rest],
        "precision": list(PRECISIONS),
        "data": [word for word in DATA_WORDS if word not in ALIASES],
        "recompute": ["none", "selective", "blocks", "every:2"],
        "schedule": ["1f1b", "gpipe", "interleaved:2", "zero-bubble"],
        "offload": ["none", "optimizer", "optimizer,activations", "activations"],
        "compile": ["on", "off"],
        "kernels": ["on", "off"],
    }


def forecast(given: Fields) -> dict[str, Any]:
    """The form's plan forecast, as `stepladder plan --json` prints it, and the commands."""
    form = PlannerForm.read(given)
    facts = workload(form)
    cluster = at_price(Cluster.parse(form.cluster_text), price_of_hour(form))
    commands = {"plan": form.plan_command(), "train": form.train_command()}
    priced = price_of(amount(form), WORLD_GRAMS_PER_KWH, facts, cluster)
    # By its name, which can be read again with shorter sequences.
    planned = plan(form.model_text, cluster, plan=form.plan_text, sequence=sequence_of(form))
    found = planned.forecast
    return {
        "forecast": one_json(found, priced, planned.remedies),
        "price": priced.line(found),
        "rent": priced.rent(cluster),
        "commands": commands,
        "model": facts.name,
        "parameters": facts.parameters,
        "active_parameters": facts.active_parameters,
        "cluster": str(cluster),
        "assumptions": list(cluster.assumptions),
    }


def fastest(given: Fields) -> dict[str, Any]:
    """The fields of the fastest plan that fits."""
    form = PlannerForm.read(given)
    batch = parse_count("batch", form.batch)
    found = plan(workload(form), Cluster.parse(form.cluster_text), batch=batch)
    return {"fields": plan_fields(found.plan)}


def amount(form: PlannerForm) -> float:
    """How much is trained on, which is priced."""
    number = real(form.tokens)
    if number is None:
        raise PlanError("tokens", f"'{form.tokens}' is not a number to train on", "Use 1e12.")
    return number


def price_of_hour(form: PlannerForm) -> float | None:
    """Dollars for one device and hour; None where the field is empty."""
    number = real(form.price) if form.price else None
    if form.price and number is None:
        raise PlanError("price", f"'{form.price}' is not a number of dollars", "Use 2.5, or none.")
    return number


def workload(form: PlannerForm) -> Facts:
    """The model as numbers. No path is read: the page names presets and shapes alone."""
    if form.reads_sequences:
        find_shape(form.model_text)
    return find_facts(form.model_text, sequence_of(form))


def sequence_of(form: PlannerForm) -> int | None:
    return parse_count("sequence", form.sequence) if form.reads_sequences else None


ANSWERS: dict[str, Callable[[Fields], dict[str, Any]]] = {
    "forecast": forecast,
    "fastest": fastest,
}


def answer(question: str, given: Fields) -> dict[str, Any]:
    """The answer, or the lines that say what is wrong."""
    try:
        return ANSWERS[question](given)
    except StepladderError as mistake:
        return {"problems": str(mistake).splitlines()}
