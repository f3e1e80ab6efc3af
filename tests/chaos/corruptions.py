"""Random damage to a checkpoint's files: all of it is noticed, none of it loaded.

    python -m tests.chaos.corruptions [--cases 1000] [--seed 0] [--out FILE.json]

Two real ranks write two checkpoints of a run, once with each hash. Each case damages the newer one
in one way, in one of ten cases the older one too, and loads the folder into a run that stands
elsewhere. It counts as right only where the damage is reported in one line, the run goes on from
the older checkpoint with exactly its numbers, and, where none is whole, nothing of the run was
touched.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch

from stepladder.checkpoint import hash_bytes, verify_checkpoint
from stepladder.checkpoint import hashing as digest
from stepladder.checkpoint.hashing import BLAKE3, SHA256
from stepladder.errors import RecordError
from stepladder.train import climb
from tests.ranks import run as on_ranks

Harm = Callable[[Path, random.Random, Path], None]  # a checkpoint, chance, other checkpoints
OLDER, NEWER = "step-000002", "step-000004"


def module(seed: int, width: int = 12) -> torch.nn.Module:
    torch.manual_seed(seed)
    linear = torch.nn.Linear
    return torch.nn.Sequential(linear(8, width), torch.nn.Tanh(), linear(width, 5))


def start(plan: str, seed: int, width: int = 12):
    return climb(
        module(seed, width), loss="cross_entropy", optimizer="adamw lr=0.1", plan=plan, device="cpu"
    )


def write(folder: str, seed: int, width: int, hash_name: str) -> None:
    """Four steps on two ranks, and a checkpoint after every second."""
    installed = digest.blake3
    if hash_name == SHA256:
        digest.blake3 = None  # as on a machine that lacks it
    try:
        write_run(folder, start("fp32 zero3 micro=2", seed, width))
    finally:
        digest.blake3 = installed


def write_run(folder: str, run) -> None:
    draw = torch.Generator().manual_seed(run.world.place.rank)
    for step in range(1, 5):
        random.random()  # a generator that moves, as a user's would
        batch = torch.randn(4, 8, generator=draw), torch.randint(0, 5, (4,), generator=draw)
        run.step(batch, rows="rank").read()
        if step % 2 == 0:
            run.save(folder)
    run.world.close()


@dataclass(frozen=True)
class Material:
    """What the cases are made from."""

    run: Path  # a run's folder with two checkpoints
    others: Path  # checkpoints of another model

    @classmethod
    def write(cls, root: Path, hash_name: str) -> Material:
        for name, seed, width in (("run", 0, 12), ("others", 5, 16)):
            on_ranks(write, 2, str(root / name), seed, width, hash_name, timeout_seconds=120)
        return cls(root / "run", root / "others")


def tensors_of(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors"))


def flip(file: Path, chance: random.Random, first: int = 0, last: int | None = None) -> None:
    data = bytearray(file.read_bytes())
    data[chance.randrange(first, last or len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


def flip_data(path: Path, chance: random.Random, others: Path) -> None:
    file = chance.choice(tensors_of(path))
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    flip(file, chance, header)


def flip_header(path: Path, chance: random.Random, others: Path) -> None:
    file = chance.choice(tensors_of(path))
    flip(file, chance, 0, 8 + int.from_bytes(file.read_bytes()[:8], "little"))


def flip_manifest(path: Path, chance: random.Random, others: Path) -> None:
    flip(path / "manifest.json", chance)


def flip_marker(path: Path, chance: random.Random, others: Path) -> None:
    flip(path / "committed", chance)


def truncate(path: Path, chance: random.Random, others: Path) -> None:
    file = chance.choice(sorted(path.iterdir()))
    data = file.read_bytes()
    file.write_bytes(data[: chance.randrange(len(data))])


def empty(path: Path, chance: random.Random, others: Path) -> None:
    chance.choice(sorted(path.iterdir())).write_bytes(b"")


def append(path: Path, chance: random.Random, others: Path) -> None:
    file = chance.choice(sorted(path.iterdir()))
    file.write_bytes(file.read_bytes() + chance.randbytes(chance.randrange(1, 9)))


def blank(path: Path, chance: random.Random, others: Path) -> None:
    """A stretch of zeros, as a lost block of a disk reads."""
    file = chance.choice(sorted(path.iterdir()))
    data = bytearray(file.read_bytes())
    first = chance.randrange(len(data))
    data[first : first + 64] = bytes(len(data[first : first + 64]))
    file.write_bytes(data)


def delete(path: Path, chance: random.Random, others: Path) -> None:
    chance.choice(sorted(path.iterdir())).unlink()


def delete_half(path: Path, chance: random.Random, others: Path) -> None:
    files = sorted(path.iterdir())
    for file in chance.sample(files, chance.randrange(2, len(files))):
        file.unlink()


def swap(path: Path, chance: random.Random, others: Path) -> None:
    one, other = chance.sample(tensors_of(path), 2)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def stale(path: Path, chance: random.Random, others: Path) -> None:
    """A file of another step of the same run under this one's name."""
    sibling = next(p for p in others.parent.joinpath("run").glob("step-*") if p.name != path.name)
    file = chance.choice([*tensors_of(path), path / "manifest.json", path / "committed"])
    shutil.copy(sibling / file.name, file)


