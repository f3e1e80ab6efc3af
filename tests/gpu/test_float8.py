"""What only a GPU can show of 8-bit products: that training with them is the same, compiled too."""

import pytest
import torch
from torch import nn

from stepladder.data import Batch
from stepladder.model import build
from stepladder.train import climb

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9),
        reason="needs a CUDA device with fp8",
    ),
]
VOCAB, LENGTH = 32768, 64
SHAPE = f"llama:layers=2,hidden=1024,heads=8,kv_heads=8,ffn=2048,vocab={VOCAB},sequence={LENGTH}"
ADAM, PLAIN = "adamw lr=1e-3 clip=1", "sgd lr=0.1"


def batches(number=6, rows=16):
    draw = torch.Generator().manual_seed(0)
    for index in range(number):
        made = torch.randint(0, 64, (rows, LENGTH + 1), generator=draw)
        pair = made[:, :-1].contiguous(), made[:, 1:].contiguous()
        yield Batch.of(pair, position=index * rows, size=rows).pin()


def start(plan, optimizer):
    torch.manual_seed(0)
    return climb(build(SHAPE), loss="cross_entropy", optimizer=optimizer, plan=plan, device="cuda")


def losses(plan, optimizer):
    run = start(plan, optimizer)
    return [run.step(batch).loss for batch in batches()]


@pytest.mark.parametrize("rest", ["", " compile=on", " micro=5", " recompute=selective"])
@pytest.mark.parametrize(
    ("eight", "sixteen", "optimizer"),
    [("fp8", "bf16", PLAIN), ("fp8", "bf16", ADAM), ("fp8-master", "bf16-master", ADAM)],
)
def test_8_bits_learn_what_16_learn(eight, sixteen, optimizer, rest):
    torch.compiler.reset()
    found = losses(f"{eight} kernels=on{rest}", optimizer)
    wanted = losses(f"{sixteen} kernels=on", optimizer)
    assert wanted[-1] < 0.95 * wanted[0], "there is something to learn"
    assert found == pytest.approx(wanted, rel=0.01)
    assert found != wanted


def test_gradients_of_a_whole_model_point_the_same_way():
    found = []
    for plan in ("fp8 kernels=on", "bf16 kernels=on"):
        run = start(plan, "sgd lr=0")
        run.climbed.forward_backward(next(batches()).to("cuda"), lambda loss: loss)
        found.append({n: p.grad.double() for n, p in run.module.named_parameters()})
    eight, sixteen = found
    for name, exact in sixteen.items():
        alike = nn.functional.cosine_similarity(eight[name].flatten(), exact.flatten(), dim=0)
        assert alike > 0.97, name
        assert float(eight[name].norm() / exact.norm()) == pytest.approx(1, abs=0.05), name


def test_recorded_steps_multiply_in_8_bits_too():
    torch.compiler.reset()
    plan = "fp8-master kernels=on compile=on"
    assert losses(f"{plan} graphs=on", ADAM) == pytest.approx(losses(plan, ADAM), rel=2e-3)


def test_a_step_never_waits_for_the_device():
    run = start("fp8-master kernels=on", ADAM)
    ready = list(batches())
    run.step(ready[0]).read()
    torch.cuda.set_sync_debug_mode("error")
    try:
        reports = [run.step(batch) for batch in ready]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(report.loss < 11 for report in reports)


def test_an_input_shared_by_linears_is_cast_once_when_compiled():
    from torch.profiler import ProfilerActivity, profile

    torch.compiler.reset()
    run = start("fp8-master kernels=on compile=on", ADAM)
    ready = list(batches())
    run.step(ready[0]).read()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run.step(ready[1]).read()
    casts = sum(event.count for event in seen.key_averages() if event.key == "_cast")
    # Of each block: 4 inputs of 7 linears, 7 weights, 7 gradients; of the head: weight, one chunk.
    assert casts == 2 * (4 + 7 + 7) + 2
