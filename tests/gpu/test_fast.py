"""What only a GPU can show of the faster passes: that they learn the same, wait for nothing, and
hold less."""

import copy

import pytest
import torch
from torch import nn

from stepladder.data import Batch
from stepladder.kernels import adamw_
from stepladder.model import build
from stepladder.train import climb

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
VOCAB, LENGTH = 32768, 64
SHAPE = f"llama:layers=2,hidden=128,heads=4,kv_heads=2,ffn=256,vocab={VOCAB},sequence={LENGTH}"


def batches(number=4, rows=8):
    draw = torch.Generator().manual_seed(0)
    for index in range(number):
        made = torch.randint(0, VOCAB, (rows, LENGTH + 1), generator=draw)
        pair = made[:, :-1].contiguous(), made[:, 1:].contiguous()
        yield Batch.of(pair, position=index * rows, size=rows).pin()


def start(plan, optimizer="adamw lr=1e-3 clip=1"):
    return climb(build(SHAPE), loss="cross_entropy", optimizer=optimizer, plan=plan, device="cuda")


def losses(plan, optimizer="sgd lr=0.5"):
    run = start(plan, optimizer)
    return [run.step(batch).loss for batch in batches()]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "bf16-pure"])
@pytest.mark.parametrize("rest", ["", " micro=3", " recompute=selective"])
def test_the_fused_loss_learns_the_same(precision, rest):
    fused = losses(f"{precision} kernels=on{rest}")
    tolerance = 1e-5 if precision == "fp32" else 2e-3
    assert fused == pytest.approx(losses(precision), rel=tolerance)


def test_masters_follow_autocast_where_16_bits_alone_do_not():
    adam = "adamw lr=1e-5 clip=1"
    exact, master, pure = (losses(plan, adam) for plan in ("bf16", "bf16-master", "bf16-pure"))
    assert master == pytest.approx(exact, rel=1e-3)
    assert abs(pure[-1] - exact[-1]) > abs(master[-1] - exact[-1])


@pytest.mark.parametrize(
    "plan", ["bf16-master", "bf16 kernels=on", "bf16-master kernels=on micro=4"]
)
def test_a_faster_step_never_waits_for_the_device(plan):
    run = start(plan)
    ready = list(batches())
    run.step(ready[0]).read()
    torch.cuda.set_sync_debug_mode("error")
    try:
        reports = [run.step(batch) for batch in ready]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(report.loss < 11 for report in reports)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("decoupled", [True, False])
def test_the_update_is_adams_on_this_device(kind, decoupled):
    torch.manual_seed(0)
    value = torch.randn(10_007, device="cuda")
    parameter, master = value.to(kind), value.clone()
    moments = torch.zeros_like(value), torch.zeros_like(value)
    exact = nn.Parameter(value.double())
    make = torch.optim.AdamW if decoupled else torch.optim.Adam
    adam = make([exact], lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    rule = (1e-2, 0.9, 0.999, 1e-8, 0.1, decoupled)
    two = torch.full((), 2.0, device="cuda")
    for step in range(1, 4):
        gradient = torch.randn_like(value).to(kind)
        corrections = torch.tensor([1 - 0.9**step, 1 - 0.999**step], device="cuda")
        adamw_([(parameter, master, gradient, *moments)], corrections[None], two, two - 2, rule)
        exact.grad = gradient.double() / 2
        adam.step()
    assert torch.allclose(master.double(), exact.detach(), rtol=1e-5, atol=1e-6)
    assert torch.equal(parameter, master.to(kind))
    before = master.clone()
    adamw_([(parameter, master, gradient, *moments)], corrections[None], two, two - 1, rule)
    assert torch.equal(before, master), "a bad step changes nothing"


def test_the_fused_loss_holds_less():
    peaks = []
    for plan in ("bf16", "bf16 kernels=on"):
        run = start(plan)
        batch = next(batches(1, rows=512)).to("cuda")
        run.step(batch).read()
        torch.cuda.reset_peak_memory_stats()
        run.step(batch).read()
        peaks.append(torch.cuda.max_memory_allocated())
        del run
    logits = 512 * LENGTH * VOCAB * 2
    assert peaks[0] - peaks[1] > 2 * logits, peaks


@pytest.mark.parametrize("plan", ["bf16", "bf16-master kernels=on"])
def test_recorded_passes_learn_the_same(plan):
    torch.compiler.reset()
    adam = "adamw lr=1e-3 clip=1"
    recorded = losses(f"{plan} compile=on graphs=on", adam)
    assert recorded == pytest.approx(losses(f"{plan} compile=on", adam), rel=2e-3)


def test_images_are_stored_for_the_matrix_units():
    images = torch.randn(8, 1, 28, 28), torch.randint(0, 10, (8,))
    found = []
    base = build("resnet-tiny")
    for plan in ("fp32", "fp32 kernels=on"):
        run = climb(
            copy.deepcopy(base), loss="cross_entropy", optimizer="sgd lr=0.1", plan=plan,
            device="cuda",
        )  # fmt: skip
        found.append([run.step(images).loss for _ in range(3)])
    weights = [p for p in run.module.parameters() if p.dim() == 4 and p.shape[2] > 1]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)
    assert found[1] == pytest.approx(found[0], rel=1e-3)
