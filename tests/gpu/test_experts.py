"""Grouped products on a GPU, and a mixture of experts trained with them."""

import pytest
import torch

import stepladder as sl
from stepladder.model.builtin.grouped_product import grouped_loop, grouped_product, has_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_the_kernel_gives_what_the_loop_gives_for_groups_of_any_size():
    torch.manual_seed(1)
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    rows = torch.randn(1003, 256, **kind, requires_grad=True)
    matrices = torch.randn(6, 512, 256, **kind, requires_grad=True)
    ends = torch.tensor([100, 100, 331, 700, 777, 1003], dtype=torch.int32, device="cuda")
    weigh = torch.randn(1003, 512, **kind)
    assert has_kernel(rows, matrices.mT)
    results = []
    for product in (grouped_product, grouped_loop):
        out = product(rows, matrices.mT, ends)
        results.append((out, *torch.autograd.grad((out * weigh).sum(), (rows, matrices))))
    for one, other in zip(*results, strict=True):
        assert (one - other).norm() < 2**-7 * other.norm()


@pytest.mark.parametrize("plan", ["bf16", "bf16-pure compile=on", "bf16 compile=on kernels=on"])
def test_a_mixture_learns_on_a_gpu_what_it_learns_on_a_cpu(plan):
    shape = "llama:layers=2,hidden=64,heads=2,vocab=256,ffn=64,experts=8,active=2,sequence=32"
    tokens = torch.randint(0, 256, (4, 32), generator=torch.Generator().manual_seed(0))
    losses = []
    for device, words in (("cpu", "fp32"), ("cuda", plan)):
        run = sl.climb(
            sl.build(shape), loss="cross_entropy", optimizer="adamw lr=1e-2", plan=words,
            device=device,
        )  # fmt: skip
        losses.append([run.step((tokens, tokens.roll(-1, 1))).loss for _ in range(20)])
    cpu, gpu = losses
    assert gpu[-1] < 0.7 * gpu[0]
    assert all(abs(one - other) < 0.05 * one for one, other in zip(cpu, gpu, strict=True))
