"""Loading, measured: tokens per second, beside torch's own DataLoader; and the time to resume.

    python benchmarks/data/loader.py [--tokens 50000000] [--length 1024] [--size 32] [--seconds 3]

Each row reads the same windows of the same tokens in a shuffled order, on this machine, on one
core, one after the other. The ratio is to the fastest of torch's loaders, with the dataset most
people write: a memmap, a window and its shift. Then, for a sparse file of 200 GB and for smaller
ones: the time from opening the source to the first batch of a run that resumes at some position.
Results go to benchmarks/results/loader.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, Dataset

from stepladder.data import SampleOrder, TokenFile, TokenShards, batches
from stepladder.data.mixture import Mixture

RESULTS = Path(__file__).parents[1] / "results" / "loader.json"
VOCABULARY = 50_000
DOCUMENT = 700  # tokens of each row of the table, as documents of web text have on average
LEAST_RATE, MOST_SECONDS = 20e6, 0.050  # what is promised of a memory map


class Plain(Dataset):
    """What a hand-written loop uses."""

    def __init__(self, path: Path, length: int) -> None:
        self.tokens, self.length = np.memmap(path, np.uint16, "r"), length

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * self.length
        window = torch.from_numpy(self.tokens[start : start + self.length + 1].astype(np.int64))
        return window[:-1], window[1:]


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), options.tokens)
        rates = {name: rate(make, options) for name, make in loaders(Path(folder), options).items()}
        resumes = [resume(Path(folder), size, options) for size in options.gigabytes]
    show(rates, resumes)
    mapped = min(value for name, value in rates.items() if name in MAPPED)
    slowest = max(row["seconds"] for row in resumes)
    found = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.processor() or platform.machine()}, one core",
        "torch": torch.__version__,
        "tokens": options.tokens,
        "length": options.length,
        "size": options.size,
        "tokens per second": {name: round(value) for name, value in rates.items()},
        "resume": resumes,
        "holds": mapped >= LEAST_RATE and slowest <= MOST_SECONDS,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1) + "\n")


def write(folder: Path, count: int) -> None:
    """The same tokens as one file, as 16 shards, and as a table of documents."""
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, count, np.uint16)
    tokens.tofile(folder / "tokens.bin")
    (folder / "shards").mkdir()
    for number, part in enumerate(np.array_split(tokens, 16)):
        part.tofile(folder / "shards" / f"{number:02}.bin")
    rows = count // DOCUMENT
    ids = pa.array(tokens[: rows * DOCUMENT].astype(np.int32))
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * DOCUMENT)
    table = pa.table({"input_ids": pa.ListArray.from_arrays(offsets, ids)})
    pq.write_table(table, folder / "tokens.parquet", row_group_size=1000)
    with pa.ipc.new_stream(folder / "tokens.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)  # as `datasets` saves it


MAPPED = ("stepladder, in the step", "stepladder, 16 shards")


def loaders(
    folder: Path, options: argparse.Namespace
) -> dict[str, Callable[[], Iterator[torch.Tensor]]]:
    path, length, size = folder / "tokens.bin", options.length, options.size
    source, plain = TokenFile(path, length), Plain(path, length)
    documents = TokenFile(path, length, document_end=0)
    shards = TokenShards(folder / "shards", length)
    mix = Mixture([source, shards], [0.7, 0.3])

    def ours(source: Any, workers: int | str) -> Iterator[torch.Tensor]:
        with batches(source, size=size, workers=workers) as feed:
            for batch in feed:
                yield batch.targets

    def table(name: str, **settings: bool) -> Iterator[torch.Tensor]:
        return ours(TokenShards(folder / name, length, **settings), 0)

    def torchs(workers: int) -> Iterator[torch.Tensor]:
        while True:
            for _, targets in DataLoader(plain, size, shuffle=True, num_workers=workers):
                yield targets

    return {
        "stepladder, in the step": lambda: ours(source, 0),
        "stepladder, 1 thread (default)": lambda: ours(source, "auto"),
        "stepladder, packed documents": lambda: ours(documents, 0),
        "stepladder, 16 shards": lambda: ours(shards, 0),
        "stepladder, a mixture": lambda: ours(mix, 0),
        "stepladder, Arrow": lambda: table("tokens.arrow"),
        "stepladder, Parquet": lambda: table("tokens.parquet"),
        "stepladder, Parquet, packed": lambda: table("tokens.parquet", packed=True),
        "torch DataLoader, in the step": lambda: torchs(0),
        "torch DataLoader, 2 processes": lambda: torchs(2),
    }


def rate(make: Callable[[], Iterator[torch.Tensor]], options: argparse.Namespace) -> float:
    """Tokens per second once the first batch is there."""
    feed = make()
    next(feed)
    began, tokens = time.perf_counter(), 0
    while time.perf_counter() - began < options.seconds:
        tokens += next(feed).numel()
    return tokens / (time.perf_counter() - began)


def resume(folder: Path, gigabytes: float, options: argparse.Namespace) -> dict[str, Any]:
    """The slowest of several positions, each in a source that was just opened."""
    path = folder / "sparse.bin"
    with open(path, "wb") as file:
        file.truncate(int(gigabytes * 1e9) // 2 * 2)
    samples = (path.stat().st_size // 2 - 1) // options.length
    seconds = []
    for share in (0, 0.1, 0.37, 0.5, 0.93, 1, 2.5):  # 2.5: in the third epoch
        began = time.perf_counter()
        source = TokenShards(path, options.length, document_end=0, vocabulary=VOCABULARY)
        with batches(source, size=options.size, start=int(samples * share), workers=0) as feed:
            next(feed)
        seconds.append(time.perf_counter() - began)
    path.unlink()
    return {
        "gigabytes": gigabytes,
        "seconds": round(max(seconds), 5),
        "median": round(statistics.median(seconds), 5),
    }


def show(rates: dict[str, float], resumes: list[dict[str, Any]]) -> None:
    best = max(value for name, value in rates.items() if name.startswith("torch"))
    print(f"{'loader':<34}{'M tokens/s':>12}{'ratio':>8}")
    for name, value in rates.items():
        print(f"{name:<34}{value / 1e6:>12.1f}{value / best:>8.2f}")
    print(f"{'order of 10^12 samples':<34}{order_rate() / 1e6:>12.1f} M lookups/s")
    for row in resumes:
        what = f"resume in {row['gigabytes']:g} GB, documents packed"
        print(f"{what:<42}{row['seconds'] * 1e3:>7.1f} ms (slowest of 7 positions)")


def order_rate(count: int = 1 << 20) -> float:
    began = time.perf_counter()
    SampleOrder(10**12).indices(np.arange(count))
    return count / (time.perf_counter() - began)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=50_000_000)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.2, 20.0, 200.0])
    parser.add_argument("--json", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
