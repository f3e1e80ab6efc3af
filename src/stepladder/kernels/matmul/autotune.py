"""Times cuBLASLt's algorithms for each large matmul and remembers the fastest with torch's bits.

A GPU in a training step is limited by power: an H200 draws its 700 W and lowers its clock, so an
algorithm that wins a short trial may draw more power and slow down everything after it. Algorithms
are therefore timed on the real operands, long enough for the clock to settle; a short trial first
leaves only a few of them, which are then compared with torch's own matmul. Only algorithms that
give the same bits as torch on these operands are candidates, so a choice changes nothing but time.
The winner is saved for this machine and this version of the library, for which its 64 bytes hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from stepladder.record.user_cache import cache_path, write_atomically

from .cublaslt import Algorithm, Matmul, MatmulShape, version

GAIN = 1.01  # over torch's own matmul; less is noise
# Seconds: of a trial that rules algorithms out; for the clock to settle; of the final trial.
SHORT, SETTLE, LONG = 2e-3, 5e-2, 1e-1
FINALISTS, ROUNDS = 3, 2
TORCH = "torch"  # saved where no algorithm was faster

Run = Callable[[Algorithm | None], Tensor]  # one matmul; None: by torch
Same = Callable[[Tensor, Tensor], bool]


def best_algorithm(
    shape: MatmulShape, matmul: Matmul, run: Run, same: Same = torch.equal
) -> Algorithm | None:
    """The saved choice for a shape, else the winner of a trial; None for torch's own matmul."""
    key = key_of(shape)
    saved = saved_choices().get(key)
    if saved is None or (saved != TORCH and not matmul.supports(parse_algorithm(saved))):
        won = fastest(same_as_torch(matmul.algorithms(), run, same), run)
        save_choice(key, TORCH if won is None else bytes(won.data).hex(), instead_of=saved)
        saved = saved_choices()[key]  # another process may have been first: the same for both
    return None if saved == TORCH else parse_algorithm(saved)


def same_as_torch(
    algorithms: list[Algorithm], run: Run, same: Same = torch.equal
) -> list[Algorithm]:
    """Algorithms whose result is torch's to the bit, or as close as `same` allows; in that case all
    agree with the first one to the bit, so that the choice changes nothing but time."""
    wanted, kept = run(None).clone(), list[Algorithm]()
    for algorithm in algorithms:
        got = run(algorithm)
        if same(got, wanted):
            if not kept:
                wanted, same = got.clone(), torch.equal
            kept.append(algorithm)
    return kept


def fastest(algorithms: list[Algorithm], run: Run) -> Algorithm | None:
    """The fastest algorithm; None where torch's own matmul is as fast."""
    by_time = sorted(algorithms, key=lambda each: measure_seconds(run, each, SHORT))
    finalists = by_time[:FINALISTS]
    order = list(enumerate([None, *finalists]))
    timings: list[list[float]] = [[] for _ in order]
    for _ in range(ROUNDS):
        for index, algorithm in order:
            measure_seconds(run, algorithm, SETTLE)
            timings[index].append(measure_seconds(run, algorithm, LONG))
        order.reverse()  # the first finds the chip cooler
    plain, *tried = (median(each) for each in timings)
    best = min(tried, default=plain)
    return finalists[tried.index(best)] if plain > GAIN * best else None


def measure_seconds(run: Run, algorithm: Algorithm | None, duration: float) -> float:
    """Device seconds of one matmul, over repetitions that take about `duration` together."""
    run(algorithm)
    once = elapsed(run, algorithm, 1)
    return elapsed(run, algorithm, max(1, round(duration / once)))


def elapsed(run: Run, algorithm: Algorithm | None, times: int) -> float:
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    for _ in range(times):
        run(algorithm)
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) / 1e3 / times


def key_of(shape: MatmulShape) -> str:
    words = (str(each).removeprefix("torch.") for each in shape)
    return " ".join(f"{field}={word}" for field, word in zip(shape._fields, words, strict=True))


def parse_algorithm(saved: str) -> Algorithm:
    algorithm = Algorithm()
    algorithm.data[:] = [int.from_bytes(bytes.fromhex(saved)[at : at + 8], "little")
                        for at in range(0, 64, 8)]  # fmt: skip
    return algorithm


def cache_file() -> Path:
    return cache_path(f"matmul-{version()}", torch.cuda.get_device_name())


@cache
def saved_choices() -> dict[str, str]:
    """Choices of earlier processes; none where the file cannot be read."""
    try:
        loaded = json.loads(cache_file().read_text())
    except (OSError, ValueError):
        return {}
    items = loaded.items() if isinstance(loaded, dict) else ()
    return {k: v for k, v in items if isinstance(v, str) and (v == TORCH or is_algorithm(v))}


def is_algorithm(saved: str) -> bool:
    return len(saved) == 128 and all(c in "0123456789abcdef" for c in saved)


def save_choice(key: str, found: str, instead_of: str | None = None) -> None:
    """Save a choice atomically; choices that other processes saved meanwhile stay."""
    path, known = cache_file(), saved_choices()
    saved_choices.cache_clear()
    for old, value in known.items():
        saved_choices().setdefault(old, value)
    if saved_choices().get(key) in (None, instead_of):
        saved_choices()[key] = found
    with suppress(OSError):  # the next process tries again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(saved_choices(), indent=0, sort_keys=True) + "\n")
