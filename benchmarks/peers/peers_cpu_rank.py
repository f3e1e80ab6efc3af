"""One rank of one contender of peers_cpu.py: builds its run, then steps when it is told to.

Each contender is written as its own documentation says to, for fp32 on CPU ranks with gloo.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SHAPE = "gpt:layers=6,hidden=256,heads=4,vocab=256,sequence=64"
ROWS, LENGTH, STEPS, FIRST = 4, 64, 3, 4  # rows of a rank; steps of a turn; steps that are checked
LR = 1e-3
MIB = 2**20

Step = Callable[[Any, Any], Any]  # takes a rank's tokens and targets, returns its loss


def batches() -> list[tuple[Any, Any]]:
    """This rank's rows of the first global batches."""
    import torch

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    draw = torch.Generator().manual_seed(7)
    rows = torch.randint(0, 256, (8, ranks * ROWS, LENGTH + 1), generator=draw)
    mine = rows[:, rank * ROWS : (rank + 1) * ROWS]
    return [(batch[:, :-1].contiguous(), batch[:, 1:].contiguous()) for batch in mine]


def model() -> Any:
    from stepladder.model import build

    return build(SHAPE, seed=0)


def loss_of(logits: Any, targets: Any) -> Any:
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def adamw(parameters: Iterable[Any]) -> Any:
    import torch

    return torch.optim.AdamW(parameters, lr=LR, betas=(0.9, 0.95), weight_decay=0.0, fused=True)


def join() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")


