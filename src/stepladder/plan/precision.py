"""Precisions: the types that parameters are stored in, computed in and reduced in.

A precision's name is parsed once, here. From then on each party reads the field that answers its
question: the optimizer `store`, autocast `work`, the matrix units `compute`, the network `reduce`.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.errors import PlanError

from .typed_values import nearest_word

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}


@dataclass(frozen=True, slots=True)
class Precision:
    """The types that parameters are stored in, computed in and reduced in."""

    name: str
    store: str  # the type of parameters, their gradients and the optimizer's state
    work: str  # the type of activations between matrix products
    compute: str  # the matrix units' mode: a key of the device table
    reduce: str  # the type gradients travel in
    scaled: bool = False  # too few exponent bits for small gradients, so the loss is scaled up
    masters: bool = False  # the optimizer keeps its state, and each parameter again, in fp32

    @property
    def mixed(self) -> bool:
        """Whether parameters are kept in another type than the one worked in."""
        return self.store != self.work

    @classmethod
    def parse(cls, name: str) -> Precision:
        if name not in PRECISIONS:
            raise PlanError(
                "precision",
                f"'{name}' is not a precision",
                nearest_word(name, PRECISIONS, ELSEWHERE),
            )
        return PRECISIONS[name]

    def __str__(self) -> str:
        return self.name


FP32 = Precision("fp32", store="float32", work="float32", compute="fp32", reduce="float32")
TF32 = Precision("tf32", store="float32", work="float32", compute="tf32", reduce="float32")
FP16 = Precision("fp16", "float32", work="float16", compute="fp16", reduce="float32", scaled=True)
BF16 = Precision("bf16", store="float32", work="bfloat16", compute="bf16", reduce="float32")
BF16_PURE = Precision("bf16-pure", "bfloat16", "bfloat16", compute="bf16", reduce="bfloat16")
BF16_MASTER = Precision(
    "bf16-master", "bfloat16", "bfloat16", compute="bf16", reduce="bfloat16", masters=True
)
FP8 = Precision("fp8", store="float32", work="bfloat16", compute="fp8", reduce="float32")
FP8_MASTER = Precision(
    "fp8-master", "bfloat16", "bfloat16", compute="fp8", reduce="bfloat16", masters=True
)

PRECISIONS = {p.name: p for p in (FP32, TF32, FP16, BF16, BF16_PURE, BF16_MASTER, FP8, FP8_MASTER)}
# What Lightning, Accelerate and torch call them.
ELSEWHERE = {
    **dict.fromkeys(("32", "32_true", "float32", "float", "full"), "fp32"),
    **dict.fromkeys(("16", "16_mixed", "fp16_mixed", "float16", "half"), "fp16"),
    **dict.fromkeys(("bf16_mixed", "bfloat16"), "bf16"),
    "bf16_true": "bf16-pure",
}
