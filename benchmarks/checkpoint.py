"""Saving and loading against torch.save and DCP on the same state, and what a save costs training.

    python benchmarks/checkpoint.py [--size 0.5] [--device cpu|cuda] [--cache full|empty]
                                    [--out FILE.json]

All ways write the same tensors (a model and its Adam state) to the same disk, in turns, medians of
several rounds in random order, and keep their last two. `default` is each as it comes: ours hashes
every byte and forces it to the disk, DCP forces, torch.save does neither. `forced` has torch.save
force its file too. `proven` also has it hashed, by the same hash and on all threads, after writing
and before loading, which is what ours does. Ratios above 1 mean ours is faster. `parts` are the
speeds of what a save and a load are made of on this machine: none can be faster than its slowest
part. `floor` is one hash of all bytes and one copy of them, on all threads and without a file: what
proves every byte before it uses any cannot be faster.

`--cache full` first has the system keep other files in all memory but a GiB, as on a machine that
has been at work for a while; `empty` has it forget them all (needs root). Without it the cache is
left as it is.

Why all keep their last two, and why each round has another order: a virtual machine's host may take
memory back that has been free for seconds, and gives it again page by page at several times the
cost of a write. Whoever writes just after others removed a file gets memory that is still there.

The stall is what training waits for a save in the background: the call, and what the next update
waits for the copy; as a share of a save that is waited for. Host memory is the process's own, at
its peak while such a save runs, beside what was forecast for it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import shutil
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import numpy
import psutil
import torch
import torch.distributed.checkpoint as dcp

from stepladder.checkpoint import hashing as digest
from stepladder.checkpoint.hashing import default_hash, hash_files
from stepladder.train import as_batch, climb
from stepladder.train.checkpointing.snapshot import forecast_snapshot


def make(size_gib: float, device: str) -> Any:
    """A run whose parameters and Adam state take about so much."""
    width, layers = 1024, max(1, round(size_gib * 2**30 / (3 * 4 * 1024 * 1024)))
    module = torch.nn.Sequential(
        *(torch.nn.Linear(width, width, bias=False) for _ in range(layers))
    )
    run = climb(module, loss="squared_error", optimizer="adamw lr=1e-4", plan="fp32", device=device)
    run.step((torch.randn(4, width), torch.randn(4, width))).read()
    return run


def state_of(run: Any) -> dict[str, torch.Tensor]:
    named = {f"model.{name}": p.detach() for name, p in run.module.named_parameters()}
    for shard in run.climbed.shards:
        for key, value in run.optimizer.state[shard.owned].items():
            named[f"optimizer.{shard.name}.{key}"] = value
    return named


def force(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def timed(act: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    act()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


class Ways:
    """The same state written and read in several ways."""

    def __init__(self, run: Any, root: Path, device: str) -> None:
        self.run, self.root, self.device = run, root, device
        self.count, self.newest = 0, dict[str, Path]()

    def save_ours(self) -> None:
        self.run.save(self.root / "ours")

    def load_ours(self) -> None:
        self.run.load(self.root / "ours")

    def save_torch(self) -> None:
        with self.next("torch") as folder:
            torch.save(state_of(self.run), folder / "state.pt")

    def save_torch_forced(self) -> None:
        with self.next("torch") as folder:
            torch.save(state_of(self.run), folder / "state.pt")
            force(folder)

    def save_torch_proven(self) -> None:
        with self.next("proven") as folder:
            torch.save(state_of(self.run), folder / "state.pt")
            force(folder)
            self.digest = hash_whole(folder / "state.pt")

    def load_torch(self, name: str = "torch") -> None:
        found = torch.load(
            self.newest[name] / "state.pt", map_location=self.device, weights_only=True
        )
        for name, tensor in state_of(self.run).items():
            tensor.copy_(found[name])

    def load_torch_proven(self) -> None:
        assert hash_whole(self.newest["proven"] / "state.pt") == self.digest
        self.load_torch("proven")

    def save_dcp(self) -> None:
        with self.next("dcp") as folder:
            dcp.save(state_of(self.run), checkpoint_id=folder, no_dist=True)

    def load_dcp(self) -> None:
        dcp.load(state_of(self.run), checkpoint_id=self.newest["dcp"], no_dist=True)

    @contextmanager
    def next(self, name: str) -> Iterator[Path]:
        """A new folder; when it is written only the one before it stays beside it."""
        root = self.root / name
        self.count += 1
        self.newest[name] = root / f"{self.count:06d}"
        self.newest[name].mkdir(parents=True)
        yield self.newest[name]
        for old in sorted(root.iterdir())[:-2]:
            shutil.rmtree(old)


def hash_whole(path: Path) -> str:
    """A file's hash by the hash that ours takes, as fast as it goes."""
    if default_hash() == digest.BLAKE3:
        return digest.blake3(max_threads=digest.blake3.AUTO).update_mmap(path).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, default_hash()).hexdigest()