def by_hand(run: Any, optimizer: Any) -> Step:
    def step(tokens: Any, targets: Any) -> Any:
        loss = loss_of(run(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def torch_ddp() -> tuple[Step, Any, Any]:
    from torch.nn.parallel import DistributedDataParallel

    join()
    module = model()
    run = DistributedDataParallel(module, gradient_as_bucket_view=True)
    optimizer = adamw(module.parameters())
    return by_hand(run, optimizer), module, optimizer


def torch_fsdp2() -> tuple[Step, Any, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    join()
    module, mesh = model(), init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    for block in module.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    optimizer = adamw(module.parameters())
    return by_hand(module, optimizer), module, optimizer


def ours(words: str) -> Callable[[], tuple[Step, Any, Any]]:
    def make() -> tuple[Step, Any, Any]:
        import stepladder as sl

        run = sl.climb(
            model(),
            loss="cross_entropy",
            optimizer=f"adamw lr={LR}",
            plan=f"fp32 {words} micro={ROWS}",
            device="cpu",
        )

        def step(tokens: Any, targets: Any) -> float:
            return run.step((tokens, targets), rows="rank").loss

        return step, run.module, run.optimizer

    return make


def deepspeed(stage: int) -> Callable[[], tuple[Step, Any, Any]]:
    def make() -> tuple[Step, Any, Any]:
        os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed as ds

        ds.init_distributed(dist_backend="gloo")
        module = model()
        settings = {
            "train_micro_batch_size_per_gpu": ROWS,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 10**9,
        }
        engine, optimizer, _, _ = ds.initialize(
            model=module, optimizer=adamw(module.parameters()), config=settings
        )
        assert engine.zero_optimization_stage() == stage

        def step(tokens: Any, targets: Any) -> Any:
            loss = loss_of(engine(tokens), targets)
            engine.backward(loss)
            engine.step()
            return loss

        inner = getattr(optimizer, "optimizer", optimizer)
        return step, module, inner

    return make


def accelerate_fsdp2() -> tuple[Step, Any, Any]:
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
    from torch.distributed.tensor import DTensor

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["GPTBlock"],
        reshard_after_forward=True,
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    if accelerator.distributed_type is not DistributedType.FSDP:
        # On CPU ranks the plugin is dropped without a word: this is what its state says on GPUs.
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    module = model()
    module, optimizer = accelerator.prepare(module, adamw(module.parameters()))
    if not any(isinstance(p, DTensor) for p in module.parameters()):
        raise SystemExit("accelerate ran without slicing a parameter on a CPU, and did not say so")

    def step(tokens: Any, targets: Any) -> Any:
        loss = loss_of(module(tokens), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, module, optimizer.optimizer


def accelerate_ddp() -> tuple[Step, Any, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    whole = model()
    module, optimizer = accelerator.prepare(whole, adamw(whole.parameters()))
    assert accelerator.num_processes == int(os.environ["WORLD_SIZE"]) and module is not whole

    def step(tokens: Any, targets: Any) -> Any:
        loss = loss_of(module(tokens), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, whole, optimizer.optimizer


def lightning_ddp() -> tuple[Step, Any, Any]:
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy

    strategy = DDPStrategy(process_group_backend="gloo", gradient_as_bucket_view=True)
    fabric = Fabric(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy=strategy, precision=32
    )
    fabric.launch()
    whole = model()
    module, optimizer = fabric.setup(whole, adamw(whole.parameters()))
    assert fabric.world_size == int(os.environ["WORLD_SIZE"])

    def step(tokens: Any, targets: Any) -> Any:
        loss = loss_of(module(tokens), targets)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, whole, optimizer.optimizer


CONTENDERS: dict[str, tuple[str, Callable[[], tuple[Step, Any, Any]]]] = {  # name: package, maker
    "stepladder ddp": ("stepladder", ours("ddp")),
    "stepladder zero1": ("stepladder", ours("zero1")),
    "stepladder zero2": ("stepladder", ours("zero2")),
    "stepladder zero3": ("stepladder", ours("zero3")),
    "torch DDP by hand": ("torch", torch_ddp),
    "torch FSDP2 by hand": ("torch", torch_fsdp2),
    "Lightning DDP": ("lightning", lightning_ddp),
    "Accelerate DDP": ("accelerate", accelerate_ddp),
    "Accelerate FSDP2": ("accelerate", accelerate_fsdp2),
    "DeepSpeed ZeRO 1": ("deepspeed", deepspeed(1)),
    "DeepSpeed ZeRO 2": ("deepspeed", deepspeed(2)),
    "DeepSpeed ZeRO 3": ("deepspeed", deepspeed(3)),
}


def resident_mib(name: str = "VmHWM") -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def state_mib(module: Any, optimizer: Any) -> float:
    """Parameters and optimizer state in this process, each storage once."""
    kept = [value for entry in optimizer.state.values() for value in entry.values()]
    tensors = [*module.parameters(), *optimizer.state.keys(), *kept]
    plain = [t.to_local() if hasattr(t, "to_local") else t for t in tensors if hasattr(t, "dim")]
    storages = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in plain)}
    return sum(storages.values()) / MIB


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise SystemExit(f"{package} is not installed") from None


def serve(name: str) -> None:
    package, make = CONTENDERS[name]
    found = installed(package)
    import torch

    torch.set_num_threads(1)
    import stepladder  # noqa: F401  loaded by all, so that memory starts equal

    answers = os.fdopen(os.dup(1), "w")  # libraries write to standard output as they please
    step, module, optimizer = make()
    data = batches()
    before = resident_mib("VmRSS")
    losses = [float(step(*data[index])) for index in range(FIRST)]
    facts = {"losses": losses, "version": found, "state_mib": state_mib(module, optimizer)}
    print("ANSWER", json.dumps(facts), file=answers, flush=True)
    for word in sys.stdin:
        if word.strip() == "go":
            began = time.perf_counter()
            for index in range(STEPS):
                float(step(*data[index]))
            took = (time.perf_counter() - began) / STEPS
            print("ANSWER", json.dumps({"seconds": took}), file=answers, flush=True)
        else:
            peak = {"peak_mib": resident_mib(), "built_mib": before}
            print("ANSWER", json.dumps(peak), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
