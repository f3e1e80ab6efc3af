"""The global batch: its size, the micro-batch size, and how many micro-batches a rank accumulates.

`sequences = micro × micro_batches × data ranks` always holds. Any of the first three may be left
open: `settle` computes it, or says which sizes would work.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from stepladder.errors import PlanError


@dataclass(frozen=True, slots=True)
class BatchSplit:
    """How a global batch is split: sequences, rows of a micro-batch, micro-batches a step."""

    sequences: int | None = None  # in one optimizer step, over all ranks
    micro: int | None = None  # sequences in one micro-batch of one rank
    micro_batches: int | None = None  # that each rank accumulates before one step

    def settle(self, data_ranks: int) -> BatchSplit:
        """Fill in the open numbers and check all three against each other."""
        sequences, micro, micro_batches = self.sequences, self.micro, self.micro_batches
        if sequences is None:
            micro, micro_batches = micro or 1, micro_batches or 1
            return BatchSplit(micro * micro_batches * data_ranks, micro, micro_batches)
        if micro is None:
            micro = self._divide("batch.sequences", sequences, (micro_batches or 1) * data_ranks)
        together = micro * data_ranks
        if sequences % together:
            raise self._misfit(sequences, micro, data_ranks)
        if micro_batches is not None and micro_batches * together != sequences:
            raise self._disagreement(sequences, f"not batch={sequences}", data_ranks)
        return BatchSplit(sequences, micro, sequences // together)

    def check_given(self, data_ranks: int) -> None:
        """Refuse three numbers that disagree; ranks may have unequal shares of the batch."""
        rows, micro, given = self.sequences, self.micro, self.micro_batches
        if rows and micro and given and passes(rows, micro, data_ranks) != given:
            raise self._disagreement(rows, f"not batch={rows}", data_ranks)

    def check_rows(self, rows: int, data_ranks: int) -> None:
        """Refuse a batch that is no step of so many micro-batches: only the last may be smaller."""
        micro, given = self.micro, self.micro_batches
        if micro and given and passes(rows, micro, data_ranks) > given:
            raise self._disagreement(rows, f"and the batch has {rows} rows", data_ranks)

    def _disagreement(self, rows: int, said: str, data_ranks: int) -> PlanError:
        micro = self.micro or rows // (data_ranks * (self.micro_batches or 1))
        made = micro * (self.micro_batches or 1) * data_ranks
        return PlanError(
            "batch.accumulate",
            f"{self.micro_batches} micro-batches of {micro} x {data_ranks} data ranks make {made}, "
            f"{said}",
            f"Use accumulate={passes(rows, micro, data_ranks)} or leave it out.",
        )

    def check_slices(self, rows: int, slices: int, data_ranks: int) -> None:
        """Refuse micro-batches that are not the slices of a batch of so many rows."""
        if self.micro not in (None, rows // slices):
            raise self.no_slice(rows, slices)
        if self.micro_batches not in (None, slices // data_ranks):
            raise PlanError(
                "batch.accumulate",
                f"a slice is one micro-batch, and each of {data_ranks} data ranks computes "
                f"{slices // data_ranks} of {slices} slices, not {self.micro_batches}",
                f"Use accumulate={slices // data_ranks} or leave it out.",
            )

    def no_slice(self, rows: int, slices: int) -> PlanError:
        return PlanError(
            "batch.micro",
            f"a slice is one micro-batch, and batch={rows} in {slices} slices has slices of "
            f"{rows // slices}, not {self.micro}",
            f"Use micro={rows // slices} or leave it out.",
        )

    def cut(self, slices: int) -> BatchSplit:
        """Fill in what a cut into so many slices, each one micro-batch, says of the batch."""
        if self.sequences is None:
            micro = self.micro or 1
            return BatchSplit(micro * slices, micro, self.micro_batches)
        return BatchSplit(self.sequences, self.sequences // slices, self.micro_batches)

    @staticmethod
    def _divide(field: str, sequences: int, ways: int) -> int:
        if sequences % ways or sequences < ways:
            raise PlanError(
                field,
                f"{sequences} does not divide by {ways} (micro-batches x data ranks)",
                f"Nearest that do: {nearest_multiples(sequences, ways)}.",
            )
        return sequences // ways

    @staticmethod
    def _misfit(sequences: int, micro: int, data_ranks: int) -> PlanError:
        together = micro * data_ranks
        return PlanError(
            "batch.sequences",
            f"{sequences} does not divide by {together} "
            f"(micro-batches of {micro} x {data_ranks} data ranks)",
            f"Nearest that do: {nearest_multiples(sequences, together)}.",
        )

    def problems(self) -> list[PlanError]:
        named = {"sequences": self.sequences, "micro": self.micro, "accumulate": self.micro_batches}
        return [
            PlanError(f"batch.{name}", f"{value} is not a number of sequences", "Use 1 or more.")
            for name, value in named.items()
            if value is not None and value < 1
        ]


def passes(rows: int, micro: int, data_ranks: int) -> int:
    """Micro-batches of the rank with the most rows."""
    return ceil(ceil(rows / data_ranks) / micro)


def nearest_multiples(number: int, of: int) -> str:
    """The multiples next to a number that is none, in words."""
    below = number // of * of
    return f"{below} or {below + of}" if below else f"{of}"


def rank_positions(step: int, batch: BatchSplit, data_index: int, data_ranks: int) -> list[range]:
    """The dataset positions that this data rank reads in one step: one range per micro-batch.

    The p-th micro-batches of all ranks are the p-th chunk of the global batch, so the global batch
    is the same set of positions on any number of ranks.
    """
    settled = batch.settle(data_ranks)
    assert settled.sequences and settled.micro and settled.micro_batches
    first = step * settled.sequences + data_index * settled.micro
    stride = settled.micro * data_ranks
    return [
        range(first + p * stride, first + p * stride + settled.micro)
        for p in range(settled.micro_batches)
    ]


def uneven_rank_rows(size: int, data_index: int, data_ranks: int) -> range:
    """One rank's rows of a batch that does not divide evenly: ranks differ by at most a row.

    Of a batch with fewer rows than ranks the last ranks have none.
    """
    least, extra = divmod(size, data_ranks)
    first = data_index * least + min(data_index, extra)
    return range(first, first + least + (data_index < extra))
