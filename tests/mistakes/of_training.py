"""Mistakes in Python while a run is made and trained: each a call, and what its line must say."""

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepladder as sl
from stepladder.train import (
    EMA,
    BestCheckpoint,
    EarlyStopping,
    Run,
    resume_together,
    save_together,
)

ROWS, CLASSES = torch.randn(8, 4), torch.arange(8) % 3
PAIR = ROWS, CLASSES
DATA = TensorDataset(ROWS, CLASSES)
WIDE = torch.randn(8, 5), CLASSES


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


class WithoutForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)


def climb(model=None, **given) -> Run:
    usual = {"loss": "cross_entropy", "optimizer": "sgd lr=0.1", "plan": "fp32", "device": "cpu"}
    return sl.climb(net() if model is None else model, **{**usual, **given})


def step(batch, **given) -> float:
    return climb(**given).step(batch).loss


def fit(batches, **given) -> list[float]:
    return [report.loss for report in sl.fit(climb(), batches, **given)]


def first_batch(source, **given):
    return next(iter(climb().batches(source, **given)))


def evaluate(data, **given):
    return climb().evaluate(data, **given)


def resume_in_another_module():
    run = climb()
    run.step(PAIR)
    run.save("saved")
    climb(nn.Linear(4, 3)).resume("saved")


def a_file() -> str:
    Path("file").write_text("text")
    return "file"


CLIMB = {
    "model: a NoneType is not a module. Give": lambda: sl.climb(None),
    "model: a str is not a module": lambda: sl.climb("gpt2"),
    "model: the class Linear is not a module. Give an object": lambda: climb(nn.Linear),
    "model: a Tensor is not a module": lambda: climb(ROWS),
    "model: a list is not a module": lambda: climb([net()]),
    "model: a OrderedDict is not a module": lambda: climb(net().state_dict()),
    "WithoutForward: has no forward. Define": lambda: climb(WithoutForward()),
    "ReLU: has no trainable parameter. Unfreeze": lambda: climb(nn.ReLU()),
    "loss: 'crossentropy' is not a loss. Did you mean": lambda: climb(loss="crossentropy"),
    "loss: a int is not a loss. Give": lambda: climb(loss=3),
    "loss: a list is not a loss": lambda: climb(loss=["cross_entropy"]),
    "loss: CrossEntropyLoss is a class of losses. Give an object of it": lambda: climb(
        loss=nn.CrossEntropyLoss
    ),
    "cannot be called with two (too many positional arguments)": lambda: climb(
        loss=lambda outputs: outputs.sum()
    ),
    "loss: returned none, not one number. Add": lambda: step(PAIR, loss=lambda o, t: None),
    "loss: returned a tensor of shape (8, 3)": lambda: step(PAIR, loss=lambda o, t: o),
    "loss: does not depend on any trainable": lambda: step(
        PAIR, loss=lambda o, t: o.detach().sum()
    ),
    "loss: Sequential returns a tensor": lambda: step(PAIR, loss=None),
    "optimizer: 'adamm' is not an optimizer. Did": lambda: climb(optimizer="adamm"),
    "optimizer: float is neither an optimizer": lambda: climb(optimizer=0.1),
    "optimizer.lr: 'big' is not a number": lambda: climb(optimizer="adamw lr=big"),
    "optimizer: 'learning_rate' is not a setting": lambda: climb(optimizer="adamw learning_rate=1"),
    "belong neither to the module nor to its loss": lambda: climb(
        optimizer=torch.optim.SGD(net().parameters(), lr=0.1)
    ),
    "optimizer: function(parameters) returned NoneType": lambda: climb(optimizer=lambda p: None),
    "clip: -1 is not a norm to clip to. Use": lambda: climb(clip=-1),
    "clip: '1' is not a norm to clip to": lambda: climb(clip="1"),
    "clip: 0 is not a norm to clip to": lambda: climb(clip=0),
    "rate: 'cosin' is not a schedule. Did": lambda: climb(rate="cosin"),
    "rate: int is no schedule. Write": lambda: climb(rate=3),
    "rate: function returned nan. Return": lambda: step(PAIR, rate=lambda step: float("nan")),
    "rate.steps: cosine over 0 steps": lambda: climb(rate="cosine"),
    "plan: 'bf17' is not a word of a plan. Did": lambda: climb(plan="bf17"),
    "plan: a int is neither words nor a Plan": lambda: climb(plan=8),
    "plan: a dict is neither words nor a Plan": lambda: climb(plan={"precision": "bf16"}),
    "layout: is for 2 ranks (replicate=2), and": lambda: climb(plan="ddp replicate=2"),
    "zero: 7 is not a stage of ZeRO. Use": lambda: climb(plan=sl.Plan(zero=7)),
    "precision: a plan holds no str. Give": lambda: climb(plan=sl.Plan(precision="bf16")),
    "seed: 'a' is not a seed. Use": lambda: climb(seed="a"),
    "seed: -1 is not a seed": lambda: climb(seed=-1),
    "seed: 1.5 is not a seed": lambda: climb(seed=1.5),
    "device: 'gpu' is not a device. Did": lambda: climb(device="gpu"),
    "nonfinite: 'True' is not a policy. Choose": lambda: climb(nonfinite=True),
    "exact: takes no str. Use True or False": lambda: climb(exact="yes"),
    "exact: exact=True asks for the same bits, and the plan says exact=none": lambda: climb(
        plan="fp32 exact=none", exact=True
    ),
    "batch.micro: a slice is one micro-batch, and batch=8 in 8 slices has slices of 1, not 4. Use "
    "micro=1": lambda: step(PAIR, plan="fp32 exact=ranks micro=4"),
    "batch.accumulate: a slice is one micro-batch, and each of 1 data ranks computes 8 of 8 "
    "slices, not 4. Use accumulate=8": lambda: step(PAIR, plan="fp32 exact=ranks accumulate=4"),
    "timeout_seconds: -1 is not a number of seconds": lambda: climb(timeout_seconds=-1),
    "timeout_seconds: '9' is not a number of seconds": lambda: climb(timeout_seconds="9"),
    "module: a Sequential is not a module with a training_step": lambda: sl.from_lightning(net()),
    "module: a NoneType is not a module with a training_step": lambda: sl.from_lightning(None),
}

