"""The frameworks of peers_gpu.py: each takes one optimizer step on one batch when asked.

Every framework gets the same module, seeds and batches (pinned host memory, copied ahead by
`non_blocking`), AdamW at the same rate and clipping at 1. `ran` says what it really did, read off
the objects it built rather than off what was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

RATE, CLIP = 1e-4, 1.0


@dataclass
class Framework:
    name: str
    step: Callable[[Any], Any]  # one update from a host batch; returns the loss, on the device
    ran: str
    holds: list[Any] = field(default_factory=list)  # kept alive between turns


def loss_of(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    logits = getattr(outputs, "logits", outputs)
    return functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


class WithLoss(nn.Module):
    """A module that answers with its loss, so that a framework which compiles modules compiles
    the loss with it, as the tuned loop does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss_of(self.module(inputs), targets)


def adamw(module: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=0.1, **options)


def kernels_of(optimizer: torch.optim.Optimizer) -> str:
    return "fused AdamW" if optimizer.defaults.get("fused") else "AdamW not fused"


def hand_written(
    module: nn.Module, device: str, *, images: bool = False, timed: bool = False
) -> Framework:
    """The tuned loop of the tutorials: autocast, the forward and its loss compiled as one.

    Args:
        images: convolutions with channels innermost.
        timed: with `cudnn.benchmark` too.
    """
    module.to(device)
    if images:
        module.to(memory_format=torch.channels_last)
    optimizer = adamw(module, fused=device == "cuda")

    @torch.compile
    def forward(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss_of(module(inputs), targets)

    def step(batch: Any) -> torch.Tensor:
        inputs, targets = (t.to(device, non_blocking=True) for t in batch)
        if images:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        torch.backends.cudnn.benchmark = timed
        with torch.autocast(device, torch.bfloat16):
            loss = forward(inputs, targets)
        loss.backward()
        torch.backends.cudnn.benchmark = False  # frameworks share a process
        nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    ran = f"autocast bf16, torch.compile of forward and loss, {kernels_of(optimizer)}, clip {CLIP}"
    ran += (", channels_last" if images else "") + (", cudnn.benchmark" if timed else "")
    return Framework("hand-written", step, ran, [module])


def accelerate(module: nn.Module, device: str) -> Framework:
    from accelerate import Accelerator, __version__

    host = Accelerator(mixed_precision="bf16", dynamo_backend="inductor", cpu=device == "cpu")
    model, optimizer = host.prepare(WithLoss(module), adamw(module, fused=device == "cuda"))

    def step(batch: Any) -> torch.Tensor:
        loss = model(*(t.to(host.device, non_blocking=True) for t in batch))
        host.backward(loss)
        host.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    ran = (
        f"Accelerate {__version__}, {host.mixed_precision}, {type(model).__name__}, "
        f"{kernels_of(optimizer.optimizer)}, clip {CLIP}"
    )
    return Framework("Accelerate", step, ran, [model, host])


def lightning(module: nn.Module, device: str) -> Framework:
    """Lightning's Fabric, whose loop is one's own; the Trainer's clipping refuses fused AdamW."""
    from lightning_fabric import Fabric, __version__

    fabric = Fabric(accelerator=device, devices=1, precision="bf16-mixed")
    model, optimizer = fabric.setup(
        torch.compile(WithLoss(module)), adamw(module, fused=device == "cuda")
    )

    def step(batch: Any) -> torch.Tensor:
        loss = model(*(t.to(fabric.device, non_blocking=True) for t in batch))
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=CLIP, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    inner = type(getattr(model, "_forward_module", model)).__name__
    ran = (
        f"Lightning Fabric {__version__}, {fabric._precision.precision}, {inner}, "
        f"{kernels_of(getattr(optimizer, 'optimizer', optimizer))}, clip {CLIP}"
    )
    return Framework("Lightning", step, ran, [model, fabric])


def ours(
    module: nn.Module, device: str, plan: str, batches: list[Any], *, own_loss: bool = False
) -> Framework:
    import stepladder as sl
    from stepladder.data import Batch, Prefetcher

    run = sl.climb(
        module,
        loss=None if own_loss else "cross_entropy",
        optimizer=f"adamw lr={RATE} wd=0.1 clip={CLIP}",
        plan=plan,
        device=device,
    )

    def make(index: int) -> Batch:
        batch = batches[index % len(batches)]
        return Batch.of(batch, position=index, size=run_rows)

    # Our own way of feeding, as `run.batches` does it: the copy to the device runs ahead.
    run_rows = len(next(iter(batches[0].values())) if own_loss else batches[0][0])
    feed = Prefetcher(make, range(10**6), device=run.world.device)

    def step(_: Any) -> Any:
        return run.step(next(feed))

    because = run.because or "as asked"
    return Framework(f"stepladder {plan}", step, f"{run.plan} ({because})", [run, feed])


def hugging_face(module: nn.Module, device: str, batches: list[Any], turn: int) -> Any:
    """A Trainer at its best documented flags; it owns its loop, so a turn is one `train`."""
    import time

    from transformers import Trainer, TrainerCallback, TrainingArguments, __version__

    rows = [{"input_ids": row, "labels": row} for batch in batches for row in batch["input_ids"]]
    per_step = len(batches[0]["input_ids"])

    class Clock(TrainerCallback):
        begun = 0.0
        seconds = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == args.max_steps - turn:
                wait(device)
                self.begun = time.perf_counter()

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            wait(device)
            self.seconds = (time.perf_counter() - self.begun) / turn

    clock = Clock()
    warmup = 3
    arguments = TrainingArguments(
        output_dir="runs/peer", per_device_train_batch_size=per_step, max_steps=turn + warmup,
        bf16=True, torch_compile=True, optim="adamw_torch_fused" if device == "cuda" else
        "adamw_torch", max_grad_norm=CLIP, learning_rate=RATE, weight_decay=0.1,
        lr_scheduler_type="constant", report_to=[], logging_strategy="no", save_strategy="no",
        dataloader_num_workers=2 if device == "cuda" else 0, use_cpu=device == "cpu",
        disable_tqdm=True,
    )  # fmt: skip
    data = rows * (1 + (turn + warmup) * per_step // len(rows))
    trainer = Trainer(module, arguments, train_dataset=data, callbacks=[clock])

    def take_turn() -> float:
        trainer.train()
        return clock.seconds

    ran = (
        f"Trainer of transformers {__version__}, bf16 {arguments.bf16}, compile "
        f"{arguments.torch_compile}, {arguments.optim}, clip {arguments.max_grad_norm}"
    )
    return take_turn, Framework("Hugging Face Trainer", lambda batch: None, ran, [trainer])


def wait(device: str) -> None:
    (torch.cuda.synchronize if device == "cuda" else nullcontext)()
