"""The fused head's Triton programs on two ranks that share one GPU over gloo: gathered parameters,
and slices of the classes. The same arithmetic on a CPU: tests/rungs/test_fused_head_on_ranks.py."""

import pytest
import torch

import stepladder as sl
from stepladder.kernels.backend import runs_triton
from stepladder.model import build
from tests.ranks import run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
WORDS = 32770  # the last rank of two has as many classes as the first, and neither a multiple of 64
SHAPE = f"llama:layers=2,hidden=64,heads=4,kv_heads=2,ffn=128,vocab={WORDS},sequence=64"


def train(plan: str):
    torch.manual_seed(3)
    module = build(SHAPE)
    climbed = sl.climb(
        module, loss="cross_entropy", optimizer="sgd lr=1 clip=none", plan=plan, device="cuda"
    )
    assert runs_triton(torch.zeros(1, device="cuda"))
    reports = []
    for step in range(4):
        draw = torch.Generator().manual_seed(step)
        tokens = torch.randint(0, WORDS, (4, 64), generator=draw)
        reports.append(climbed.step((tokens, tokens.roll(-1, 1)), rows="global").read())
    return [one.loss for one in reports], [one.grad_norm for one in reports], climbed.events


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("layout", ["zero3 shard=2", "tensor=2", "context=2"])
def test_two_ranks_compute_the_loss_of_one_without_kernels(layout, precision):
    losses, norms, _ = train(precision)
    found = run(train, 2, f"{precision} {layout} kernels=on")
    near = 1e-4 if precision == "fp32" else 1e-2
    for one in found:
        assert one[0] == pytest.approx(losses, rel=near)
        assert one[1] == pytest.approx(norms, rel=10 * near)
    assert any("fused output layer and cross-entropy on" in event for event in found[0][2])
