"""What was measured on a machine and replaces what the planner would assume of it.

Every field may be None, which means: not measured, assume the usual. `stepladder calibrate` writes
one; runs refine it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from stepladder.errors import RecordError


@dataclass(frozen=True, slots=True)
class Calibration:
    device: str = ""  # as the device table names it
    matrix_flops_per_second: Mapping[str, float] = field(default_factory=dict)  # by compute type
    attention_flops_per_second: float | None = None  # forward, of the kernel that was used
    bandwidth_bytes_per_second: float | None = None  # reached by element-wise kernels
    launch_seconds: float | None = None  # of the host, per kernel
    inside_bytes_per_second: float | None = None  # of a collective inside a node
    between_bytes_per_second: float | None = None  # of a collective between nodes, per node
    context_bytes: int | None = None  # device memory of an idle process

    def save(self, path: str | Path) -> None:
        try:
            Path(path).write_text(json.dumps(asdict(self), indent=2) + "\n")
        except OSError as refused:
            raise RecordError(
                "calibration",
                f"{path} cannot be written ({refused.strerror})",
                "Name another file.",
            ) from refused

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        remedy = "Write it again with 'stepladder calibrate'."
        try:
            table: Any = json.loads(Path(path).read_text())
        except (OSError, ValueError) as broken:
            raise RecordError(
                "calibration", f"{path} cannot be read ({broken})", remedy
            ) from broken
        known = {f.name for f in fields(cls)}
        if not isinstance(table, dict) or not known >= set(table):
            raise RecordError("calibration", f"{path} holds something else", remedy)
        return cls(**table)
