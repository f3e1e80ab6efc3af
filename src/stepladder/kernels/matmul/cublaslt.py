"""cuBLASLt through ctypes: every algorithm it offers for a matmul, instead of its first guess.

torch takes the first algorithm cuBLAS names for a shape. cuBLASLt names up to eight, and on an H200
the first is up to a third slower than the best: it comes from a table made at full clock, while a
chip limited by power runs those best that move the least data. The library is the one that torch
has loaded already; nothing is installed.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Numbers of the library's public headers (cublasLt.h, library_types.h).
CUDA_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
COMPUTE_FLOAT32 = 68
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS = 3, 4, 7, 8  # of a matmul's description
AUX, AUX_STRIDE = 11, 12  # a second matrix, of the result's size
# Applied to a result before it is written. GELU is by tanh, after a bias; its input is saved as
# `aux`, and read there by its backward. (An epilogue that also sums that gradient over rows, for
# the bias, takes three times as long on an H200.)
EPILOGUES = {"bias": 4, "gelu": 164, "gelu_backward": 192}
MAX_WORKSPACE, REDUCTIONS, ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # of a preference
REDUCE_IN_FLOAT32 = 3  # partial sums in place or in float32, never in 16 bits
WORKSPACE = 64 * 2**20
MAX_ALGORITHMS = 16


class Algorithm(Structure):
    """One way to compute a matmul: 64 opaque bytes, valid for one version of the library."""

    _fields_ = [
        ("data", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


class MatmulShape(NamedTuple):
    """out[rows, columns] = left @ right, with their layouts in memory: what a choice depends on."""

    rows: int
    columns: int
    inner: int
    left_transposed: bool  # its columns are contiguous instead of its rows
    right_transposed: bool
    left_stride: int
    right_stride: int
    inputs: torch.dtype
    outputs: torch.dtype
    epilogue: str  # of EPILOGUES, or empty
    addend: str  # empty, "out" to accumulate into it, or "other" for another matrix
    alignment: int  # bytes, of all operands


class Matmul:
    """The descriptors of one shape, created once. The library is column-major, so it is given the
    transposed matmul: right.T @ left.T = out.T."""

    def __init__(self, shape: MatmulShape) -> None:
        self.shape = shape
        self.library, self.handle = library(), handle(torch.cuda.current_device())
        a, b = shape.right_transposed, shape.left_transposed
        self.description = self._make("MatmulDesc", COMPUTE_FLOAT32, CUDA_TYPES[torch.float32])
        self._set("MatmulDesc", self.description, TRANSPOSE_A, c_int(a))
        self._set("MatmulDesc", self.description, TRANSPOSE_B, c_int(b))
        if shape.epilogue:
            self._set("MatmulDesc", self.description, EPILOGUE, c_int(EPILOGUES[shape.epilogue]))
        if shape.epilogue in ("gelu", "gelu_backward"):
            self._set("MatmulDesc", self.description, AUX_STRIDE, c_int64(shape.columns))
        kind = CUDA_TYPES[shape.inputs]
        n, m, k = shape.columns, shape.rows, shape.inner
        self.a = self._layout(kind, (k, n) if a else (n, k), shape.right_stride)
        self.b = self._layout(kind, (m, k) if b else (k, m), shape.left_stride)
        self.c = self._layout(CUDA_TYPES[shape.outputs], (n, m), n)
        self.beta = c_float(bool(shape.addend))
        self.one = c_float(1)

    def algorithms(self) -> list[Algorithm]:
        """Every algorithm the library offers, its own guess first."""
        preference = self._make("MatmulPreference")
        self._set("MatmulPreference", preference, MAX_WORKSPACE, c_size_t(WORKSPACE))
        self._set("MatmulPreference", preference, REDUCTIONS, c_int(REDUCE_IN_FLOAT32))
        for operand in ALIGNMENTS:
            self._set("MatmulPreference", preference, operand, c_int(self.shape.alignment))
        offered, number = (Algorithm * MAX_ALGORITHMS)(), c_int()
        ask = self.library.cublasLtMatmulAlgoGetHeuristic
        refused = ask(
            self.handle, self.description, self.a, self.b, self.c, self.c, preference,
            c_int(MAX_ALGORITHMS), offered, byref(number),
        )  # fmt: skip
        self.library.cublasLtMatmulPreferenceDestroy(preference)
        return [] if refused else [each for each in offered[: number.value] if each.state == 0]

    def supports(self, algorithm: Algorithm) -> bool:
        """Whether a saved algorithm can compute this matmul."""
        found = Algorithm()
        check = self.library.cublasLtMatmulAlgoCheck
        refused = check(
            self.handle, self.description, self.a, self.b, self.c, self.c,
            byref(algorithm.data), byref(found),
        )  # fmt: skip
        return not refused and found.workspace <= WORKSPACE

    def set_pointers(self, bias: Tensor | None, aux: Tensor | None) -> None:
        """Set the addresses of the bias and of the auxiliary matrix."""
        for attribute, given in ((BIAS, bias), (AUX, aux)):
            if given is not None:
                place = c_void_p(given.data_ptr())
                self._set("MatmulDesc", self.description, attribute, place)

    def run(
        self,
        algorithm: Algorithm,
        right: int,
        left: int,
        added: int,
        out: int,
        space: int,
        stream: int,
    ) -> None:
        """Launch the matmul on a stream; operands by address."""
        refused = self.library.cublasLtMatmul(
            self.handle, self.description, byref(self.one), right, self.a, left, self.b,
            byref(self.beta), added, self.c, out, self.c, byref(algorithm.data), space,
            WORKSPACE, stream,
        )  # fmt: skip
        if refused:
            raise RuntimeError(f"cuBLASLt refused an algorithm it had offered (status {refused})")

    def _layout(self, kind: int, size: tuple[int, int], leading_stride: int) -> c_void_p:
        return self._make(
            "MatrixLayout", kind, c_uint64(size[0]), c_uint64(size[1]), c_int64(leading_stride)
        )

    def _make(self, what: str, *words: Any) -> c_void_p:
        made = c_void_p()
        refused = getattr(self.library, f"cublasLt{what}Create")(byref(made), *words)
        if refused:
            raise RuntimeError(f"cuBLASLt cannot create a {what} (status {refused})")
        return made

    def _set(self, what: str, where: c_void_p, attribute: int, value: Any) -> None:
        give = getattr(self.library, f"cublasLt{what}SetAttribute")
        give(where, c_int(attribute), byref(value), c_size_t(ctypes.sizeof(value)))


@cache
def library() -> Any:
    """The library that torch has loaded; None where it has not, or is not a CUDA build."""
    if torch.version.cuda is None or not torch.cuda.is_available():
        return None
    torch.cuda.current_blas_handle()  # loads it
    try:
        with open("/proc/self/maps") as maps:
            path = next((line.split()[-1] for line in maps if "libcublasLt.so" in line), None)
        loaded = ctypes.CDLL(path) if path else None
    except OSError:
        return None
    if loaded is not None:
        operands = [c_void_p] * 12  # handle, description, factors and matrices, each by address
        rest: list[Any] = [POINTER(c_uint64 * 8), c_void_p, c_size_t, c_void_p]
        loaded.cublasLtMatmul.argtypes = [*operands, *rest]
        loaded.cublasLtGetVersion.restype = c_size_t
    return loaded


@cache
def handle(device: int) -> c_void_p:
    """The library's handle of the current device, which is passed only as the cache's key."""
    made = c_void_p()
    if library().cublasLtCreate(byref(made)):
        raise RuntimeError("cuBLASLt cannot be initialised")
    return made


def version() -> int:
    return int(library().cublasLtGetVersion())
