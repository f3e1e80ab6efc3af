"""A batch: one rank's rows of a step's global batch, and their position in the run.

The valid targets of each row are counted on the CPU before the tensors move to the device, so that
weighting micro-batches and ranks by their tokens never synchronises with the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from stepladder.errors import DataError

from .packing import IGNORED
from .streams.stream_place import StreamPlace

TARGET_KEYS = ("labels", "targets")


class RowCounts(tuple[int, ...]):
    """Numbers by row; their sum is taken once, and a step asks for it several times."""

    @classmethod
    def equal(cls, number: int, rows: int) -> RowCounts:
        made = cls((number,) * rows)
        made.total = number * rows
        return made

    @cached_property
    def total(self) -> int:
        return sum(self)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """This rank's rows of one global batch."""

    inputs: Any  # a tensor, or a tuple or dict of tensors
    targets: Any  # None if the samples have none
    position: int  # of the global batch's first sample in the run
    size: int  # samples in the global batch, over all ranks
    valid_by_row: RowCounts  # targets other than -100, for each row here
    leading_by_row: RowCounts  # 1 if a row's first target is valid
    skipped: tuple[str, ...] = ()  # samples that could not be read, and their substitutes
    most_rows: int | None = None  # on any rank; None: rows are spread evenly
    idle: bool = False  # this rank has no rows, and a stand-in that counts for nothing
    weight_by_row: tuple[float, ...] | None = None  # in the loss; None: by valid targets
    pad: int | None = None  # that fills short rows, where rows may be of unequal length
    place: StreamPlace | None = None  # in a stream, of the sample after this batch
    content: int = 0  # of a stream: a hash of the global batch, to compare between ranks

    @classmethod
    def of(
        cls,
        samples: Any,
        *,
        position: int,
        size: int,
        skipped: tuple[str, ...] = (),
        most_rows: int | None = None,
        idle: bool = False,
    ) -> Batch:
        """Make a batch of stacked samples, separating inputs and targets.

        A pair is inputs and targets. A dict with labels is all inputs, as Hugging Face models
        expect, and its labels are also the targets. Anything else is inputs without targets.
        """
        inputs, targets = samples, None
        if isinstance(samples, tuple) and len(samples) == 2:
            inputs, targets = samples
        elif isinstance(samples, dict):
            targets = next((samples[key] for key in TARGET_KEYS if key in samples), None)
        valid, leading = _count_valid(inputs, targets), _count_leading(inputs, targets)
        if idle:
            valid = leading = RowCounts.equal(0, len(valid))
        return cls(inputs, targets, position, size, valid, leading, skipped, most_rows, idle)

    @property
    def num_rows(self) -> int:
        return len(self.valid_by_row)

    @property
    def valid(self) -> int:
        """The number of valid targets on this rank."""
        return self.valid_by_row.total

    @property
    def leading(self) -> int:
        """Rows whose first target is valid: a model that shifts its own labels does not use it."""
        return self.leading_by_row.total

    def rows_of_fullest(self, ways: int) -> int:
        """Rows of the data rank that has most, where `ways` ranks share the global batch."""
        return self.most_rows or -(-self.size // ways)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def narrow(self) -> Batch:
        """The batch with float64 in float32."""
        return self._each(
            lambda tensor: tensor.float() if tensor.dtype == torch.float64 else tensor
        )

    def pin(self) -> Batch:
        """The batch in pinned memory, for asynchronous copies to a device."""
        return self._each(lambda tensor: tensor.pin_memory())

    def copy(self) -> Batch:
        """The batch with every tensor cloned."""
        return self._each(lambda tensor: tensor.clone())

    def rows(self, part: slice) -> Batch:
        """A micro-batch: some of the rows."""
        cut = self._each(
            lambda tensor: tensor[part] if tensor.dim() else tensor,
            lambda value: value[part] if is_by_row(value, self.num_rows) else value,
        )
        return replace(
            cut,
            valid_by_row=RowCounts(self.valid_by_row[part]),
            leading_by_row=RowCounts(self.leading_by_row[part]),
            weight_by_row=self.weight_by_row[part] if self.weight_by_row else None,
        )

    def pick(self, indices: torch.Tensor) -> Batch:
        """These rows, in this order."""
        cut = self._each(
            lambda tensor: tensor[indices.to(tensor.device)] if tensor.dim() else tensor
        )
        chosen = indices.tolist()
        return replace(
            cut,
            valid_by_row=RowCounts(self.valid_by_row[row] for row in chosen),
            leading_by_row=RowCounts(self.leading_by_row[row] for row in chosen),
            weight_by_row=None,
        )

    def exchange(self, old: torch.Tensor, new: torch.Tensor) -> Batch:
        """The batch with one of its tensors exchanged, targets counted anew."""
        other = self._each(lambda tensor: new if tensor is old else tensor)
        return replace(
            other,
            valid_by_row=_count_valid(other.inputs, other.targets),
            leading_by_row=_count_leading(other.inputs, other.targets),
            weight_by_row=None,
        )

    def columns(self, part: slice, *, ahead: int = 0) -> Batch:
        """A chunk of every sequence, as context parallelism cuts it.

        `ahead` is 1 for a model that compares position i with label i + 1 itself: its targets are
        shifted before the cut, since a chunk lacks the label of its last position.
        """
        length = self.length
        # Contiguous, as rows of a whole batch are: losses flatten their targets by `view`.
        cut = self._each(lambda one: one[:, part].contiguous() if one.dim() > 1 else one)
        targets = self.targets[:, part.start + ahead : part.stop + ahead].contiguous()
        share = targets[:1].numel()
        if all(valid == self.targets[:1].numel() for valid in self.valid_by_row):
            # All valid: no need to synchronise with the device.
            valid = RowCounts.equal(share, self.num_rows)
        else:
            valid = _count_valid(self.inputs, targets)
        if missing := min(part.stop, length) - part.start - targets.shape[1]:
            edge = targets.new_full((len(targets), missing, *targets.shape[2:]), IGNORED)
            targets = torch.cat((targets, edge), 1)
        leads = part.start == 0 and ahead == 0
        leading = self.leading_by_row if leads else RowCounts.equal(0, self.num_rows)
        return replace(
            cut,
            targets=targets if ahead else cut.targets,
            valid_by_row=valid,
            leading_by_row=leading,
            weight_by_row=None,
        )

    @property
    def length(self) -> int:
        """The sequence length; raises if the tensors disagree."""
        if not isinstance(self.targets, torch.Tensor) or self.targets.dim() < 2:
            raise DataError(
                "batch", "has no target for each position of a sequence", "Use context=1."
            )
        length = self.targets.shape[1]
        for tensor in self.tensors():
            if tensor.dim() > 1 and tensor.shape[1] != length:
                raise DataError(
                    "batch",
                    f"{tuple(tensor.shape)} is not a row of {length} positions like the targets",
                    "Use context=1, or leave that tensor out.",
                )
        return length

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor once."""
        return list({id(each): each for each in iter_tensors((self.inputs, self.targets))}.values())

    def _each(
        self,
        change: Callable[[torch.Tensor], torch.Tensor],
        plain: Callable[[Any], Any] = lambda value: value,
    ) -> Batch:
        # Labels may be both an input and the targets, and must be copied once.
        changed: dict[int, torch.Tensor] = {}

        def once(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in changed:
                changed[id(tensor)] = change(tensor)
            return changed[id(tensor)]

        return replace(
            self,
            inputs=map_tensors(once, self.inputs, plain),
            targets=map_tensors(once, self.targets, plain),
        )


def map_tensors(
    change: Callable[[torch.Tensor], torch.Tensor],
    value: Any,
    plain: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """Apply a function to every tensor of a nested structure.

    Args:
        plain: applied to a list or tuple that holds no tensor, such as the names of the samples.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: map_tensors(change, part, plain) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        if value and next(iter_tensors(value), None) is None:
            return plain(value)
        return tuple(map_tensors(change, part, plain) for part in value)
    return value


def is_by_row(value: Any, rows: int) -> bool:
    """Whether a list without tensors has one entry for each of so many rows."""
    named = isinstance(value, list) or all(isinstance(one, (str, bytes)) for one in value)
    return named and len(value) == rows


def iter_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor of a nested structure."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, tuple, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from iter_tensors(part)


def _count_valid(inputs: Any, targets: Any) -> RowCounts:
    if not isinstance(targets, torch.Tensor) or not targets.dim():  # one number judges every row
        return RowCounts.equal(1, _rows_of(inputs))
    by_row = targets.reshape(len(targets), -1)
    if targets.dtype.is_floating_point:  # -100 marks ignored targets only among integers
        return RowCounts.equal(by_row.shape[1], len(targets))
    ignored = by_row == IGNORED
    if not ignored.any():  # the common case, and counting by row is ten times slower
        return RowCounts.equal(by_row.shape[1], len(targets))
    return RowCounts((~ignored).sum(dim=1).tolist())


def _rows_of(inputs: Any) -> int:
    return next((len(tensor) for tensor in iter_tensors(inputs) if tensor.dim()), 0)


def _count_leading(inputs: Any, targets: Any) -> RowCounts:
    if not isinstance(targets, torch.Tensor) or targets.dim() != 2:
        return RowCounts.equal(0, _rows_of(inputs))
    return RowCounts((targets[:, 0] != IGNORED).int().tolist())
