"""Mistakes in Python before a run: planning, building, proving, launching, whole recipes."""

import torch
from torch import nn

import stepladder as sl

NET = nn.Linear(4, 3)


def launch(what="gpt-tiny", on="slurm", **given):
    return sl.launch(what, on=on, dry_run=True, **given)


PLANNING = {
    "model: a int is neither a name nor the facts": lambda: sl.plan(3, "8 x H100"),
    "model: a Linear is neither a name nor the facts": lambda: sl.plan(NET, "8 x H100"),
    "cluster: takes no int. Write one": lambda: sl.plan("gpt2", 8),
    "cluster: takes no None": lambda: sl.plan("gpt2", None),
    "cluster: '' does not say how many of which": lambda: sl.plan("gpt2", ""),
    "plan: takes no int. Write words": lambda: sl.plan("gpt2", "1 H100", plan=4),
    "batch: '8' is not a number of sequences": lambda: sl.plan("gpt2", "1 H100", batch="8"),
    "batch: 8.5 is not a number of sequences": lambda: sl.plan("gpt2", "1 H100", batch=8.5),
    "sequence: 'x' is not a length. Use": lambda: sl.plan("gpt2", "1 H100", sequence="x"),
    "calibration: takes no int. Name": lambda: sl.plan("gpt2", "1 H100", calibration=3),
    "calibration: no.json cannot be read": lambda: sl.plan("gpt2", "1 H100", calibration="no.json"),
    "model: a int is neither a name (forecast)": lambda: sl.forecast(3, "bf16", "1 H100"),
    "plan: takes no None. Write words": lambda: sl.forecast("gpt2", None, "1 H100"),
    "cluster: takes no list": lambda: sl.forecast("gpt2", "bf16", ["H100"]),
    "calibration: takes no str. Give": lambda: sl.forecast("gpt2", "bf16", "1 H100", "x"),
    "model: a NoneType is neither a name": lambda: sl.search(None, "1 H100"),
    "batch: 'x' is not a number of sequences": lambda: sl.search("gpt2", "1 H100", batch="x"),
    "plan: takes no float": lambda: sl.search("gpt2", "1 H100", batch=8, start=1.0),
    "plan: takes no dict. Write words": lambda: sl.Plan.parse({}),
    "cluster: takes no dict": lambda: sl.Cluster.parse({}),
    "model: takes no int. Name one": lambda: sl.build(3),
    "model: 'gpt9' is not a known model. Did": lambda: sl.build("gpt9"),
    "device: 'gpu' is not a device. Use": lambda: sl.build("gpt-tiny", device="gpu"),
    "seed: 'x' is not a seed (build)": lambda: sl.build("gpt-tiny", seed="x"),
    "model.sequence: 0 is not a length": lambda: sl.build("gpt-tiny", sequence=0),
    "model.dropout: 2 is not a share of the activations": lambda: sl.build("gpt-tiny", dropout=2),
    "model.depth: is not an option of GPT": lambda: sl.build("gpt-tiny", depth=3),
    "model: a NoneType is neither a name, a shape": lambda: sl.describe(None),
    "Linear: its forward does not take this sample": lambda: sl.describe(NET, sample="x"),
    "Check that the sample is what its forward takes": lambda: sl.describe(
        NET, sample=torch.randn(8, 5)
    ),
    "sequence: 'x' is not a length (describe)": lambda: sl.describe("gpt2", sequence="x"),
}

