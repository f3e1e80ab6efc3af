"""What only a GPU can show of the kernels: compiled programs, their memory, their repeatability."""

import pytest
import torch
import torch.nn.functional as F

from stepladder.bench.kernel_timings import BOUNDS, CONTESTS, KernelCase, build, largest_error, run
from stepladder.kernels import cross_entropy, linear_cross_entropy
from stepladder.kernels.backend import runs_triton

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GPU = torch.device("cuda")
SHAPES = {
    "cross_entropy": [(1, 2), (513, 1000), (64, 50257), (256, 128256)],
    "cross_entropy_in_place": [(1, 2), (513, 1000), (64, 50257), (256, 128256)],
    "linear_cross_entropy": [(100, 64, 1000), (5000, 128, 3001)],
}
EVERY = [(kernel, shape) for kernel, shapes in SHAPES.items() for shape in shapes]


def peak_bytes(work):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - held


def test_triton_runs_here():
    assert runs_triton(torch.zeros(1, device=GPU))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("kernel", "shape"), EVERY)
def test_compiled_programs_agree_with_float64(kernel, shape, dtype):
    case = KernelCase(kernel, shape, dtype)
    if shape == (1, 2):
        logits = torch.tensor([[3.0, 1.0]], device=GPU, requires_grad=True)
        arguments = (logits, torch.tensor([1], device=GPU))
    else:
        arguments = build(case, GPU)
    assert largest_error(CONTESTS[kernel], arguments) < BOUNDS[dtype]


@pytest.mark.parametrize(("kernel", "shape"), EVERY)
def test_two_runs_agree_to_the_bit(kernel, shape):
    case = KernelCase(kernel, shape)
    first, second = (run(CONTESTS[kernel].ours, build(case, GPU)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_every_element_is_written():
    arguments = build(KernelCase("cross_entropy", (333, 3001)), GPU)
    torch.use_deterministic_algorithms(True)  # fresh memory is then filled with NaN
    try:
        assert torch.empty(3, device=GPU).isnan().all()
        found = run(CONTESTS["cross_entropy"].ours, arguments)
        assert all(tensor.isfinite().all() for tensor in found)
    finally:
        torch.use_deterministic_algorithms(False)


def test_rows_beyond_two_to_the_31_elements_are_reached():
    rows, vocabulary = 17000, 128256
    logits = torch.zeros(rows, vocabulary, dtype=torch.bfloat16, device=GPU, requires_grad=True)
    with torch.no_grad():
        logits[-1, 5] = 20
    targets = torch.full((rows,), 5, device=GPU)
    losses = cross_entropy(logits, targets, reduction="none")
    losses.sum().backward()
    assert losses[-1].item() < 1e-3
    assert losses[0].item() == pytest.approx(11.7618, rel=1e-4)
    assert logits.grad[-1, 5].abs().item() < 1e-3
    assert logits.grad[-2, 5].item() == pytest.approx(-1, rel=1e-2)


def test_in_place_the_loss_needs_no_second_buffer_of_logits():
    logits, targets = build(KernelCase("cross_entropy", (2048, 50304)), GPU)
    plain = peak_bytes(lambda: run(CONTESTS["cross_entropy"].ours, (logits, targets)))
    in_place = peak_bytes(lambda: run(CONTESTS["cross_entropy_in_place"].ours, (logits, targets)))
    assert plain >= logits.nbytes
    assert in_place < logits.nbytes / 100


def test_autograd_is_told_of_what_triton_wrote():
    targets = torch.tensor([0, 1, 2], device=GPU)
    logits = torch.randn(3, 5, device=GPU, requires_grad=True).tanh()  # tanh keeps its output
    loss = cross_entropy(logits, targets, in_place=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    logits = torch.randn(3, 5, device=GPU, requires_grad=True) * 1
    loss = cross_entropy(logits, targets, in_place=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_linear_loss_in_chunks_never_holds_the_logits():
    hidden, weight, targets = build(KernelCase("linear_cross_entropy", (16384, 256, 20000)), GPU)
    all_logits = 16384 * 20000 * 2
    linear_cross_entropy(hidden, weight, targets, chunk=1024)  # autotuning needs memory of its own
    used = peak_bytes(lambda: linear_cross_entropy(hidden, weight, targets, chunk=1024).backward())
    assert used < all_logits / 3


@pytest.mark.parametrize("in_place", [False, True])
def test_they_compile_whole_and_answer_the_same(in_place):
    torch._dynamo.reset()
    x, gain = (torch.randn(n, 256, device=GPU, requires_grad=True) for n in (128, 1))
    weight, targets = torch.randn(1000, 256, device=GPU), torch.randint(1000, (128,), device=GPU)

    def used(a, b):
        hidden = F.normalize(a * 2) * b + 1
        plain = cross_entropy(hidden @ weight.T, targets, reduction="mean", in_place=in_place)
        return plain + linear_cross_entropy(hidden, weight, targets, chunk=50, reduction="mean")

    wanted = torch.autograd.grad(used(x, gain), (x, gain))
    compiled = torch.compile(used, fullgraph=True)
    for got, right in zip(torch.autograd.grad(compiled(x, gain), (x, gain)), wanted):
        torch.testing.assert_close(got, right, rtol=1e-3, atol=1e-4)


def test_under_autocast_the_weights_gradient_stays_float32():
    hidden, weight, targets = build(KernelCase("linear_cross_entropy", (500, 64, 999), "fp32"), GPU)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, targets, reduction="mean")
    loss.backward()
    wanted = F.cross_entropy(hidden.detach().double() @ weight.detach().double().T, targets)
    assert weight.grad.dtype == hidden.grad.dtype == torch.float32
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-2)
