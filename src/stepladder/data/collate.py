"""Collating: stacking samples into tensors with one row per sample.

Rows of different lengths are padded at the end: targets with -100, masks with 0, the rest with the
policy's pad. Any other difference is an error that names the sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stepladder.data.loading.read_samples import ReadPolicy
from stepladder.errors import DataError

from .batch import TARGET_KEYS, iter_tensors, map_tensors
from .packing import IGNORED

MASK_KEYS = ("attention_mask", "token_type_ids")


def stack(samples: Sequence[Any], names: Sequence[str], policy: ReadPolicy) -> Any:
    """Stack samples into one structure of tensors with one row per sample."""
    first = samples[0]
    _check_same_structure(samples, names)
    if isinstance(first, dict):
        return {
            key: _column([sample[key] for sample in samples], names, policy, key) for key in first
        }
    if isinstance(first, (tuple, list)) and not _is_numbers(first):
        parts = [f"part {number}" for number in range(len(first))]
        if len(first) == 2:
            parts[1] = "targets"
        columns = zip(*samples)
        # Of a list: Python fails to make a tuple of a generator while another thread, such as a
        # profile's, lists all objects.
        made = [_column(list(column), names, policy, part) for part, column in zip(parts, columns)]
        return tuple(made)
    return _column(samples, names, policy, "part 0")


def shorten(samples: Any, length: int) -> Any:
    """Truncate stacked token windows to `length`; other tensors stay as they are."""
    return map_tensors(
        lambda tensor: tensor[:, :length].contiguous() if is_tokens(tensor) else tensor, samples
    )


def is_tokens(tensor: torch.Tensor) -> bool:
    """Whether a stacked tensor is rows of integers, as tokens are and images are not."""
    return tensor.dim() == 2 and not tensor.dtype.is_floating_point


def check_longest(samples: Any, policy: ReadPolicy) -> Any:
    """Truncate already stacked samples to the policy's longest, or refuse them."""
    widths = [tensor.shape[1] for tensor in iter_tensors(samples) if is_tokens(tensor)]
    if policy.longest is None or max(widths, default=0) <= policy.longest:
        return samples
    if policy.too_long == "stop":
        raise _too_long("every sample", max(widths), policy.longest)
    return shorten(samples, policy.longest)


def concatenate_stacked(parts: Sequence[Any], rows: torch.Tensor) -> Any | None:
    """Concatenate stacked samples of several sources and reorder the rows; None if they differ."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        kinds = {(one.shape[1:], one.dtype) for one in parts if isinstance(one, torch.Tensor)}
        if len(kinds) != 1 or not all(isinstance(one, torch.Tensor) for one in parts):
            return None
        return torch.cat(list(parts))[rows]
    if isinstance(first, dict) and all(
        isinstance(one, dict) and one.keys() == first.keys() for one in parts
    ):
        found = {key: concatenate_stacked([one[key] for one in parts], rows) for key in first}
        return None if any(each is None for each in found.values()) else found
    if isinstance(first, tuple) and all(
        isinstance(one, tuple) and len(one) == len(first) for one in parts
    ):
        columns = tuple(concatenate_stacked(column, rows) for column in zip(*parts))
        return None if any(each is None for each in columns) else columns
    return None


def _column(values: Sequence[Any], names: Sequence[str], policy: ReadPolicy, key: str) -> Any:
    """Stack one field of every sample."""
    if isinstance(values[0], dict) or (isinstance(values[0], tuple) and not _is_numbers(values[0])):
        return stack(values, names, policy)
    tensors = [_tensor(value, name, key) for value, name in zip(values, names)]
    tensors = [_limit_length(tensor, name, policy) for tensor, name in zip(tensors, names)]
    if len({tensor.shape for tensor in tensors}) == 1:
        return torch.stack(tensors)
    for tensor, name in zip(tensors, names):
        if tensor.dim() != 1:
            raise DataError(
                name,
                f"{key} has shape {tuple(tensor.shape)}, {names[0]} has {tuple(tensors[0].shape)}",
                "Only rows of tokens are padded: give every sample one shape.",
            )
    if key in TARGET_KEYS and tensors[0].is_floating_point():
        lengths = sorted({len(tensor) for tensor in tensors})
        raise DataError(
            names[0],
            f"{key} are floats of {lengths[0]} to {lengths[-1]} in a row, and no float marks a "
            "target that does not count",
            "Pad them in the dataset, and give the loss a mask: targets may be a dict.",
        )
    return torch.nn.utils.rnn.pad_sequence(
        tensors, batch_first=True, padding_value=padding_value(key, policy.pad)
    )


def padding_value(key: str, pad: int) -> int:
    """What the end of a short row is filled with, in a column of this name."""
    if key in TARGET_KEYS:
        return IGNORED
    return 0 if key in MASK_KEYS else pad


def _limit_length(tensor: torch.Tensor, name: str, policy: ReadPolicy) -> torch.Tensor:
    if policy.longest is None or tensor.dim() != 1 or len(tensor) <= policy.longest:
        return tensor
    if policy.too_long == "stop":
        raise _too_long(name, len(tensor), policy.longest)
    return tensor[: policy.longest]


def _too_long(name: str, length: int, longest: int) -> DataError:
    return DataError(
        name,
        f"has {length} tokens and the longest allowed is {longest}",
        f"Use longest={length}, or cut what is over: too_long='cut'.",
    )


def _tensor(value: Any, name: str, key: str) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise DataError(
            name,
            f"{key} is {type(value).__name__}, not numbers",
            "Tokenise it, or leave it out of the sample.",
        )
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)  # torch supports few operations on wider unsigned types
    if array.dtype == np.float64 and not isinstance(value, (np.ndarray, np.generic)):
        array = array.astype(np.float32)  # a plain Python number has no width of its own
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _check_same_structure(samples: Sequence[Any], names: Sequence[str]) -> None:
    """Refuse samples of different structure."""
    expected = _structure(samples[0])
    for sample, name in zip(samples, names):
        if _structure(sample) != expected:
            raise DataError(
                name,
                f"is {_structure(sample)} and {names[0]} is {expected}",
                "Give every sample the same parts.",
            )


def _structure(sample: Any) -> str:
    if isinstance(sample, dict):
        return f"a dict of {', '.join(map(str, sample))}"
    if isinstance(sample, (tuple, list)) and not _is_numbers(sample):
        return f"{len(sample)} parts"
    return "one tensor"


def _is_numbers(value: Any) -> bool:
    """Whether a list is itself a row of numbers, as token ids often come."""
    return isinstance(value, list) and all(isinstance(part, (int, float)) for part in value)
