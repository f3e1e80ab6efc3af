"""A ResNet's first convolution and pooling on one GPU: cuDNN's and the compiler's, and ours.

    PYTHONPATH=src python3 benchmarks/kernels/first_convolution_gpu.py [--out FOLDER]

256 images of 224 x 224, bfloat16 by autocast, channels-last, each compiled by itself. Printed and
written to first_convolution_gpu.json: milliseconds, and the bandwidth of the bytes that must move.
`--small` tries the script on a processor.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepladder.kernels import max_pool  # noqa: F401  registers the operators
from stepladder.kernels.folded_convolution import fold_first_convolutions

RESULTS = Path(__file__).parents[1] / "results"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TIMES = 20


def milliseconds(call: Callable[[], object]) -> float:
    for _ in range(2):
        call()
    if DEVICE == "cpu":
        return float("nan")
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    for _ in range(TIMES):
        call()
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) / TIMES


def innermost(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


class Table:
    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def add(self, name: str, call: Callable[[], object], num_bytes: int) -> None:
        took = milliseconds(call)
        self.rows.append({"name": name, "ms": took, "bytes": num_bytes})
        print(f"{name:52} {took:8.3f} ms  {num_bytes / took / 1e9:6.2f} TB/s", flush=True)


def convolutions(table: Table, count: int, side: int) -> None:
    images = innermost(torch.randn(count, 3, side, side, device=DEVICE))
    gradient = torch.randn(count, 64, side // 2, side // 2, device=DEVICE, dtype=torch.bfloat16)
    gradient = innermost(gradient)
    theirs, ours = (convolution(table, folded, images, gradient) for folded in (False, True))
    for what, their, our in zip(("values", "gradients"), theirs, ours, strict=True):
        print(f"  {what} differ by {float((our - their).norm() / their.norm()):.1e}")


def convolution(
    table: Table, folded: bool, images: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """Time one way; its values and the weight's gradient."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    conv = conv.to(DEVICE, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if folded:
        assert fold_first_convolutions(conv, DEVICE) == [""]
    call = torch.compile(conv, fullgraph=True)

    def forward() -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            return call(images)

    def both() -> Tensor:
        conv.weight.grad = None
        forward().backward(gradient)
        return conv.weight.grad

    name, read, made = "folded" if folded else "cuDNN's", 4 * images.numel(), 2 * gradient.numel()
    table.add(f"convolution forward, {name}", forward, read + made)
    table.add(f"convolution and weight's gradient, {name}", both, read + 2 * made)
    return forward().detach().float(), both()


def poolings(table: Table, count: int, side: int) -> None:
    draw = {"device": DEVICE, "dtype": torch.bfloat16}
    images = innermost(torch.randn(count, 64, side, side, **draw)).relu().requires_grad_()
    gradient = innermost(torch.randn(count, 64, side // 2, side // 2, **draw))
    num_bytes = 2 * images.numel() + 3 * gradient.numel()
    theirs = torch.compile(lambda x: functional.max_pool2d(x, 3, 2, 1), fullgraph=True)
    best = theirs(images)

    def back() -> Tensor:
        return torch.autograd.grad(best, images, gradient, retain_graph=True)[0]

    table.add("pooling forward, the compiler's", lambda: theirs(images), num_bytes)
    table.add("pooling backward, the compiler's", back, num_bytes)
    plain, ours = images.detach(), torch.ops.stepladder
    largest, winners = ours.max_pool(plain)

    def ours_back() -> Tensor:
        return ours.max_pool_gradient(gradient, winners, side, side)

    table.add("pooling forward, ours", lambda: ours.max_pool(plain), num_bytes)
    table.add("pooling backward, ours", ours_back, num_bytes)
    same = torch.equal(largest, best.detach()), torch.equal(ours_back(), back())
    print(f"  the same values: {same[0]}; the same gradients: {same[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="toy sizes")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    count, side = (2, 32) if options.small else (256, 224)
    table = Table()
    convolutions(table, count, side)
    poolings(table, count, side // 2)
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    about = {"date": time.strftime("%Y-%m-%d"), "machine": name, "torch": torch.__version__}
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**about, "rows": table.rows}, indent=1)
    (options.out / "first_convolution_gpu.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