def set_cache(state: str, folder: Path) -> None:
    """Have the system keep other files in memory until it is full, or none."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")
    if state == "full":
        path, memory = folder / "others", bytearray(2**22)
        with path.open("wb") as made:  # a hole: it takes memory when it is read, and no disk
            made.truncate(max(0, psutil.virtual_memory().free - 2**30))
        with path.open("rb", buffering=0) as file:
            while file.readinto(memory):
                pass
    time.sleep(5)  # for the host to take back what is free
    print(f"page cache {state}", flush=True)


ACTS = (
    "save_ours", "save_torch", "save_torch_forced", "save_torch_proven", "save_dcp",
    "load_ours", "load_torch", "load_torch_proven", "load_dcp",
)  # fmt: skip


def throughput(ways: Ways, size: int, rounds: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {act: [] for act in ACTS}
    processor: dict[str, list[float]] = {act: [] for act in ACTS}
    for number in range(rounds + 1):  # the first makes what others load, and does not count
        for act in random.Random(number).sample(ACTS, len(ACTS)) if number else ACTS:
            began = time.process_time()
            seconds[act].append(timed(getattr(ways, act), ways.device))
            processor[act].append(time.process_time() - began)
    median = {act: statistics.median(times[1:]) for act, times in seconds.items()}
    save, load = median["save_ours"], median["load_ours"]
    return {
        "save over torch.save, default": median["save_torch"] / save,
        "save over torch.save, forced": median["save_torch_forced"] / save,
        "save over torch.save, proven": median["save_torch_proven"] / save,
        "save over DCP": median["save_dcp"] / save,
        "load over torch.load, default": median["load_torch"] / load,
        "load over torch.load, proven": median["load_torch_proven"] / load,
        "load over DCP": median["load_dcp"] / load,
        "GiB/s": {act: size / 2**30 / taken for act, taken in median.items()},
        "processor seconds": {a: statistics.median(t[1:]) for a, t in processor.items()},
        "spread": {act: max(t[1:]) / min(t[1:]) for act, t in seconds.items()},
    }


FLOOR = ("hash of memory, all threads", "copy within memory that is there, all threads")


def parts(root: Path, size: int) -> dict[str, float]:
    """GiB/s of hashing, writing, forcing and reading, each alone."""
    size = min(size, 2**28)
    data = {"x": torch.randn(size // 4)}
    path = root / "parts.safetensors"
    view = memoryview(data["x"].numpy()).cast("B")

    def write(*, down: bool) -> None:
        with path.open("wb", buffering=0) as file:
            file.write(view)
            if down:
                os.fsync(file.fileno())

    def read() -> None:
        memory = bytearray(2**23)
        with path.open("rb", buffering=0) as file:
            while file.readinto(memory):
                pass

    def side_by_side(act: Callable[[int], object]) -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(act, range(0, size, 2**23)))

    def hash_part(first: int) -> bytes:
        return take(view[first : first + 2**23]).digest()

    def copy_part(first: int) -> None:
        part = slice(first // 4, (first + 2**23) // 4)
        numpy.copyto(target[part], source[part])

    take = digest.available_hashes()[default_hash()]
    source, target = data["x"].numpy(), numpy.zeros(size // 4, numpy.float32)
    acts: dict[str, Callable[[], object]] = {
        "SHA-256, one thread": lambda: hashlib.sha256(view).digest(),
        "hash, one thread": lambda: take(view).digest(),
        "hash of memory, all threads": lambda: side_by_side(hash_part),
        "hash of a file, all threads": lambda: next(hash_files([(path, default_hash())])),
        "write": lambda: write(down=False),
        "write and force": lambda: write(down=True),
        "read what was just written": read,
        "copy in memory": lambda: data["x"].clone(),
        "copy within memory that is there, all threads": lambda: side_by_side(copy_part),
    }
    write(down=False)
    found = {
        name: size / 2**30 / statistics.median(timed(act, "cpu") for _ in range(5))
        for name, act in acts.items()
    }
    path.unlink()
    return found


class Peak:
    """The process's own memory while a block runs, at its highest."""

    def __enter__(self) -> Peak:
        self.process, self.done = psutil.Process(), threading.Event()
        self.before = self.most = self.process.memory_info().rss
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.done.wait(0.002):
            self.most = max(self.most, self.process.memory_info().rss)

    @property
    def added(self) -> int:
        return self.most - self.before


