"""Hand-written kernels against eager torch and torch.compile: correctness, then speed.

Each case is run forward and backward. Before anything is timed, every output and gradient is
compared with torch in float64 on the same numbers; a kernel that is wrong has no speed. Times are
the device's own: the clock starts while the device is still busy with something else, so what is
measured is the work and not how fast Python can ask for it.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from stepladder.errors import PlanError, WorldError, nearest
from stepladder.kernels import cross_entropy, linear_cross_entropy
from stepladder.seam.cuda import sleep_on_device

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BOUNDS = {"bf16": 1.5e-2, "fp16": 4e-3, "fp32": 1e-4}  # tf32 may be on, so not tighter
FLUSH_BYTES = 256 << 20  # more than any device's cache
HEAD_START_CYCLES = 2_000_000  # about a millisecond, in which the host gets ahead

Function = Callable[..., Tensor]
Timer = Callable[[Callable[[], object]], float]


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One kernel on one shape: (rows, width), or (tokens, width, vocabulary)."""

    kernel: str
    shape: tuple[int, ...]
    dtype: str = "bf16"


@dataclass(frozen=True, slots=True)
class KernelTiming:
    """One case, measured; what could not be measured is None, and `problem` says why."""

    kernel: str
    shape: tuple[int, ...]
    dtype: str
    eager_ms: float | None = None  # forward and backward together, here and below
    compiled_ms: float | None = None
    ours_ms: float | None = None
    ours_gb_per_s: float | None = None  # bytes that must move / ours_ms; None where products decide
    eager_peak_bytes: int | None = None  # beyond what the case itself holds
    ours_peak_bytes: int | None = None
    max_error: float | None = None  # the largest relative error norm of outputs and gradients
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Two functions of the same leaves, and how often ours must pass over the first leaf."""

    ours: Function
    torch: Function
    passes: int | None


CASES = (
    KernelCase("cross_entropy", (8192, 50304)),
    KernelCase("cross_entropy_in_place", (8192, 50304)),
    KernelCase("cross_entropy", (4096, 128256)),
    KernelCase("cross_entropy_in_place", (4096, 128256)),
    KernelCase("linear_cross_entropy", (8192, 4096, 128256)),
)


def _torch_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.to(_wide(logits)), targets)


def _torch_linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = F.linear(hidden, weight)
    return F.cross_entropy(logits.to(_wide(logits)), targets)


def _wide(tensor: Tensor) -> torch.dtype:
    """A loss over a vocabulary is taken in float32 at least, as careful training code does."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits, targets, reduction="mean")


def _cross_entropy_in_place(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits, targets, reduction="mean", in_place=True)


def _linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return linear_cross_entropy(hidden, weight, targets, reduction="mean")


CONTESTS = {
    "cross_entropy": _Comparison(_cross_entropy, _torch_cross_entropy, 3),
    "cross_entropy_in_place": _Comparison(_cross_entropy_in_place, _torch_cross_entropy, 2),
    "linear_cross_entropy": _Comparison(_linear_cross_entropy, _torch_linear_cross_entropy, None),
}


def measure_kernels(
    cases: Sequence[KernelCase] = CASES,
    *,
    device: str = "cuda",
    timer: Timer | None = None,
    compiled: bool = True,
    budget_seconds: float = 80.0,
) -> list[KernelTiming]:
    """Check and time each case; one that fails keeps its reason and the next goes on."""
    for case in cases:
        _check(case)
    if device == "cuda" and not torch.cuda.is_available():
        problem = "kernels are timed on a GPU and this machine has none"
        raise WorldError("device", problem, "Their results are tested anywhere: make test.")
    deadline = time.monotonic() + budget_seconds
    timer = timer or device_milliseconds
    return [_guarded(case, torch.device(device), timer, compiled, deadline) for case in cases]


def _check(case: KernelCase) -> None:
    if case.kernel not in CONTESTS:
        problem = f"'{case.kernel}' is not a kernel"
        raise PlanError("kernel", problem, nearest(case.kernel, CONTESTS))
    if case.dtype not in DTYPES:
        raise PlanError("dtype", f"'{case.dtype}' is not measured", nearest(case.dtype, DTYPES))


