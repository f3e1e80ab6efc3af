"""The facts of a transformer, counted from its shape alone.

Per token, with d the width, q the width of the queries (mostly d too), k that of the keys, f the
width inside the MLP, in elements:

    kept by              Llama                    GPT
    eager      residual  2d                       2d
               work      2d + 3q + 2k + 4f        2d + 2q + 2k + 2f
    compiled   residual  1d                       1d
               work      3d + 3q + 2k + 3f        3d + 2q + 2k + 2f
    selective  residual  1d                       1d
               work      2d + 2q + 2k + 2f        2d + 2q + 2k + 1f

An eager gated MLP keeps gate, up, silu(gate) and their product. Compiled, what is cheap is made
again (silu, the sum in the middle of the block) but not what a product in backward must find in
memory: torch's partitioner keeps every product's input and output, casts of one tensor once. A norm
keeps its input and a statistic. A
rotated query makes attention answer in the layout of the heads, so the output is copied once more.
Selective recomputation keeps the block's input and what products and attention gave.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from stepladder.errors import PlanError, require_count

from .facts import Attention, Cut, ElementsByType, Facts, Launches, MatmulFacts, MemoryTraffic, Part
from .mixture_of_experts import with_experts
from .shape import Shape

# Launches of one pass: products, norms, rotations, attention, element-wise work, views that copy,
# casts. Counted on the built-in models, forward and back; they matter where kernels are tiny.
LLAMA_LAUNCHES = Launches(33, 45, 15), Launches(47, 68, 22)
GPT_LAUNCHES = Launches(12, 28, 11), Launches(26, 56, 17)
LONGEST_SEQUENCE = 2**27  # tokens: beyond it a number is a slip of the keyboard
LLAMA_TENSORS, GPT_TENSORS = 9, 16  # of parameters, in one block


def facts_of_shape(shape: Shape, sequence: int | None = None, *, name: str = "") -> Facts:
    """Count what a transformer of this shape costs on sequences of that length."""
    if sequence is not None:
        require_count("sequence", sequence, "a length")
        if sequence > LONGEST_SEQUENCE:
            problem = f"{sequence:,} tokens are more than any sequence has"
            raise PlanError("sequence", problem, f"Use {LONGEST_SEQUENCE:,} or fewer.")
    length = sequence or shape.sequence
    return Facts(
        name=name or shape.family,
        parts=(entry_of(shape, length), *blocks_of(shape, length), exit_of(shape, length)),
        tokens=length,
        vocab=shape.vocab,
        tied_parameters=shape.vocab * shape.hidden if shape.tied else 0,
        sample_bytes=2 * 8.0 * length,
    )


def entry_of(shape: Shape, length: int) -> Part:
    width = length * shape.hidden
    positions = shape.embedding_parameters - shape.vocab * shape.hidden
    return Part(
        name="embedding",
        parameters=shape.embedding_parameters,
        whole_parameters=positions,
        moved=MemoryTraffic(ElementsByType(4.0 * width), ElementsByType(3.0 * width)),
        output=width,
        launches=Launches(4, 4, 2),
        launches_back=Launches(6, 6, 4),
    )


def blocks_of(shape: Shape, length: int) -> list[Part]:
    """Runs of equal blocks in order: of one kind, or with experts and without."""
    plain = with_matrices(block_of(shape, length))
    if not shape.experts:
        return [replace(plain, count=shape.layers)]
    beside = replace(shape, ffn=shape.shared_ffn)  # attention, and the MLP of all tokens
    sparse = with_matrices(with_experts(block_of(beside, length), shape, length))
    runs = groupby(map(shape.is_sparse, range(shape.layers)))
    return [replace(sparse if has else plain, count=len(list(run))) for has, run in runs]


def with_matrices(block: Part) -> Part:
    """The block with its hidden matrices counted: one for each product."""
    return replace(
        block,
        matrices=sum(m.weights for m in block.matmuls),
        whole_matrices=sum(m.weights for m in block.matmuls if not m.cut),
        matrix_rows=sum(m.experts * m.columns for m in block.matmuls),
    )


def block_of(shape: Shape, length: int) -> Part:
    """One without experts."""
    statistics = ElementsByType(single=length * (shape.heads + (4 if shape.biased else 2)))
    count = count_llama if shape.gated else count_gpt
    moved, eager, compiled, selective = count(shape, length)
    ahead, back = LLAMA_LAUNCHES if shape.gated else GPT_LAUNCHES
    weights = weights_of(shape)
    biases = shape.attention_parameters + shape.mlp_parameters - weights
    if shape.experts:  # nobody cuts the MLPs of a model some of whose are experts
        weights -= shape.mlp_parameters
    whole = 2 * shape.norm_parameters + (2 * shape.hidden if biases else 0) + shape.extra
    return Part(
        name="block",
        parameters=shape.block_parameters,
        whole_parameters=shape.block_parameters - weights if shape.experts else whole,
        whole=bool(shape.experts),
        matmuls=matmuls_of(shape, length),
        attention=Attention(shape.heads, shape.kv_heads, shape.head_width, length),
        moved=moved,
        eager=eager + statistics,
        compiled=compiled + statistics,
        selective=selective + statistics,
        # The gradient that comes in, its cast, those of what the last product and its gate read.
        scratch=ElementsByType(
            work=length * (2.0 if shape.gated else 1.0) * shape.ffn,
            residual=1.0 * length * shape.hidden,
            cast=1.0 * length * shape.hidden,
        ),
        output=length * shape.hidden,
        launches=ahead,
        launches_back=back,
        tensors=LLAMA_TENSORS if shape.gated else GPT_TENSORS,
    )


def weights_of(shape: Shape) -> int:
    keys = shape.kv_heads * shape.head_width
    mlp = (3 if shape.gated else 2) * shape.hidden * shape.ffn
    return 2 * shape.hidden * (shape.query_width + keys) + mlp


def matmuls_of(shape: Shape, length: int) -> tuple[MatmulFacts, ...]:
    width, keys, queries = shape.hidden, shape.kv_heads * shape.head_width, shape.query_width
    into = (queries, keys, keys)
    up = 2 if shape.gated else 1
    wide: Cut = "" if shape.experts else "columns"
    narrow: Cut = "" if shape.experts else "inner"
    return (
        *(MatmulFacts(length, width, columns, "columns") for columns in into),
        MatmulFacts(length, queries, width, "inner"),
        *(MatmulFacts(length, width, shape.ffn, wide) for _ in range(up)),
        MatmulFacts(length, shape.ffn, width, narrow),
    )


def count_llama(
    shape: Shape, length: int
) -> tuple[MemoryTraffic, ElementsByType, ElementsByType, ElementsByType]:
    """Element-wise traffic, and what eager, compiled and selective execution keep."""
    d, q, k, f = (length * width for width in widths_of(shape))
    # Norms 4d, additions 6d, rotation 4(q + k), silu and product 5f; fused: 8d, 2(q + k), 3f.
    # Autocast has the stream and what norms give in fp32, and casts each for every product.
    moved = MemoryTraffic(
        ElementsByType(work=4.0 * k + 5.0 * f, residual=10.0 * d + 4.0 * q, cast=9.0 * d),
        ElementsByType(work=4.0 * d + 2.0 * q + 2.0 * k + 3.0 * f, residual=4.0 * d),
    )
    eager = ElementsByType(
        residual=2.0 * d, work=2.0 * d + 3.0 * q + 2.0 * k + 4.0 * f, cast=3.0 * d
    )
    compiled = ElementsByType(residual=1.0 * d, work=3.0 * d + 3.0 * q + 2.0 * k + 3.0 * f)
    selective = ElementsByType(residual=1.0 * d, work=2.0 * d + 2.0 * q + 2.0 * k + 2.0 * f)
    return moved, eager, compiled, selective


def widths_of(shape: Shape) -> tuple[int, int, int, int]:
    return shape.hidden, shape.query_width, shape.kv_heads * shape.head_width, shape.ffn


def count_gpt(
    shape: Shape, length: int
) -> tuple[MemoryTraffic, ElementsByType, ElementsByType, ElementsByType]:
    d, q, k, f = (length * width for width in widths_of(shape))
    # Norms 4d, residual additions 6d, gelu 2f; fused: 8d, 2f.
    moved = MemoryTraffic(
        ElementsByType(work=2.0 * f, residual=10.0 * d, cast=10.0 * d),
        ElementsByType(work=4.0 * d + 2.0 * f, residual=4.0 * d),
    )
    eager = ElementsByType(
        residual=2.0 * d, work=2.0 * d + 2.0 * q + 2.0 * k + 2.0 * f, cast=2.0 * d
    )
    compiled = ElementsByType(residual=1.0 * d, work=3.0 * d + 2.0 * q + 2.0 * k + 2.0 * f)
    selective = ElementsByType(residual=1.0 * d, work=2.0 * d + 2.0 * q + 2.0 * k + 1.0 * f)
    return moved, eager, compiled, selective


def exit_of(shape: Shape, length: int) -> Part:
    width = length * shape.hidden
    norm = ElementsByType(residual=1.0 * width, work=1.0 * width, single=float(length))
    return Part(
        name="head",
        parameters=shape.norm_parameters + shape.vocab * shape.hidden,
        whole_parameters=shape.norm_parameters,
        matmuls=(MatmulFacts(length, shape.hidden, shape.vocab, "columns"),),
        moved=MemoryTraffic(
            ElementsByType(residual=2.0 * width, cast=5.0 * width),
            ElementsByType(residual=2.0 * width),
        ),
        eager=norm,
        compiled=norm,
        selective=norm,
        scratch=ElementsByType(residual=1.0 * width, work=1.0 * width),
        launches=Launches(6, 8, 4),
        launches_back=Launches(8, 12, 6),
    )
