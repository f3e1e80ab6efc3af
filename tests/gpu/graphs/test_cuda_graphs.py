"""What only a GPU can show of recorded steps: that a replay computes what the kernels would."""

import pytest
import torch
from torch import nn

from stepladder.data import Batch
from stepladder.errors import PlanError
from stepladder.model import build
from stepladder.train import climb

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPE = "gpt:layers=2,hidden=128,heads=4,vocab=512,sequence=64"


def batches(number=7, rows=8):
    draw = torch.Generator().manual_seed(0)
    for index in range(number):
        made = torch.randint(0, 512, (rows, 65), generator=draw)
        made[0, : index % 3] = 0
        yield Batch.of((made[:, :-1], made[:, 1:]), position=index * rows, size=rows).pin()


def train(plan, optimizer, dropout=0.0, given=None):
    run = climb(
        build(SHAPE, dropout=dropout),
        loss="cross_entropy",
        optimizer=optimizer,
        plan=plan,
        device="cuda",
        seed=3,
    )
    losses = [run.step(batch).loss for batch in given or batches()]
    return losses, [p.detach().clone() for p in run.module.parameters()], run


@pytest.mark.parametrize("optimizer", ["sgd lr=0.5", "adamw lr=1e-3 clip=1"])
@pytest.mark.parametrize("words", ["fp32", "bf16", "fp16", "bf16-master", "bf16 micro=3"])
def test_a_replayed_step_is_the_same_to_the_bit(words, optimizer):
    if "master" in words and "sgd" in optimizer:
        pytest.skip("masters are Adam's")
    plain, values, _ = train(words, optimizer, dropout=0.1)
    recorded, others, run = train(f"{words} graphs=on", optimizer, dropout=0.1)
    assert run.climbed.forward_backward.graphs, "nothing was captured"
    assert recorded == plain
    assert all(torch.equal(one, other) for one, other in zip(values, others))


def test_compiled_steps_are_recorded_too():
    plain, *_ = train("bf16 compile=on", "sgd lr=0.5")
    recorded, _, run = train("bf16 compile=on graphs=on", "sgd lr=0.5")
    assert run.climbed.forward_backward.graphs
    # Compiled, an embedding's gradient is summed by whoever comes first: bits differ run by run.
    assert recorded == pytest.approx(plain, rel=1e-6)


def test_a_new_shape_of_batch_is_taken_plainly_and_then_recorded():
    given = [*batches(4), *batches(4, rows=5), *batches(2), *batches(1, rows=3)]
    plain, *_ = train("fp32", "sgd lr=0.5", given=given)
    recorded, _, run = train("fp32 graphs=on", "sgd lr=0.5", given=given)
    assert len(run.climbed.forward_backward.graphs) == 2
    assert recorded == plain


class Waiting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, inputs):
        made = self.inner(inputs)
        return made * 2 if made.sum().item() > 0 else made


def test_a_module_that_waits_for_the_device_is_refused_by_name():
    run = climb(
        Waiting(), loss="squared_error", optimizer="sgd", plan="fp32 graphs=on", device="cuda"
    )
    pair = torch.randn(4, 4), torch.randn(4, 4)
    run.step(pair), run.step(pair)
    with pytest.raises(PlanError, match="graphs: a step of this module cannot be captured"):
        run.step(pair)
    assert torch.randn(4, device="cuda").isfinite().all(), "the process goes on drawing numbers"
