"""Values of Python and torch as bytes that hold data only, so that reading them runs no code.

For what `get_extra_state` returns and for sparse buffers. torch pickles extra state; a checkpoint
holds no pickles. So it may be made of numbers, texts, bytes, tensors, arrays, and lists, tuples,
sets and dictionaries of them; anything else is refused with its type.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Collection, Mapping
from io import BytesIO
from typing import Any

import numpy
import torch
from torch import Tensor

from stepladder.checkpoint.safetensors_file import DTYPE_CODES, DTYPES, raw_bytes
from stepladder.errors import RecordError

SEQUENCES: dict[type, str] = {
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    torch.Size: "size",
}
MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered"}
TYPES = {name: kind for kind, name in (*SEQUENCES.items(), *MAPPINGS.items())}
PARTS = {  # how torch names what a sparse tensor is made of
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
LAYOUTS = {str(layout): layout for layout in PARTS}


def encode(value: Any) -> Tensor:
    """The value as bytes; raises a `TypeError` with the type that cannot be stored."""
    text = json.dumps(to_data(value), allow_nan=False).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def decode(stored: Tensor) -> Any:
    """The value that `encode` was given; its tensors are in host memory."""
    try:
        return from_data(json.loads(bytes(stored.tolist())))
    except (ValueError, KeyError, TypeError, RuntimeError, RecursionError) as wrong:
        raise RecordError(
            "checkpoint", f"its extra state cannot be read ({wrong})", "Use an older checkpoint."
        ) from wrong


def to_data(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return {"float": repr(value)}
    if kind is complex:
        return {"complex": [repr(value.real), repr(value.imag)]}
    if kind in (bytes, bytearray, BytesIO):
        raw = value.getvalue() if isinstance(value, BytesIO) else bytes(value)
        return {kind.__name__: b64encode(raw).decode()}
    if kind is list:
        return [to_data(one) for one in value]
    if kind in SEQUENCES:
        return {SEQUENCES[kind]: [to_data(one) for one in value]}
    if kind in MAPPINGS:
        return {MAPPINGS[kind]: [[to_data(key), to_data(one)] for key, one in value.items()]}
    if kind is torch.dtype and value in DTYPE_CODES:
        return {"dtype": DTYPE_CODES[value]}
    if isinstance(value, Tensor):
        return tensor_to_data(value)
    if isinstance(value, numpy.ndarray | numpy.generic) and value.dtype.kind in "biufc":
        array = numpy.asarray(value)
        data = b64encode(array.tobytes()).decode()
        name = "array" if isinstance(value, numpy.ndarray) else "scalar"
        return {name: [array.dtype.str, list(array.shape), data]}
    raise TypeError(f"a {kind.__module__}.{kind.__qualname__}")


def storable(values: Mapping[str, Any], left_out: Collection[str]) -> dict[str, Any]:
    """Those of some named values that can be stored, as data; others are passed over."""
    found = {}
    for name, value in values.items():
        if name not in left_out:
            try:
                found[name] = to_data(value)
            except TypeError:
                continue
    return found


def tensor_to_data(tensor: Tensor) -> dict[str, Any]:
    if tensor.layout in PARTS:
        coalesced = tensor.layout == torch.sparse_coo and tensor.is_coalesced()
        parts = [tensor_to_data(getattr(tensor, name)()) for name in PARTS[tensor.layout]]
        return {"sparse": [str(tensor.layout), list(tensor.shape), coalesced, parts]}
    if tensor.layout != torch.strided or tensor.dtype not in DTYPE_CODES:
        raise TypeError(f"a tensor of {tensor.dtype} in layout {tensor.layout}")
    data = b64encode(raw_bytes(tensor.detach().cpu())).decode()
    return {"tensor": [DTYPE_CODES[tensor.dtype], list(tensor.shape), data]}


def from_data(data: Any) -> Any:
    if not isinstance(data, dict | list):
        return data
    if isinstance(data, list):
        return [from_data(one) for one in data]
    ((kind, held),) = data.items()
    if kind in TYPES:
        made = TYPES[kind]
        if made in MAPPINGS:
            return made((from_data(key), from_data(one)) for key, one in held)
        return made([from_data(one) for one in held])
    return READERS[kind](held)


def read_tensor(held: Any) -> Tensor:
    dtype, shape, data = DTYPES[held[0]], tuple(held[1]), b64decode(held[2])
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape)


def read_sparse(held: Any) -> Tensor:
    layout, shape, coalesced, data = LAYOUTS[held[0]], held[1], held[2], held[3]
    parts = [from_data(part) for part in data]
    if layout == torch.sparse_coo:
        indices, values = parts
        made = torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)
        return made.coalesce() if coalesced else made
    outer, inner, values = parts
    return torch.sparse_compressed_tensor(
        outer, inner, values, shape, layout=layout, check_invariants=True
    )


def read_array(held: Any) -> numpy.ndarray:
    flat = numpy.frombuffer(b64decode(held[2]), dtype=numpy.dtype(held[0]))
    return flat.reshape(held[1]).copy()


READERS: dict[str, Any] = {
    "float": float,
    "complex": lambda held: complex(float(held[0]), float(held[1])),
    "bytes": b64decode,
    "bytearray": lambda held: bytearray(b64decode(held)),
    "BytesIO": lambda held: BytesIO(b64decode(held)),
    "dtype": lambda held: DTYPES[held],
    "tensor": read_tensor,
    "sparse": read_sparse,
    "array": read_array,
    "scalar": lambda held: read_array(held)[()],
}
