"""A program that takes private names away from torch, then imports stepladder and trains a step.

    python without_names.py PATH...

A name is deleted where plain torch still trains without it. Torch's own code needs some (its
optimizers call `_foreach_div_`, its tracing `tree_map`); those are taken from our lookup alone.
"""

import sys
from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages

import torch
from torch import nn

PUBLIC = (  # modules of torch that import private ones of its own, so they come first
    "torch.distributed.checkpoint", "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.fsdp", "torch.distributed.pipelining", "torch.distributed.run",
    "torch.distributed.tensor.parallel", "torch.nn.utils.parametrize", "torch.profiler",
    "torch.utils.checkpoint", "torch.utils.data", "torch.utils.flop_counter",
)  # fmt: skip


def plain_step() -> None:
    """What any user of torch does."""
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 36, 4))
    module.to("cpu", torch.float32)
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        optimizer = kind(module.parameters(), lr=0.1)
        loss = nn.functional.cross_entropy(module(torch.randn(3, 1, 8, 8)), torch.tensor([0, 1, 2]))
        loss.backward()
        optimizer.step()


def delete(path: str) -> bool:
    """Delete a name from its module or class; leave it where torch then fails by itself."""
    home, _, word = path.rpartition(".")
    try:
        owner = import_module("stepladder.seam.lookup").reach(home)
        value = vars(owner)[word]
        delattr(owner, word)
    except (AttributeError, ImportError, KeyError, TypeError):
        return False  # a C type's, or an instance's, or another build's
    try:
        plain_step()
    except Exception:
        setattr(owner, word, value)
        return False
    return True


def take_away(paths: list[str]) -> list[str]:
    """Deny names to our lookup, and delete those that can be; those."""
    deleted = [path for path in paths if delete(path)]
    lookup = import_module("stepladder.seam.lookup")
    found = lookup.reach

    def reach(path: str) -> object:
        if path in paths:
            raise AttributeError(path)
        return found(path)

    lookup.reach = reach
    lookup.FOUND.clear()
    return deleted


def import_everything() -> int:
    """Import every module but those that are programs or need a package that is not here."""
    stepladder, count = import_module("stepladder"), 0
    for each in walk_packages(stepladder.__path__, "stepladder."):
        if ".labs." in each.name:
            continue  # as many again, and the laws see that they touch nothing private
        with suppress(ModuleNotFoundError):
            import_module(each.name)
            count += 1
    return count


def train() -> float:
    import stepladder as sl

    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    run = sl.climb(model, loss="cross_entropy", optimizer="adamw lr=1e-2 clip=0.1")
    samples = [(torch.randn(4, 4), index % 3) for index in range(8)]
    batch = next(iter(run.batches(samples, size=8)))
    return float(run.step(batch).loss)


if __name__ == "__main__":
    for name in PUBLIC:
        import_module(name)
    plain_step()
    gone = take_away(sys.argv[1:])
    imported = import_everything()
    touched = sorted(import_module("stepladder.seam.lookup").FOUND)
    print(f"imported {imported}, deleted {len(gone)}, touched {touched}, loss {train():.3f}")
