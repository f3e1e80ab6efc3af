"""What a step compiled is said; many lengths are served by a graph or two."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from torch.nn import functional

import stepladder as sl
from stepladder.train.reporting.compile_events import CompileEvents


@dataclass
class Stepping:
    index: int = 0
    events: list[str] = field(default_factory=list)


def test_a_step_that_compiles_says_so_and_no_other():
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager", dynamic=False)
    told, engine = CompileEvents.of(True), Stepping()
    torch.compiler.reset()  # by anybody, which silences torch's callbacks
    for step, length in enumerate((3, 3, 4, 3, 5)):
        engine.index = step
        with told.recording_events(engine):
            compiled(torch.ones(length))
    steps = [event.split(" in ")[0] for event in engine.events]
    assert steps == [f"step {step}: compiled 1 graph" for step in (0, 2, 4)]
    assert engine.events[0].endswith(" s")  # and no number of those before
    assert [event.split(", ")[1] for event in engine.events[1:]] == ["2 so far", "3 so far"]


def test_what_another_run_compiles_between_steps_is_not_counted():
    compiled = torch.compile(lambda x: x.cos() + 1, backend="eager", dynamic=False)
    told, engine = CompileEvents.of(True), Stepping()
    compiled(torch.ones(3))
    with told.recording_events(engine):
        compiled(torch.ones(3))
    assert not engine.events


def test_without_compilation_nothing_is_counted():
    told, engine = CompileEvents.of(False), Stepping()
    with told.recording_events(engine):
        torch.compile(lambda x: x.tan() + 1, backend="eager")(torch.ones(3))
    assert not engine.events


class Reader(nn.Module):
    """Attends over as many tokens as there are."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
            for _ in range(2)
        )

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        x = x[:, None]
        return self.head(
            (x + functional.scaled_dot_product_attention(x, x, x, is_causal=True))[:, 0]
        )


def ragged_batches(number):
    draws = torch.Generator().manual_seed(0)
    for _ in range(number):
        length = int(torch.randint(5, 60, (), generator=draws))
        tokens = torch.randint(0, 64, (4, length + 1), generator=draws)
        yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def losses(plan, number):
    torch.manual_seed(0)
    run = sl.climb(Reader(), loss="cross_entropy", optimizer="sgd lr=0.1", plan=plan, device="cpu")
    taken = [run.step(batch).loss for batch in ragged_batches(number)]
    return taken, [event for event in run.events if "compiled" in event and "graph" in event]


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["fp32 compile=whole", "fp32 compile=blocks"])
def test_two_hundred_batches_of_many_lengths_are_compiled_a_few_times(plan):
    plain, _ = losses("fp32", 200)
    compiled, told = losses(plan, 200)
    assert compiled == pytest.approx(plain, rel=1e-4)
    assert 1 <= len(told) <= 4, told
    assert int(told[-1].split(", ")[-1].split()[0]) <= 6, told
    assert all(int(event.split()[1].rstrip(":")) < 20 for event in told), told
