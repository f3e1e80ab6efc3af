"""NVIDIA's library of matrix products, asked for all its ways of one product instead of its guess.

torch takes the first way cuBLAS names for a shape. cuBLASLt names up to eight, and on an H200 the
first is up to a third slower than the best: it is chosen by a table, for a chip at full clock,
while a chip that is short of power runs those best that move the least. The library is the one
torch has loaded already; nothing is installed.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Numbers of the library's public headers (cublasLt.h, library_types.h).
KINDS = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
SUMS_IN_FLOAT32 = 68
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS = 3, 4, 7, 8  # of a product's description
BESIDE, BESIDE_PITCH = 11, 12  # a second matrix, of the result's size
# What is done to a result before it is written. GELU is by tanh and after a bias; its input is kept
# beside it, and read there when its gradient is taken. (One that sums that gradient over rows as
# well, for the bias, takes three times as long on an H200.)
ENDINGS = {"bias": 4, "gelu": 164, "gelu_gradient": 192}
MOST_WORKSPACE, REDUCTIONS, ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # of a preference
NEVER_SUMMED_SHORT = 3  # partial sums in place or in float32, never in 16 bits
WORKSPACE = 64 * 2**20
MOST_WAYS = 16


class Way(Structure):
    """One way of computing a product: 64 opaque bytes, good for one version of the library."""

    _fields_ = [
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


class Shape(NamedTuple):
    """out[rows, columns] = left @ right, as they lie in memory; what a choice depends on."""

    rows: int
    columns: int
    inner: int
    left_turned: bool  # its columns are contiguous instead of its rows
    right_turned: bool
    left_pitch: int
    right_pitch: int
    inputs: torch.dtype
    outputs: torch.dtype
    ending: str  # of ENDINGS, or none
    adds: str  # nothing, what is in `out` "itself", or "another" matrix
    alignment: int  # bytes, of all operands


class Product:
    """One shape's descriptions, made once. The library counts columns first, so it is given the
    product of the turned matrices: right.T @ left.T = out.T."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.library, self.handle = library(), handle(torch.cuda.current_device())
        a, b = shape.right_turned, shape.left_turned
        self.description = self._make("MatmulDesc", SUMS_IN_FLOAT32, KINDS[torch.float32])
        self._set("MatmulDesc", self.description, TRANSPOSE_A, c_int(a))
        self._set("MatmulDesc", self.description, TRANSPOSE_B, c_int(b))
        if shape.ending:
            self._set("MatmulDesc", self.description, EPILOGUE, c_int(ENDINGS[shape.ending]))
        if shape.ending in ("gelu", "gelu_gradient"):
            self._set("MatmulDesc", self.description, BESIDE_PITCH, c_int64(shape.columns))
        kind = KINDS[shape.inputs]
        n, m, k = shape.columns, shape.rows, shape.inner
        self.a = self._layout(kind, (k, n) if a else (n, k), shape.right_pitch)
        self.b = self._layout(kind, (m, k) if b else (k, m), shape.left_pitch)
        self.c = self._layout(KINDS[shape.outputs], (n, m), n)
        self.beta = c_float(bool(shape.adds))
        self.one = c_float(1)

    def ways(self) -> list[Way]:
        """All that the library offers, its own guess first."""
        wish = self._make("MatmulPreference")
        self._set("MatmulPreference", wish, MOST_WORKSPACE, c_size_t(WORKSPACE))
        self._set("MatmulPreference", wish, REDUCTIONS, c_int(NEVER_SUMMED_SHORT))
        for operand in ALIGNMENTS:
            self._set("MatmulPreference", wish, operand, c_int(self.shape.alignment))
        offered, number = (Way * MOST_WAYS)(), c_int()
        ask = self.library.cublasLtMatmulAlgoGetHeuristic
        refused = ask(
            self.handle, self.description, self.a, self.b, self.c, self.c, wish,
            c_int(MOST_WAYS), offered, byref(number),
        )  # fmt: skip
        self.library.cublasLtMatmulPreferenceDestroy(wish)
        return [] if refused else [way for way in offered[: number.value] if way.state == 0]

    def takes(self, way: Way) -> bool:
        """Whether a way that was written down is one for this product."""
        found = Way()
        check = self.library.cublasLtMatmulAlgoCheck
        refused = check(
            self.handle, self.description, self.a, self.b, self.c, self.c,
            byref(way.algorithm), byref(found),
        )  # fmt: skip
        return not refused and found.workspace <= WORKSPACE

    def point(self, bias: Tensor | None, beside: Tensor | None) -> None:
        """Say where a bias lies, and the matrix beside the result."""
        for attribute, given in ((BIAS, bias), (BESIDE, beside)):
            if given is not None:
                place = c_void_p(given.data_ptr())
                self._set("MatmulDesc", self.description, attribute, place)

    def run(
        self, way: Way, right: int, left: int, added: int, out: int, space: int, stream: int
    ) -> None:
        """Queue the product on a stream; operands by address."""
        refused = self.library.cublasLtMatmul(
            self.handle, self.description, byref(self.one), right, self.a, left, self.b,
            byref(self.beta), added, self.c, out, self.c, byref(way.algorithm), space,
            WORKSPACE, stream,
        )  # fmt: skip
        if refused:
            raise RuntimeError(f"cuBLASLt refused a product it had offered (status {refused})")

    def _layout(self, kind: int, size: tuple[int, int], pitch: int) -> c_void_p:
        return self._make(
            "MatrixLayout", kind, c_uint64(size[0]), c_uint64(size[1]), c_int64(pitch)
        )

    def _make(self, what: str, *words: Any) -> c_void_p:
        made = c_void_p()
        refused = getattr(self.library, f"cublasLt{what}Create")(byref(made), *words)
        if refused:
            raise RuntimeError(f"cuBLASLt makes no {what} (status {refused})")
        return made

    def _set(self, what: str, where: c_void_p, attribute: int, value: Any) -> None:
        give = getattr(self.library, f"cublasLt{what}SetAttribute")
        give(where, c_int(attribute), byref(value), c_size_t(ctypes.sizeof(value)))


@cache
def library() -> Any:
    """The library torch runs on; None where it is not loaded or this is no CUDA build."""
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
    """Of the current device, which is told to be remembered by."""
    made = c_void_p()
    if library().cublasLtCreate(byref(made)):
        raise RuntimeError("cuBLASLt does not start")
    return made


def version() -> int:
    return int(library().cublasLtGetVersion())