STEP = {
    "batch: '0' of Sequential does not take its inputs, float32 of shape (8, 5)": lambda: step(
        WIDE
    ),
    "does not take its inputs, int64 of shape (8, 4)": lambda: step((ROWS.long(), CLASSES)),
    "batch: Linear does not take its inputs": lambda: climb(nn.Linear(4, 3)).step(
        ((ROWS, ROWS), CLASSES)
    ),
    "batch: '1' of Sequential does not take its inputs": lambda: climb(
        nn.Sequential(nn.Flatten(), nn.Linear(9, 3)), plan="fp32 micro=2"
    ).step(PAIR),
    "batch: a NoneType holds no tensor. Give": lambda: step(None),
    "batch: a str holds no tensor": lambda: step("batch"),
    "batch: a DataLoader holds no tensor": lambda: step(DataLoader(DATA)),
    "batch: has no rows. Give at least one": lambda: step((ROWS[:0], CLASSES[:0])),
    "batch: its tensors have different numbers of rows": lambda: step((ROWS, CLASSES[:4])),
    "batch: its tensors are single numbers": lambda: step((torch.tensor(1.0), torch.tensor(1))),
    "batch: a tensor of it is on the meta device": lambda: step((ROWS.to("meta"), CLASSES)),
    "batch: target 7 is out of bounds": lambda: step((ROWS, CLASSES + 7)),
    "targets: are float32 of shape (8,)": lambda: step((ROWS, CLASSES.float())),
    "targets: a loss given by name takes one tensor": lambda: step(ROWS),
    "rows: 'mine' is neither. Use": lambda: climb().step(PAIR, rows="mine"),
    "step 0: loss nan": lambda: step((ROWS * float("nan"), CLASSES)),
}

