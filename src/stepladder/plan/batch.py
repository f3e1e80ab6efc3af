"""How many sequences one optimizer step sees, and in how many passes.

The identity `sequences = micro × passes × data ways` holds always. Any of the three may be left
open; `settle` fills in the rest or says which sizes would work.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.errors import PlanError


@dataclass(frozen=True, slots=True)
class Batch:
    """How a global batch is split: sequences, rows of a micro-batch, micro-batches a step."""

    sequences: int | None = None  # in one optimizer step, over all ranks
    micro: int | None = None  # in one forward pass of one rank
    passes: int | None = None  # forward-backward passes of each rank before one step

    def settle(self, data_ways: int) -> Batch:
        """All three numbers, checked against each other."""
        sequences, micro, passes = self.sequences, self.micro, self.passes
        if sequences is None:
            micro, passes = micro or 1, passes or 1
            return Batch(micro * passes * data_ways, micro, passes)
        if micro is None:
            micro = self._divide("batch.sequences", sequences, (passes or 1) * data_ways)
        per_pass = micro * data_ways
        if sequences % per_pass:
            raise self._misfit(sequences, micro, data_ways)
        if passes is not None and passes * per_pass != sequences:
            raise PlanError(
                "batch.accumulate",
                f"{passes} passes of {per_pass} make {passes * per_pass}, not batch={sequences}",
                f"Use accumulate={sequences // per_pass} or leave it out.",
            )
        return Batch(sequences, micro, sequences // per_pass)

    @staticmethod
    def _divide(field: str, sequences: int, ways: int) -> int:
        if sequences % ways or sequences < ways:
            below = sequences // ways * ways
            near = f"{below} or {below + ways}" if below else f"{ways}"
            raise PlanError(
                field,
                f"{sequences} does not divide by {ways} (passes x data ranks)",
                f"Nearest that do: {near}.",
            )
        return sequences // ways

    @staticmethod
    def _misfit(sequences: int, micro: int, data_ways: int) -> PlanError:
        per_pass = micro * data_ways
        below = sequences // per_pass * per_pass
        near = f"{below} or {below + per_pass}" if below else f"{per_pass}"
        return PlanError(
            "batch.sequences",
            f"{sequences} does not divide into passes of {per_pass} "
            f"({micro} per micro-batch x {data_ways} data ranks)",
            f"Nearest that do: {near}.",
        )

    def problems(self) -> list[PlanError]:
        named = {"sequences": self.sequences, "micro": self.micro, "accumulate": self.passes}
        return [
            PlanError(f"batch.{name}", f"{value} is not a number of sequences", "Use 1 or more.")
            for name, value in named.items()
            if value is not None and value < 1
        ]


def share(step: int, batch: Batch, data_index: int, data_ways: int) -> list[range]:
    """The positions this data rank reads in one step, one range a pass.

    Pass p takes the p-th stretch of the global batch and the ranks divide that stretch, so the
    global batch is the same set of positions on any number of ranks.
    """
    settled = batch.settle(data_ways)
    assert settled.sequences and settled.micro and settled.passes
    first = step * settled.sequences + data_index * settled.micro
    stride = settled.micro * data_ways
    return [
        range(first + p * stride, first + p * stride + settled.micro) for p in range(settled.passes)
    ]


def uneven_share(size: int, data_index: int, data_ways: int) -> range:
    """The rows of a data rank of a batch that does not divide: shares differ by at most one."""
    if size < data_ways:
        raise PlanError(
            "batch",
            f"{size} rows are fewer than the {data_ways} ranks that share them",
            f"Use at most {size} data ranks, or a batch of {data_ways} or more.",
        )
    least, extra = divmod(size, data_ways)
    first = data_index * least + min(data_index, extra)
    return range(first, first + least + (data_index < extra))
