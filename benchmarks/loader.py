"""Loading, measured: tokens per second from a memory-mapped file, beside torch's own DataLoader.

    python benchmarks/loader.py [--tokens 50000000] [--length 1024] [--size 32] [--seconds 3]

Each row reads the same windows of the same file in a shuffled order, on this machine, one after the
other. The ratio is to the fastest of torch's loaders, with the dataset most people write: a memmap,
a window and its shift.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from stepladder.data import Order, TokenFile, batches


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
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        np.random.default_rng(0).integers(0, 50_000, options.tokens, np.uint16).tofile(path)
        rates = {name: rate(make, options) for name, make in loaders(path, options).items()}
    best = max(value for name, value in rates.items() if name.startswith("torch"))
    print(f"{'loader':<34}{'M tokens/s':>12}{'ratio':>8}")
    for name, value in rates.items():
        print(f"{name:<34}{value / 1e6:>12.1f}{value / best:>8.2f}")
    print(f"{'order of 10^12 samples':<34}{order_rate() / 1e6:>12.1f} M lookups/s")


def loaders(
    path: Path, options: argparse.Namespace
) -> dict[str, Callable[[], Iterator[torch.Tensor]]]:
    source, plain, size = TokenFile(path, options.length), Plain(path, options.length), options.size
    documents = TokenFile(path, options.length, document_end=0)

    def ours(source: TokenFile, workers: int | str) -> Iterator[torch.Tensor]:
        with batches(source, size=size, workers=workers) as feed:
            for batch in feed:
                yield batch.targets

    def torchs(workers: int) -> Iterator[torch.Tensor]:
        while True:
            for _, targets in DataLoader(plain, size, shuffle=True, num_workers=workers):
                yield targets

    return {
        "stepladder, in the step": lambda: ours(source, 0),
        "stepladder, 1 thread (default)": lambda: ours(source, "auto"),
        "stepladder, packed documents": lambda: ours(documents, "auto"),
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


def order_rate(count: int = 1 << 20) -> float:
    began = time.perf_counter()
    Order(10**12).indices(np.arange(count))
    return count / (time.perf_counter() - began)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=50_000_000)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