def foreign(path: Path, chance: random.Random, others: Path) -> None:
    """A file of another model's checkpoint."""
    file = chance.choice(sorted(path.iterdir()))
    shutil.copy(others / path.name / file.name, file)


def pickled(path: Path, chance: random.Random, others: Path) -> None:
    """A pickle in place of a file of tensors."""
    torch.save({"weight": torch.zeros(3)}, chance.choice(tensors_of(path)))


def folder(path: Path, chance: random.Random, others: Path) -> None:
    file = chance.choice(sorted(path.iterdir()))
    file.unlink()
    file.mkdir()


def escape(path: Path, chance: random.Random, others: Path) -> None:
    """A manifest that names a file outside, with the right hash of itself."""
    text = (path / "manifest.json").read_text()
    name = chance.choice(tensors_of(path)).name
    there = chance.choice(["../" + OLDER + "/", "/etc/", "a/../../"]) + name
    seal(path, text.replace(f'"{name}"', f'"{there}"'))


def relabel(path: Path, chance: random.Random, others: Path) -> None:
    """A manifest that names another hash than the one a file's digest is of."""
    found = json.loads((path / "manifest.json").read_text())
    file = found["files"][chance.choice(sorted(found["files"]))]
    file["hash"] = chance.choice([{BLAKE3: SHA256, SHA256: BLAKE3}[file["hash"]], "md5", "", None])
    seal(path, json.dumps(found))


def seal(path: Path, text: str) -> None:
    """Another manifest, with the right hash of itself."""
    (path / "manifest.json").write_text(text)
    (path / "committed").write_text(hash_bytes(text.encode(), SHA256) + "\n")


HARMS: dict[str, Harm] = {
    "bit flipped in the data": flip_data,
    "bit flipped in a header": flip_header,
    "bit flipped in the manifest": flip_manifest,
    "bit flipped in the marker": flip_marker,
    "file truncated": truncate,
    "file emptied": empty,
    "bytes appended": append,
    "block of zeros": blank,
    "file deleted": delete,
    "half of the files deleted": delete_half,
    "two files swapped": swap,
    "file of another step": stale,
    "file of another model": foreign,
    "pickle in a file's place": pickled,
    "folder in a file's place": folder,
    "name that leaves the folder": escape,
    "another hash's name": relabel,
}


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() if file.is_file() else b"" for file in path.iterdir()}


def damage(path: Path, kind: str, chance: random.Random, others: Path) -> None:
    """Harm a checkpoint until it is harmed: a swap of two equal files, say, changes nothing."""
    before = contents(path)
    while contents(path) == before:
        HARMS[kind](path, chance, others)


def numbers(run) -> list[torch.Tensor]:
    state = [v for entry in run.optimizer.state.values() for v in entry.values()]
    return [t.detach().clone() for t in (*run.module.parameters(), *state)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other))


class Trial:
    """Loads damaged folders into a run, and says what went wrong, if anything did."""

    def __init__(self, material: Material) -> None:
        self.material = material
        reference = start("fp32", 1)
        reference.load(material.run / OLDER)
        self.older = numbers(reference)

    def case(self, root: Path, kind: str, seed: int) -> str:
        """What is wrong with how this damage was met; empty: nothing."""
        chance = random.Random(seed)
        shutil.copytree(self.material.run, root)
        damage(root / NEWER, kind, chance, self.material.others)
        both = chance.random() < 0.1
        if both:
            damage(root / OLDER, chance.choice(list(HARMS)), chance, self.material.others)
        try:
            verify_checkpoint(root / NEWER)
        except RecordError as found:
            if "\n" in str(found):
                return "told in several lines"
        else:
            return "not noticed by verify"
        run = start("fp32", 2)
        before = numbers(run)
        try:
            loaded = run.load(root)
        except RecordError:
            return "" if both and same(numbers(run), before) else "the good one was not used"
        if both or loaded.name != OLDER:
            return f"{loaded.name} was loaded"
        if not same(numbers(run), self.older):
            return "other numbers than the good one's"
        told = any(NEWER in event and OLDER in event for event in run.events)
        return "" if told else "gone on without a word"


def run_cases(cases: int, seed: int, root: Path) -> dict[str, object]:
    trials = [Trial(Material.write(root / name, name)) for name in (BLAKE3, SHA256)]
    kinds, wrong = list(HARMS), []
    tried: Counter[str] = Counter()
    for number in range(cases):
        kind = kinds[number % len(kinds)]
        case = root / f"case-{number}"
        trial = trials[number // len(kinds) % 2]
        problem = trial.case(case, kind, seed * 1_000_003 + number)
        shutil.rmtree(case)
        tried[kind] += 1
        if problem:
            wrong.append(f"case {number}, {kind}: {problem}")
        if number % 100 == 99 and sys.stderr.isatty():
            print(f"{number + 1} of {cases}", file=sys.stderr)
    return {"cases": cases, "seed": seed, "kinds": dict(tried), "wrong": wrong}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = run_cases(options.cases, options.seed, Path(folder))
    found |= {
        "date": date.today().isoformat(), "machine": platform.machine(),
        "torch": torch.__version__, "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip
    text = json.dumps(found, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
