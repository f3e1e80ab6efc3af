"""The order of the rungs, and that no word of a plan is ignored."""

import sys

import pytest
import torch

from stepladder.errors import PlanError, PlanErrors
from stepladder.train import climb
from tests.soak import soak_after
from tests.train.toys import gpt, llama, ragged, same_bits


def losses(plan, make=gpt, steps=4, **options):
    run = climb(make(), loss="cross_entropy", optimizer="sgd lr=0.5", plan=plan, **options)
    return [run.step(batch).loss for batch in ragged(steps)], run


PLANS = [
    "fp32 recompute=blocks",
    "fp32 recompute=selective",
    "fp32 recompute=every:2",
    "fp32 offload=activations",
    "fp32 attention=plain",
    "fp32 recompute=blocks offload=activations micro=3",
    "fp32 keep=fp32:head",
]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("make", [gpt, llama])
def test_every_rung_leaves_the_mathematics_alone(plan, make):
    plain, one = losses("fp32", make)
    found, other = losses(plan, make)
    assert found == pytest.approx(plain, rel=1e-5)
    if "attention" not in plan and "micro" not in plan:
        assert same_bits(one.module, other.module)


@pytest.mark.parametrize("plan", soak_after(["bf16 recompute=blocks", "bf16 offload=activations"]))
def test_rungs_compose_with_fewer_bits_to_the_bit(plan):
    assert losses(plan)[0] == losses("bf16")[0]


def test_offloading_really_sends_the_activations(monkeypatch):
    from stepladder.rungs.memory.offload_activations import offload_activations

    rung = sys.modules["stepladder.rungs.memory.offload_activations"]
    made = []

    def watched(*args):
        made.append(offload_activations(*args))  # the real one, kept to be asked afterwards
        return made[-1]

    monkeypatch.setattr(rung, "offload_activations", watched)
    module = torch.nn.Sequential(
        torch.nn.Linear(64, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 8)
    )
    run = climb(module, loss="cross_entropy", plan="fp32 offload=activations")
    run.step((torch.randn(512, 64), torch.randint(0, 8, (512,)))).read()
    assert made[0].sent_bytes >= 512 * 1024 * 4


def test_a_compiled_model_learns_the_same():
    found, run = losses("fp32 compile=on", llama, steps=2)
    assert found == pytest.approx(losses("fp32", llama, steps=2)[0], rel=1e-5)
    assert type(run.module).__name__ == "Llama"
    assert "blocks.0.attention.query.weight" in dict(run.module.named_parameters())


def test_a_compiled_model_stays_compiled_after_it_was_counted_and_measured():
    from torch.profiler import ProfilerActivity, profile

    from stepladder.measure import measure_memory

    torch.compiler.reset()  # other tests of this process may have used up the compiler's tries

    def regions(run):
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            run.step(ragged(1)[0]).read()
        return sum("Compiled" in event.key for event in seen.key_averages())

    run = climb(llama(), loss="cross_entropy", optimizer="sgd lr=0", plan="fp32 compile=on")
    run.step(ragged(1)[0]).read()  # reading counts the FLOPs
    assert regions(run)
    measure_memory(lambda: run.step(ragged(1)[0]), run.module, run.optimizer, run.world.device)
    assert regions(run)


def test_a_budget_recomputes_as_much_as_it_must():
    sample = ragged(1)[0]
    _, free = losses("fp32 recompute=1GiB", sample=sample)
    _, tight = losses("fp32 recompute=0.0007GiB", sample=sample)
    assert free.climbed.recomputed == ()
    assert tight.climbed.recomputed


def test_a_budget_asks_for_a_sample():
    with pytest.raises(
        PlanError, match="a budget \\(1GiB\\) is fitted to a batch and none was given"
    ):
        losses("fp32 recompute=1GiB")


def test_what_cannot_be_run_is_refused_all_at_once():
    with pytest.raises(PlanErrors) as raised:
        climb(
            gpt(), loss="cross_entropy", plan="tf32 offload=parameters compress=bf16", device="cpu"
        )
    assert str(raised.value).splitlines() == [
        "precision: tf32 needs matrix units this device (cpu) does not have. "
        "bf16 and fp16 run on it.",
        "compress: bf16 shrinks gradients that whole copies exchange, and there are none. "
        "Use ddp with several ranks, or compress=none.",
        "offload: parameters can wait on the host only where each block gathers them before use. "
        "Use zero3, or offload=optimizer.",
    ]


def test_several_ranks_are_refused_before_anything_starts():
    with pytest.raises(PlanError, match="is for 2 ranks \\(replicate=2\\), and there is 1 rank"):
        climb(gpt(), loss="cross_entropy", plan="fp32 ddp replicate=2")


def test_a_policy_must_be_known():
    with pytest.raises(
        PlanError, match="'ignore' is not a policy. Choose one of: stop, skip, backoff."
    ):
        climb(gpt(), loss="cross_entropy", plan="fp32", nonfinite="ignore")


def test_blocks_of_other_shapes_are_compiled_together():
    from stepladder.kernels.graph.compile import have_one_structure
    from stepladder.model import build, find_anatomy

    for name, expected in (("resnet18", False), ("gpt-tiny", True)):
        module = build(name, device="meta")
        blocks = [block for _, block in find_anatomy(module).blocks_of(module)]
        assert have_one_structure(blocks) is expected
    assert not have_one_structure([torch.nn.Linear(1, 1)])


@pytest.mark.parametrize(
    ("depth", "chosen"), [("none", False), ("selective", True), ("1GiB", True)]
)
def test_the_compiler_is_told_that_blocks_choose_what_they_keep(depth, chosen, monkeypatch):
    told = []
    door = sys.modules["stepladder.kernels.choose"]  # the package exports a function of that name
    monkeypatch.setattr(
        door, "pass_options", lambda kernels, selective: told.append(selective) or {}
    )
    plan = f"fp32 compile=on kernels=on recompute={depth}"
    climb(gpt(), loss="cross_entropy", plan=plan, sample=next(iter(ragged(1))))
    assert told == [chosen]