RECIPES = {
    "recipe: takes no int. Name": lambda: sl.train(3),
    "recipe: takes no Linear. Name": lambda: sl.train(NET),
    "run file: nowhere.toml cannot be read": lambda: sl.train("nowhere.toml"),
    "settings: takes no str. Give a list": lambda: sl.train(settings="--train.steps 3"),
    "settings: takes no dict. Give a list": lambda: sl.train(settings={"train.steps": 3}),
    "train.stepps: is not a setting. Did": lambda: sl.train(settings=["--train.stepps", "3"]),
    "train.batch: has no value. Write": lambda: sl.train(settings=["--train.batch"]),
    "plan: takes no int (train)": lambda: sl.train(plan=3),
    "display: a str does not follow a run. Give": lambda: sl.train(display="x"),
    "recipe: takes no int (profile)": lambda: sl.profile(3),
    "steps: 0 is not a number of steps to profile (recipe)": lambda: sl.profile(steps=0),
    "show: a int cannot be called with the result": lambda: sl.profile(show=3),
}

PROOFS = {
    "plans: takes no int. Write": lambda: sl.verify.parity("gpt-tiny", 3),
    "plans: an empty list has nothing to compare. Give": lambda: sl.verify.parity("gpt-tiny", []),
    "model: its function returned a int, not a module. Return": lambda: sl.verify.parity(
        lambda: 3, "fp32", torch.ones(2, 4)
    ),
    "batch: of 2 rows none is left to judge by: one in 4 is. Give 4": lambda: sl.verify.precision(
        NET, torch.ones(2, 4), steps=2, device="cpu"
    ),
    "plans: takes no float. Write each": lambda: sl.verify.parity("gpt-tiny", [1.0]),
    "model: a int is neither a module nor a name": lambda: sl.verify.parity(3, "bf16"),
    "batch: a module of your own is proved on a batch": lambda: sl.verify.parity(NET, "fp32"),
    "steps: 0 is not a number of steps. Use": lambda: sl.verify.parity("gpt-tiny", "fp32", steps=0),
    "steps: 'x' is not a number of steps": lambda: sl.verify.parity("gpt-tiny", "fp32", steps="x"),
    "optimizer: takes no int. Write it": lambda: sl.verify.parity("gpt-tiny", "fp32", optimizer=3),
    "device: 'gpu' is not a device (parity)": lambda: sl.verify.parity(
        "gpt-tiny", "fp32", device="gpu"
    ),
    "precision: 'bf17' is not a precision. Did": lambda: sl.verify.precision(
        "gpt-tiny", other="bf17"
    ),
    "other: takes no int. Write it": lambda: sl.verify.precision("gpt-tiny", other=16),
    "steps: -1 is not a number of steps": lambda: sl.verify.precision("gpt-tiny", steps=-1),
    "plans: takes no int (resume)": lambda: sl.verify.resume("gpt-tiny", 3),
    "are too few to save, go on": lambda: sl.verify.resume("gpt-tiny", steps=1),
}

LAUNCHES = {
    "on: 'moon' is not a place to start a run": lambda: launch(on="moon"),
    "nodes: 'many' is not a number of machines": lambda: launch(nodes="many"),
    "what: takes no int. Name": lambda: launch(3),
    "hosts: takes no str. Give a list": lambda: launch(on="ssh", hosts="a,b"),
    "hosts: takes no int. Give a list": lambda: launch(on="ssh", hosts=3),
    "sweep: takes no str. Give a list": lambda: launch(sweep="lr"),
    "ranks-per-node: 'x' is not a whole number": lambda: launch(ranks_per_node="x"),
    "time: '3.5' is not a time of Slurm's": lambda: launch(time=3.5),
    "option: '3' is not one. Write": lambda: launch(settings=[3]),
    "plan: '3' is not a word of a plan": lambda: launch(plan=3),
    "partition: is no option of --on local": lambda: launch(on="local", partition="x"),
    "function: a int cannot be called. Give": lambda: sl.on_ranks(3, 2),
    "ranks: 0 is not a number of processes": lambda: sl.on_ranks(print, 0),
    "timeout_seconds: -1 is not a number of seconds (ranks)": lambda: sl.on_ranks(
        print, 1, timeout_seconds=-1
    ),
}

BEFORE_A_RUN = {**PLANNING, **RECIPES, **PROOFS, **LAUNCHES}
