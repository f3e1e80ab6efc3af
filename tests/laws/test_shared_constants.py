"""A number that a run and its forecast share stands in one module, and both import it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stepladder.plan import shared_constants
from stepladder.plan.shared_constants import DDP_BUCKET_BYTES

ROOT = Path(__file__).parents[2] / "src" / "stepladder"
HOME = ROOT / "plan" / "shared_constants.py"
HOMES = {  # shared constants that are parts of a value have that value's file as their home
    **dict.fromkeys(
        (
            "FUSED_VOCABULARY",
            "LOGIT_CHUNK",
            "LARGE_BLOCK",
            "DDP_BUCKET_BYTES",
            "PARAMETER_BUCKET_BYTES",
            "PREFETCHED_BLOCKS",
            "MOMENT_GROUP",
        ),
        HOME,
    ),
    "AXES": ROOT / "plan" / "layout.py",
    "COPIES": ROOT / "plan" / "layout.py",
    "SLICES": ROOT / "plan" / "layout.py",
    "BYTES": ROOT / "plan" / "precision.py",
    "MOMENTS": ROOT / "plan" / "optimizer.py",
    "MARGIN": ROOT / "planner" / "forecast.py",
}
ROOMS = ("plan", "planner", "workload", "model", "loss", "kernels", "rungs", "train")
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
# Small numbers occur for many reasons, and so does 64 MiB; the others only for one.
VALUES = {
    getattr(shared_constants, name): name
    for name, home in HOMES.items()
    if home == HOME and getattr(shared_constants, name) not in (*range(4097), 2**26)
}


def constants(source: str) -> Iterator[tuple[str, ast.expr]]:
    """Names in capitals that a module assigns, with what they are."""
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and target.id.isupper():
                yield target.id, node.value


def number(value: ast.expr) -> float | None:
    """What an expression of literals comes to."""
    literals = (ast.Expression, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    if not all(isinstance(node, literals) for node in ast.walk(value)):
        return None
    found = eval(compile(ast.Expression(value), "constant", "eval"))
    return found if isinstance(found, int | float) else None


def second_homes(path: Path, source: str) -> list[str]:
    """Shared constants that this file defines again, under their name or another."""
    found = []
    for name, value in constants(source):
        shared = name if name in HOMES else VALUES.get(number(value))
        if shared and HOMES[shared] != path:
            found.append(f"{name} in {path.name} is {shared} of {HOMES[shared].name}")
    return found


@pytest.mark.parametrize("name", HOMES)
def test_a_shared_constant_is_defined_at_home(name):
    assert name in dict(constants(HOMES[name].read_text()))


def test_no_shared_constant_has_a_second_home():
    assert [line for path in FILES for line in second_homes(path, path.read_text())] == []


@pytest.mark.parametrize("line", ["LARGE_BLOCK = 3", "VOCABULARY = 2**15", "CHUNK: int = 8_192"])
def test_a_planted_copy_is_seen(line):
    assert second_homes(ROOT / "rungs" / "climb.py", line)


def test_torch_fills_buckets_of_the_size_that_is_forecast(tmp_path):
    dist.init_process_group("gloo", f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        assert DistributedDataParallel(nn.Linear(2, 2)).bucket_bytes_cap == DDP_BUCKET_BYTES
    finally:
        dist.destroy_process_group()