FIT = {
    "fit: was given a Sequential, and trains a run": lambda: list(sl.fit(net(), [PAIR])),
    "data: a NoneType is no series of batches. Give": lambda: fit(None),
    "data: a TensorDataset is samples and not batches": lambda: fit(DATA),
    "data: a dict is no series of batches. Give [batch]": lambda: fit({"x": ROWS}),
    "steps: '3' is not a whole number of steps": lambda: fit([PAIR], steps="3"),
    "steps: -3 is not a whole number of steps": lambda: fit([PAIR], steps=-3),
    "steps: 2.5 is not a whole number of steps": lambda: fit([PAIR], steps=2.5),
    "batches: the batches ended at step 2 of 3. Give more": lambda: fit([PAIR] * 2, steps=3),
    "source: NoneType has no length and index": lambda: first_batch(None, size=4),
    "source: a DataLoader makes batches itself. Give": lambda: first_batch(
        DataLoader(DATA), size=4
    ),
    "source: 'here.bin' is a path, not samples. Open": lambda: first_batch("here.bin", size=4),
    "source: list is empty. Give": lambda: first_batch([], size=4),
    "size: 0 is not a number of samples. Use": lambda: first_batch(DATA, size=0),
    "size: '4' is not a number of samples": lambda: first_batch(DATA, size="4"),
    "size: 4.0 is not a number of samples": lambda: first_batch(DATA, size=4.0),
    "seed: 'x' is not a seed": lambda: first_batch(DATA, size=4, seed="x"),
    "stop: -1 is not a number of samples to end before": lambda: first_batch(DATA, size=4, stop=-1),
    "workers: 'many' is not a number of workers": lambda: first_batch(DATA, size=4, workers="many"),
    "lengths: takes no int. Write": lambda: first_batch(DATA, size=4, lengths=5),
    "reading: takes no str. Give": lambda: first_batch(DATA, size=4, reading="retry"),
    "uneven: takes no str. Use": lambda: first_batch(DATA, size=4, uneven="x"),
    "longest: -1 is not a number of tokens": lambda: first_batch(DATA, size=4, longest=-1),
}

LOOP = {
    "batches: there are none to evaluate. Give": lambda: evaluate([]),
    "data: a int is no series of batches": lambda: evaluate(3),
    "batch: '0' of Sequential does not take its inputs (evaluate)": lambda: evaluate([WIDE]),
    "batch: '0' of Sequential does not take its inputs (predict)": lambda: climb().predict(
        [WIDE[0]]
    ),
    "metrics: a list does not name them. Give": lambda: evaluate([PAIR], metrics=["accuracy"]),
    "metrics.a: 'accuracy' cannot be computed": lambda: evaluate([PAIR], metrics={"a": "accuracy"}),
    "metrics.a: raised ZeroDivisionError": lambda: evaluate(
        [PAIR], metrics={"a": lambda o, t: 1 / 0}
    ),
    "keep: picks what metrics are given, and there are none": lambda: evaluate([PAIR], keep=len),
    "keep: 3 is not a function of outputs. Give": lambda: climb().predict([ROWS], keep=3),
    "log: 3 is not a name that every tracker takes": lambda: climb().log(3, 1.0),
    "log.a: a str is not one number. Log": lambda: climb().log("a", "x"),
    "log.a: 'x' is not the number of a step": lambda: climb().log("a", 1.0, step="x"),
    "run.lr: 'x' is not a number of 0 or more": lambda: setattr(climb(), "lr", "x"),
    "steps: 0 is not a number of steps to profile": lambda: climb().profile([PAIR], steps=0),
    "steps: 'x' is not a number of steps to profile": lambda: climb().profile([PAIR], steps="x"),
    "data: a NoneType is no series of batches (profile)": lambda: climb().profile(None),
    "folder: None is no path. Name": lambda: climb().save(None),
    "checkpoint: file/step-000000 cannot be written": lambda: climb().save(a_file()),
    "checkpoint: file is a file. Name a folder": lambda: climb().resume(a_file()),
    "checkpoint: nowhere holds none. Name": lambda: climb().load("nowhere"),
    "is of another model": resume_in_another_module,
    "name: '3' cannot name an object to save": lambda: climb().register_for_checkpointing(
        3, object()
    ),
    "a: object has no state_dict": lambda: climb().register_for_checkpointing("a", object()),
    "run.track: 'wandbb' is not a tracker. Did": lambda: (
        climb().open_journal("j", track="wandbb").__enter__()
    ),
    "a: a Sequential is not a run. Give": lambda: save_together("x", a=net()),
    "a: a int is not a run. Give": lambda: resume_together("x", a=3),
    "ema: was given a Sequential": lambda: EMA(net()),
    "decay: 2 is not a share of the average": lambda: EMA(climb(), 2),
    "patience: 0 is not a number of values": lambda: EarlyStopping(patience=0),
    "mode: 'lowest' does not say which values are better": lambda: EarlyStopping(mode="lowest"),
    "value: a str is not one number to compare": lambda: EarlyStopping()("x"),
    "best checkpoint: was given a NoneType": lambda: BestCheckpoint(None, "x"),
    "keep: '2' is not a number of checkpoints": lambda: BestCheckpoint(climb(), "x", keep="2"),
}

TRAINING = {**CLIMB, **STEP, **FIT, **LOOP}
