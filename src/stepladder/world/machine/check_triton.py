"""A Triton kernel that doubles its input, to check whether Triton works here.

In its own file because it imports Triton at the top, which is not installed everywhere.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _double(source, target, length, block: tl.constexpr):
    index = tl.program_id(0) * block + tl.arange(0, block)
    inside = index < length
    tl.store(target + index, 2 * tl.load(source + index, mask=inside), mask=inside)


def double() -> str:
    """Run the kernel on the GPU and compare."""
    source = torch.arange(1000, device="cuda", dtype=torch.float32)
    target = torch.empty_like(source)
    _double[(triton.cdiv(1000, 256),)](source, target, 1000, block=256)
    torch.testing.assert_close(target, 2 * source)
    return f"triton {triton.__version__} built and ran a kernel"
