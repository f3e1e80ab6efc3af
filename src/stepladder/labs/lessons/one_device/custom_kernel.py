"""A custom kernel called from torch, and measured.

silu(x) × y, the gate of a Llama's MLP, is two operations for torch: silu reads x and writes a
tensor, the product reads that tensor and y and writes the result. A Triton program does it in one
pass: each program instance loads one block of both, computes in registers and stores.

torch must be told three things of a kernel: how to call it (torch.library.custom_op), the shape of
its result without running it (register_fake, for the compiler), and its gradient
(register_autograd). torch.library.opcheck looks whether they agree.

Without a GPU Triton's interpreter runs the same program, number by number: right, and slow.

Claim: one pass gives silu(x) × y and its gradients, and moves fewer bytes; on a GPU the time
follows the bytes. torch.library.opcheck finds nothing wrong with it.

Predict: As two operations on 262,144 floats it moves 5.24 MB (on a GPU 256 times as many of both).
How many MB does one kernel move? [MB moved]

Often wrong:
- every program instance works on the first block
- the last, shorter block is never started
- the gradient forgets that x stands in the gate and beside it
- the stand-in has another shape than the result
"""

import os
import time
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a program is defined

import triton
import triton.language as tl

BLOCK = 256


@triton.jit
def swiglu_program(x, y, out, size, BLOCK: tl.constexpr):
    # >>> The positions of this instance's numbers.
    # ??? Each instance has BLOCK numbers of its own. Which instance this is: tl.program_id(0). What
    # ???   counts within a block: tl.arange.
    # ??? Where do the numbers of instance 2 begin, when a block is 256?
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # <<< at = tl.arange(0, BLOCK)
    inside = at < size  # the last block may reach over the end
    gate, value = tl.load(x + at, mask=inside), tl.load(y + at, mask=inside)
    # >>> Store silu of the gate times the value, where there are numbers.
    # ??? silu(a) is a times sigmoid(a), and sigmoid(a) is 1 over (1 + e^-a).
    # ??? tl.exp is there. tl.store takes where to write, what, and a mask, as tl.load takes one.
    tl.store(out + at, gate / (1 + tl.exp(-gate)) * value, mask=inside)
    # <<< tl.store(out + at, value, mask=inside)


@torch.library.custom_op("stepladder_lab::swiglu", mutates_args=())
def swiglu(x: Tensor, y: Tensor) -> Tensor:
    """silu(x) × y in one pass."""
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    # >>> How many instances it takes for all numbers.
    # ??? 256 numbers need one instance. And 257?
    # ??? Integer division rounds down: how is it made to round up?
    instances = -(-x.numel() // BLOCK)
    # <<< instances = 1
    swiglu_program[(instances,)](x, y, out, x.numel(), BLOCK)
    return out


@swiglu.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x)


def remember(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def swiglu_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    x, y = ctx.saved_tensors
    s = x.sigmoid()
    # >>> The gradients of x and of y.
    # ??? Begin with y: what is the derivative of silu(x) × y by y?
    # ??? x stands twice in x × sigmoid(x), so there is a sum of two terms. What is the derivative
    # ???   of sigmoid, in terms of sigmoid?
    # ??? Both are multiplied by the gradient from above.
    return gradient * y * (s + x * s * (1 - s)), gradient * x * s
    # <<< return gradient, gradient


swiglu.register_autograd(swiglu_backward, setup_context=remember)


def moved_bytes(numel: int, *, fused: bool) -> int:
    """Of float32 numbers read and written."""
    # >>> Bytes read and written, of float32 numbers.
    # ??? Which tensors does silu read and write, and which does the product?
    # ??? Which of them is only there to be read again at once?
    return 4 * numel * (3 if fused else 5)
    # <<< return ...  # type: ignore[return-value]


def measure(size: int = 2**18) -> list[dict[str, Any]]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = size * 256 if device == "cuda" else size
    x, y = torch.randn(size, device=device), torch.randn(size, device=device)
    word = "one kernel" if device == "cuda" else "one kernel, interpreted"
    rows = []
    for way, call, fused in (("two operations", lambda: silu(x) * y, False),
                             (word, lambda: swiglu(x, y), True)):  # fmt: skip
        call().sum().item()
        start = time.perf_counter()
        call()[0].item()  # waits for the device
        ms = 1e3 * (time.perf_counter() - start)
        rows.append({"way": way, "MB moved": moved_bytes(size, fused=fused) / 1e6, "ms": ms})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
