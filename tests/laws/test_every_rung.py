"""Every rung has a plan field, a planner term, a row in the parity table and a lab.

A rung is a file of stepladder.rungs or stepladder.kernels whose docstring begins with "Rung". What
one of them cannot have is listed here with its reason, and nothing else is missing.
"""

import ast
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from stepladder import Cluster, Plan, describe, forecast
from stepladder.labs import all_labs
from tests.parity.test_plans import OTHERS, PLANS

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT / "src" / "stepladder" / name for name in ("rungs", "kernels")]


@dataclass(frozen=True)
class Rung:
    field: str  # of a plan
    without: str  # a plan without it, whose forecast is another
    word: str  # what the plan says for it
    row: str  # a word of a plan that the gate compares live, or FILE::TEST that does


def one(field: str, word: str, row: str, *, without: str = "bf16 micro=1 batch=1") -> Rung:
    return Rung(field, without, word, row)


def many(
    field: str, word: str, row: str, *, without: str = "replicate=16 micro=1 batch=16"
) -> Rung:
    return Rung(field, f"bf16 ddp {without}", word, row)


EVERY = {
    "accumulate": one(
        "batch",
        "bf16 micro=1 batch=4",
        "train/test_engine.py::test_accumulation_is_exact_under_ragged_targets",
        without="bf16 micro=4 batch=4",
    ),
    "memory_limit": one("memory_bytes", "memory=1GiB", ""),
    "compile": one("compile", "compile=on", ""),
    "gradient_compression": many(
        "compress",
        "compress=bf16",
        "rungs/data_parallel/test_gradient_compression.py"
        "::test_gradients_arrive_within_the_precision_they_travel_in",
    ),
    "context_parallel": many(
        "layout", "bf16 ddp replicate=8 context=2 micro=1 batch=8", "context=2"
    ),
    "expert_parallel": many(
        "layout", "bf16 ddp replicate=8 experts=2 micro=1 batch=16", "experts=2"
    ),
    "convert_float8": one("precision", "fp8 micro=1 batch=1", ""),
    "choose": one("kernels", "kernels=on", "gpu/test_fast.py::test_the_fused_loss_learns_the_same"),
    "fused_head": one(
        "kernels", "kernels=on", "kernels/test_fused_head.py::test_the_mathematics_stays"
    ),
    "offload_optimizer": one(
        "offload",
        "offload=optimizer",
        "rungs/memory/test_offload_optimizer.py::test_one_rank_updates_the_same_on_the_host",
    ),
    "channels_last": one(
        "kernels",
        "kernels=on",
        "kernels/test_channels_last.py::test_a_convolutional_net_answers_the_same_in_other_strides",
    ),
    "offload_activations": one(
        "offload",
        "offload=activations",
        "rungs/memory/test_offload_activations.py::test_losses_and_updates_are_the_same_to_the_bit",
    ),
    "pipeline": many("layout", "bf16 ddp replicate=8 pipeline=2 micro=1 batch=16", "pipeline=2"),
    "precision": one("precision", "bf16 micro=1 batch=1", "bf16", without="fp32 micro=1 batch=1"),
    "recompute": one("recompute", "recompute=blocks", "recompute=blocks"),
    "cuda_graph": one(
        "graphs", "graphs=on", "gpu/test_fast.py::test_recorded_passes_learn_the_same"
    ),
    "ddp": Rung(
        "layout",
        "bf16 zero1 shard=16 micro=1 batch=16",
        "bf16 ddp replicate=16 micro=1 batch=16",
        "ddp",
    ),
    "loss_scale": one("precision", "fp16 micro=1 batch=1", "fp16"),
    "zero2_zero3": many("zero", "bf16 zero3 shard=16 micro=1 batch=16", "zero3"),
    "zero1": many("zero", "bf16 zero1 shard=16 micro=1 batch=16", "zero1"),
    "tensor_parallel": many("layout", "bf16 ddp replicate=8 tensor=2 micro=1 batch=8", "tensor=2"),
}
NO_TERM = {
    "cuda_graph": "it spares the host's work, which no forecast divides by what is recorded",
    "loss_scale": "a factor and a look at the gradients: no bytes and no time that would show",
}
NO_ROW = {
    "memory_limit": "it refuses allocations and computes nothing",
    "compile": "it rounds as it fuses, so no row of equal numbers: the speed page compares losses",
    "convert_float8": "8 bits round: 'verify precision' bounds it on a GPU that has them",
}
NO_LAB = {"cuda_graph": "CUDA graphs are recorded by a GPU only, and every lab runs on a laptop"}


def rungs_there_are() -> set[str]:
    return {
        path.stem
        for folder in FOLDERS
        for path in folder.rglob("*.py")
        if (ast.get_docstring(ast.parse(path.read_text())) or "").startswith("Rung")
    }


def plan_of(rung: Rung) -> Plan:
    """The plan with the rung: the one without, with a word more, or one of its own."""
    return Plan.parse(rung.word if " " in rung.word else f"{rung.without} {rung.word}")


def test_every_rung_stands_in_this_table():
    assert EVERY.keys() == rungs_there_are()
    assert NO_TERM.keys() | NO_ROW.keys() | NO_LAB.keys() <= EVERY.keys()


@pytest.mark.parametrize("name", EVERY)
def test_a_rung_has_a_plan_field(name):
    rung = EVERY[name]
    assert rung.field in {field.name for field in fields(Plan)}
    assert getattr(plan_of(rung), rung.field) != getattr(Plan.parse(rung.without), rung.field)


@pytest.mark.parametrize("name", EVERY)
def test_a_rung_has_a_planner_term(name):
    rung = EVERY[name]
    ranks = plan_of(rung).layout.num_ranks
    cluster = Cluster.parse("1 x H100-80GB" if ranks == 1 else "2 nodes x 8 H100-80GB, 400 Gb/s")
    images = name == "channels_last"
    model = "olmoe-1b-7b" if name == "expert_parallel" else "llama3.2-1b"
    facts = describe("resnet50") if images else describe(model, sequence=4096)
    with_it, without = (
        forecast(facts, plan, cluster) for plan in (plan_of(rung), Plan.parse(rung.without))
    )
    differs = (with_it.memory, with_it.time, with_it.fits) != (
        without.memory, without.time, without.fits,
    )  # fmt: skip
    assert differs != (name in NO_TERM)


@pytest.mark.parametrize("name", EVERY)
def test_a_rung_is_held_against_plain_numbers(name):
    row = EVERY[name].row
    assert bool(row) != (name in NO_ROW)
    file, _, test = row.partition("::")
    if test:  # one device: no row of ranks, but a test of the same mathematics
        assert f"def {test}(" in (ROOT / "tests" / file).read_text()
    elif row:
        live = [*PLANS, *(plan for _, plan in OTHERS)]  # what the gate itself compares
        assert any(row in plan.split() for plan in live), row


@pytest.mark.parametrize("name", EVERY)
def test_a_rung_has_a_lab(name):
    labs = [lab.name for lab in all_labs() if name in lab.rungs]
    assert bool(labs) != (name in NO_LAB), labs


def test_labs_name_only_rungs_there_are():
    files = {path.stem for folder in FOLDERS for path in folder.rglob("*.py")} | {"kernels"}
    for lab in all_labs():
        assert set(lab.rungs) <= files, lab.name
