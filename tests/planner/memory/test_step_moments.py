"""The whole forecast against a real step on the CPU, where the ledger counts every tensor."""

import pytest

from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.planner.memory.forecast_memory import forecast_memory
from stepladder.record import Memory
from stepladder.workload import Shape, facts_of_shape
from tests.soak import soak_after

torch = pytest.importorskip("torch")

WIDE_LOSS = Shape("gpt", 3, 64, 4, 4, 256, 2048, 64, True)
DEEP = Shape("gpt", 8, 64, 4, 4, 256, 256, 64, True)


def measured(shape: Shape, plan: Plan) -> Memory:
    from stepladder.measure import measure_memory
    from stepladder.model.builtin.gpt import GPT
    from stepladder.rungs.memory.recompute import recompute

    torch.set_num_threads(1)
    module = GPT(shape)
    module = module.bfloat16() if plan.precision.name == "bf16-pure" else module
    blocks = [(str(index), block) for index, block in enumerate(module.blocks)]
    recompute(blocks, plan.recompute)
    optimizer = torch.optim.AdamW(module.parameters(), foreach=False)
    tokens = torch.zeros(plan.batch.micro or 1, shape.sequence, dtype=torch.long)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=plan.precision.name == "bf16"):
            logits = module(tokens)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
            del logits  # as our own step does: nobody needs them once there is a loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return measure_memory(step, module, optimizer, torch.device("cpu"), vocab=shape.vocab)


@pytest.mark.parametrize("shape", soak_after([WIDE_LOSS, DEEP]), ids=["wide loss", "deep"])
@pytest.mark.parametrize("text", soak_after(["fp32", "bf16", "bf16-pure"], gate=2))
def test_a_step_peaks_where_and_as_high_as_forecast(shape: Shape, text: str) -> None:
    plan = Plan.parse(f"{text} micro=2").settle(1)
    forecast, _ = forecast_memory(facts_of_shape(shape), plan, Cluster.parse("1 CPU"))
    real = measured(shape, plan)
    assert forecast.peak_bytes == pytest.approx(real.peak_bytes, rel=0.03)
    assert forecast.peak_bytes > 0.98 * real.peak_bytes, "too low costs a run"
    assert forecast.parameters == real.parameters
    assert forecast.optimizer == pytest.approx(real.optimizer, rel=0.001), "and a step counter each"


RECOMPUTED = [
    # Selective recomputation leaves no casts in autocast's cache: a deep model is lower by them.
    pytest.param(DEEP, "selective", id="deep-selective"),
    pytest.param(WIDE_LOSS, "blocks", id="wide loss-blocks"),
    pytest.param(DEEP, "blocks", id="deep-blocks", marks=pytest.mark.soak),
    pytest.param(WIDE_LOSS, "selective", id="wide loss-selective", marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("shape", "rule"), RECOMPUTED)
def test_a_recomputing_step_is_never_forecast_too_low(shape: Shape, rule: str) -> None:
    plan = Plan.parse(f"bf16 micro=2 recompute={rule}").settle(1)
    forecast, _ = forecast_memory(facts_of_shape(shape), plan, Cluster.parse("1 CPU"))
    real = measured(shape, plan).peak_bytes
    assert 0.98 * real < forecast.peak_bytes < 1.06 * real
