"""The fused updates as compiled for a GPU: no number goes through shared memory on its way.

Reading tensors of different types with 16 bytes a thread would give each its own arrangement over
the threads. The compiler needs no GPU to tell.
"""

import pytest

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from stepladder.kernels.backend import INTERPRETED  # noqa: E402
from stepladder.kernels.triton import triton_adamw, triton_compact_adamw  # noqa: E402

pytestmark = pytest.mark.skipif(INTERPRETED, reason="this process interprets Triton")
HOPPER = GPUTarget("cuda", 90, 32)
INTEGERS = {"table": "*i64", "sizes": "*i64", "owners": "*i32", "firsts": "*i32", "keys": "*i32"}
POINTERS = dict.fromkeys(("corrections", "divisor", "bad"), "*fp32")
NUMBERS = dict.fromkeys(("lr", "beta1", "beta2", "eps", "decay"), "fp32")
TYPES = {**INTEGERS, **POINTERS, **NUMBERS, "num_tensors": "i32"}
SPLIT, COMPANDED = triton_compact_adamw._update_split, triton_compact_adamw._update_companded
CASES = {
    16: (triton_adamw._update, {"PARAMETER": tl.bfloat16, "BLOCK": 4096, "EACH": 4}),
    14: (SPLIT, {"MOMENT": tl.int32, "MOMENT_BYTES": 4, "BLOCK": 2048, "EACH": 4}),
    10: (SPLIT, {"MOMENT": tl.int16, "MOMENT_BYTES": 2, "BLOCK": 2048, "EACH": 8}),
    7: (COMPANDED, {"GROUP": 64, "BLOCK": 2048, "EACH": 8}),
}


@pytest.mark.parametrize("size", CASES)
def test_no_element_changes_threads(size):
    program, own = CASES[size]
    values = {**own, "GRADIENT": tl.bfloat16, "DECOUPLED": True, "MULTIPLE": 16}
    if size != 16:
        values["GRADIENT_BYTES"] = 2
    kinds = {name: "constexpr" if name in values else TYPES[name] for name in program.arg_names}
    made = triton.compile(
        ASTSource(program, signature=kinds, constexprs=values), HOPPER, {"num_warps": 8}
    )
    moved = [line for line in made.asm["ttgir"].splitlines() if "convert_layout" in line]
    assert all(f"tensor<{2048 // 64}xf32" in line for line in moved), "only scales may"
    assert len(moved) == (2 if size == 7 else 0)