def _guarded(
    case: KernelCase, device: torch.device, timer: Timer, compiled: bool, deadline: float
) -> KernelTiming:
    row = KernelTiming(case.kernel, case.shape, case.dtype)
    if time.monotonic() > deadline:
        return replace(row, problem="not begun: the time for all cases was spent")
    try:
        return _measure(row, device, timer, compiled)
    except Exception as error:  # any failure of a compiler, a driver or memory is this row's result
        lines = str(error).strip().splitlines()
        return replace(row, problem=f"{type(error).__name__}: {lines[0] if lines else ''}"[:200])


def _measure(row: KernelTiming, device: torch.device, timer: Timer, compiled: bool) -> KernelTiming:
    contest, arguments = CONTESTS[row.kernel], build(row, device)
    row = replace(row, max_error=largest_error(contest, arguments))
    assert row.max_error is not None
    if not row.max_error < BOUNDS[row.dtype]:
        return replace(row, problem=f"wrong: error {row.max_error:.1e} > {BOUNDS[row.dtype]:.1e}")
    ours_ms = timer(lambda: run(contest.ours, arguments))
    row = replace(row, ours_ms=ours_ms, eager_ms=timer(lambda: run(contest.torch, arguments)))
    if contest.passes:
        moved = contest.passes * arguments[0].nbytes
        row = replace(row, ours_gb_per_s=moved / ours_ms / 1e6)
    if device.type == "cuda":
        row = replace(
            row,
            ours_peak_bytes=_peak_bytes(contest.ours, arguments),
            eager_peak_bytes=_peak_bytes(contest.torch, arguments),
        )
    if not compiled:
        return row
    try:
        fused = torch.compile(contest.torch, fullgraph=True, dynamic=False)
        return replace(row, compiled_ms=timer(lambda: run(fused, arguments)))
    except Exception as error:  # our own numbers stand without the compiler's
        return replace(row, problem=f"torch.compile: {type(error).__name__}")


def build(row: KernelTiming | KernelCase, device: torch.device) -> tuple[Tensor, ...]:
    """Make the leaves of a case, the same every time; one target in ten is ignored."""
    generator = torch.Generator(device).manual_seed(0)
    num_rows, width, *vocabulary = row.shape

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        values = torch.randn(shape, generator=generator, device=device, dtype=DTYPES[row.dtype])
        return values.mul_(scale).requires_grad_()

    classes = vocabulary[0] if vocabulary else width
    targets = torch.randint(classes, (num_rows,), generator=generator, device=device)
    targets[::10] = -100
    if vocabulary:
        return normal(num_rows, width), normal(classes, width, scale=width**-0.5), targets
    return normal(num_rows, width, scale=2.0), targets


def run(function: Function, arguments: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Go forward and backward once: the output, then the gradient of each leaf."""
    arguments = tuple(arguments)
    leaves = [tensor for tensor in arguments if tensor.requires_grad]
    out = function(*arguments)
    # A scalar is a loss; the gradient of anything else is as good as its own values.
    dout = torch.ones_like(out) if out.dim() == 0 else out.detach()
    return out.detach(), *torch.autograd.grad(out, leaves, dout)


def largest_error(contest: _Comparison, arguments: tuple[Tensor, ...]) -> float:
    """The largest relative error norm of output and gradients against torch in float64."""
    fresh = [t.detach().clone().requires_grad_(t.requires_grad) for t in arguments]
    got = run(contest.ours, fresh)
    exact = [t.detach().double().requires_grad_() if t.requires_grad else t for t in arguments]
    wanted = run(contest.torch, exact)
    errors = [((a.double() - b).norm() / b.norm()).item() for a, b in zip(got, wanted)]
    return max(errors, key=lambda error: float("inf") if error != error else error)


def device_milliseconds(work: Callable[[], object], *, repeats: int = 20) -> float:
    """Median time of `work` on the device, its caches cold and its queue never empty."""
    for _ in range(3):
        work()
    cache = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    pairs = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cache.zero_()
        sleep_on_device(HEAD_START_CYCLES)
        start.record()
        work()
        end.record()
        pairs.append((start, end))
        torch.cuda.synchronize()
    return median(start.elapsed_time(end) for start, end in pairs)


def copy_gb_per_s(num_bytes: int = 1 << 30) -> float:
    """What the device's memory gives a plain copy, read and write counted."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * num_bytes / device_milliseconds(lambda: target.copy_(source)) / 1e6


def _peak_bytes(function: Function, arguments: tuple[Tensor, ...]) -> int:
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run(function, arguments)
    return torch.cuda.max_memory_allocated() - held