def stall(run: Any, batch: Any, root: Path, device: str, rounds: int) -> dict[str, Any]:
    """How long training waits for a save in the background, against one that it waits for."""

    def step() -> None:
        run.step(batch).read()

    def held_step() -> float:
        """Seconds that the next update waits for the copy, once its batch's passes are done."""
        run.climbed.forward_backward(run_batch, run.scale.scaled)
        if device == "cuda":
            torch.cuda.synchronize()
        waited = timed(run.hold, device)
        for shard in run.climbed.shards:
            shard.drop_gradient()
        return waited

    run_batch = as_batch(batch, run.position).to(run.world.device)
    forecast, calls, peaks = forecast_snapshot(run), [], []
    for _ in range(3):
        with Peak() as peak:
            call = timed(lambda: run.save(root / "background", wait=False), device)
            run.finish_saving()
        calls.append(call)
        peaks.append(peak.added)
    waits, whole, plain, beside = [], [], [], []
    for _ in range(rounds):
        whole.append(timed(lambda: run.save(root / "waiting"), device))
        plain.append(timed(step, device))
        call = timed(lambda: run.save(root / "background", wait=False), "cpu")
        waits.append(call + held_step())
        run.finish_saving()
        run.save(root / "background", wait=False)
        beside.append(timed(step, device))
        run.finish_saving()
    middle = statistics.median
    return {
        "stall": middle(waits) / middle(whole),
        "stall of the first save, which makes the memory it keeps": calls[0] / middle(whole),
        "seconds": {
            "save waited for": middle(whole),
            "training held by one in the background": middle(waits),
            "step": middle(plain),
            "step beside a save": middle(beside),
        },
        "host memory of a background save, GiB": {
            "forecast": forecast / 2**30,
            "peak of the first": peaks[0] / 2**30,
            "peak of later ones": max(peaks[1:]) / 2**30,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=float, default=0.5, help="GiB of state")
    parser.add_argument("--rows", type=int, default=256, help="of a training batch")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", choices=("full", "empty"), help="what else the system keeps")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    run = make(options.size, options.device)
    size = sum(tensor.nbytes for tensor in state_of(run).values())
    gpu = options.device == "cuda"
    result: dict[str, Any] = {
        "date": date.today().isoformat(),
        "device": torch.cuda.get_device_name() if gpu else platform.processor() or "cpu",
        "cores": os.cpu_count(), "torch": torch.__version__,
        "state GiB": size / 2**30, "rounds": options.rounds,
        "hash": default_hash(), "page cache": options.cache or "as it was",
    }  # fmt: skip

    def keep(found: dict[str, Any]) -> None:
        result.update(found)
        print(json.dumps(found, indent=2), flush=True)
        if options.out:
            options.out.write_text(json.dumps(result, indent=2) + "\n")

    with tempfile.TemporaryDirectory(dir=".") as folder:
        root = Path(folder)
        if options.cache:
            set_cache(options.cache, root)
        width = run.module[0].in_features
        batch = torch.randn(options.rows, width), torch.randn(options.rows, width)
        keep(stall(run, batch, root, options.device, options.rounds))
        speeds = parts(root, size)
        floor = sum(size / 2**30 / speeds[part] for part in FLOOR)
        keep({"parts, GiB/s": speeds, "floor of a load that proves all, seconds": floor})
        found = throughput(Ways(run, root, options.device), size, options.rounds)
        taken = {act: size / 2**30 / found["GiB/s"][act] for act in ("load_ours", "load_dcp")}
        keep({**found, **{f"{act} over that floor": taken[act] / floor for act in taken}})


if __name__ == "__main__":
    main()
