"""What only a GPU can show of a step: that it does not wait, what it holds, how it shrinks."""

import threading

import pytest
import torch

from stepladder.data import Batch
from stepladder.measure import MemoryMeter
from stepladder.model import build
from stepladder.train import climb

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPE = "gpt:layers=4,hidden=256,heads=4,vocab=1024,sequence=256"


def tokens(rows, length=256, vocab=1024, seed=0):
    draw = torch.Generator().manual_seed(seed)
    made = torch.randint(0, vocab, (rows, length + 1), generator=draw)
    return Batch.of((made[:, :-1], made[:, 1:]), position=0, size=rows)


def start(plan, optimizer="adamw lr=1e-3 clip=1", name=SHAPE):
    return climb(build(name), loss="cross_entropy", optimizer=optimizer, plan=plan, device="cuda")


@pytest.mark.parametrize("plan", ["fp32", "tf32", "bf16", "fp16", "bf16-pure", "bf16 micro=2"])
@pytest.mark.parametrize("optimizer", ["adamw lr=1e-3 clip=1", "sgd lr=0.1 momentum=0.9"])
def test_a_step_never_waits_for_the_device(plan, optimizer):
    run = start(plan, optimizer)
    batches = [tokens(8, seed=seed).pin() for seed in range(4)]
    run.step(batches[0]).read()
    torch.cuda.set_sync_debug_mode("error")
    try:
        reports = [run.step(batch) for batch in batches]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [report.loss < 8 for report in reports] == [True] * 4


@pytest.mark.parametrize("plan", ["bf16", "bf16 recompute=blocks", "bf16 compile=on"])
def test_backward_runs_on_the_thread_of_the_step(plan):
    run, threads = start(plan), set()
    run.module.embedding.weight.register_hook(lambda _: threads.add(threading.get_ident()))
    run.step(tokens(4)).read()
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("plan", ["fp32", "bf16", "bf16-pure", "bf16 recompute=blocks"])
def test_the_owners_sum_to_the_allocators_peak(plan):
    run = start(plan)
    batch = tokens(32).to("cuda")
    for _ in range(3):
        run.step(batch).read()
    with MemoryMeter(run.module, run.optimizer, run.world.device, vocab=1024) as meter:
        run.step(batch)
    memory, peak = meter.memory, torch.cuda.max_memory_allocated()
    assert memory.allocated_bytes == peak, "what nobody owns is temporary"
    # The ledger's own sum knows nothing of the allocator. Kernels' workspaces are not in it.
    assert meter.tracked_bytes == pytest.approx(peak, rel=0.15)
    # What recomputation makes again in backward is temporary: it outlives no block.
    if "recompute" not in plan:
        assert memory.temporary < 0.25 * peak, "most of the peak must have an owner"


def test_a_real_lack_of_memory_halves_the_micro_batch_and_loses_nothing():
    roomy = start("fp32 micro=8")
    tight = start("fp32 memory=1.2GiB")
    batches = [tokens(64, seed=seed) for seed in range(3)]
    expected = [roomy.step(batch).loss for batch in batches]
    del roomy
    torch.cuda.empty_cache()
    found = [tight.step(batch).loss for batch in batches]
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert any("out of memory" in event for event in tight.events)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("plan", "tolerance"), [("tf32", 2e-3), ("bf16", 2e-2), ("fp16", 5e-3), ("bf16-pure", 5e-2)]
)
def test_every_precision_follows_fp32(plan, tolerance):
    exact, other = start("fp32", "sgd lr=0.1"), start(plan, "sgd lr=0.1")
    for seed in range(5):
        batch = tokens(8, seed=seed)
        assert other.step(batch).loss == pytest.approx(exact.step(batch).loss, rel=tolerance)


def test_tf32_is_only_in_force_inside_a_step():
    before = torch.get_float32_matmul_precision()
    start("tf32").step(tokens(4)).read()
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_optimizers_are_right_on_this_device(dtype):
    from stepladder.plan import Optimizer
    from stepladder.train.optimizer.build_optimizer import build_optimizer, update

    for text in ("sgd lr=0.1", "sgd lr=0.1 momentum=0.9"):
        weight = torch.nn.Parameter(torch.randn(1000, device="cuda", dtype=dtype))
        gradient = torch.randn_like(weight)
        expected = weight.detach().double() - 0.1 * gradient.double()
        optimizer = build_optimizer(Optimizer.parse(text), [("w", weight)])
        weight.grad = 4 * gradient
        update(optimizer, torch.tensor(4.0, device="cuda"), torch.tensor(0.0, device="cuda"))
        error = (weight.detach().double() - expected).norm() / expected.norm()
        assert error < (1e-6 if dtype == torch.float32 else 1e-2)
