"""Mistakes on the command line: the words, and what the line must say; and the files they name."""

FILES = {
    "mine.py": """
import torch
from torch import nn

def make() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

def batch():
    return torch.randn(8, 5), torch.arange(8) % 3

def good():
    return torch.randn(8, 4), torch.arange(8) % 3

def text():
    return "hello"

def broken():
    return 1 / 0

def wants(width) -> nn.Module:
    return nn.Linear(width, 3)

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)

def one(outputs):
    return outputs.sum()

number = 3
""",
    "alone.py": "from .mine import make\n",
    "pack/__init__.py": "",
    "pack/net.py": "from .layers import Layer\ndef make(): return Layer()\n",
    "syntax.py": "def make(:\n",
    "exits.py": "raise SystemExit(3)\n",
    "broken.toml": "= = =",
    "mistyped.toml": '[train]\nsteps = "many"\nbatch = [1]\nexact = 3\n[model]\nsequence = true\n',
    "sections.toml": "train = 3\n[nothing]\nx = 1\n",
    "plan.toml": '[plan]\nprecision = 16\ntensor = "two"\n',
    "optimizer.toml": '[optimizer]\nlr = "fast"\n',
    "rate.toml": "[rate]\nkind = 3\n",
    "data.toml": "[data]\nsource = 3\n",
    "broken.json": "{",
    "list.json": "[1, 2]",
    "deepspeed.json": '{"train_batch_size": "many", "zero_optimization": 3}',
    "accelerate.yaml": ": : :",
}

PLAN = "plan gpt2 --on H100"
MINE = "train mine.py:make --train.steps 1 --run.folder run"
SLURM = "launch --on slurm --dry-run"

COMMANDS = {  # words: field and problem
    "trian": "command: 'trian' is not one. Did you mean 'train'?",
    "plan gpt2": "on: is not given, and a forecast needs it",
    "plan gpt2 --on 8xH1000": "device: 'H1000' is not in the device table",
    f"{PLAN} --plan zero9": "plan: 'zero9' is not a word of a plan. Did",
    f"{PLAN} --plan tensor=5": "layout",
    f"{PLAN} --batch x": "batch: 'x' is not a whole number. Write",
    f"{PLAN} --batch -1": "batch: -1 is not a number of sequences",
    f"{PLAN} --sequence 0": "sequence: 0 is not a length",
    f"{PLAN} --tokens many": "samples: 'many' is not a number. Write",
    f"{PLAN} --gird 3": "option: '--gird' is not one of stepladder plan. Did you mean '--grid'?",
    f"{PLAN} --calibration broken.json": "calibration: broken.json cannot be read",
    f"{PLAN} --from-deepspeed broken.json": "file: broken.json is not JSON",
    f"{PLAN} --from-deepspeed deepspeed.json": "train_batch_size: 'many' is not a number",
    f"{PLAN} --from-accelerate accelerate.yaml": "file: accelerate.yaml is not YAML",
    f"{PLAN} --save no/where.toml": "save: no/where.toml cannot be written",
    f"{PLAN} --sample mine.py:batch": "sample: is for a model of your own",
    "plan list.json --on H100": "model: list.json holds no table of settings",
    "plan gpt:layers=x --on H100": "model.layers: 'x' is not a whole number",
    "plan gpt:layer=3 --on H100": "model: 'layer' is not part of a shape. Did",
    "plan mine.py:make --on H100": "Check that the sample is what its forward takes",
    "plan mine.py:mak --on H100": "model: mine.py has no 'mak'. Did",
    "plan mine.py:number --on H100": "model: mine.py:number is of type int",
    "plan none.py:make --on H100": "model: there is no file none.py. Write",
    "plan syntax.py:make --on H100": "model: syntax.py cannot be imported (SyntaxError",
    "plan exits.py:make --on H100": "model: exits.py cannot be imported (SystemExit",
    "plan pack/net.py:make --on H100": "Name it as part of its package: pack.net:NAME",
    "plan alone.py:make --on H100": "or import without the dot",
    "plan --page --port x": "port: 'x' is not a whole number",
    "plan --page --port -1": "page: 127.0.0.1 port -1 cannot be served",
    "train none.toml": "run file: none.toml cannot be read",
    "train broken.toml": "run file: broken.toml is not TOML",
    "train mistyped.toml": "train.steps: 'many' is not a whole number",
    "train sections.toml": "train: is a section, not a value. Write [train]",
    "train plan.toml": "layout.tensor: 'two' is not a whole number",
    "train optimizer.toml": "optimizer.lr: 'fast' is not a number",
    "train rate.toml": "rate: '3' is not a schedule",
    "train data.toml": "data.source: '3' is neither a source nor a path",
    "train gpt9": "model: 'gpt9' is not a known model. Did",
    "train --train.stepps 3": "train.stepps: is not a setting. Did",
    "train --train.steps 0": "train.steps: 0 is too few. Use",
    "train --train.steps": "train.steps: has no value. Write",
    "train --model.dropout 2": "model.dropout: 2.0 is not a share of the activations",
    "train --train.device gpu": "device: 'gpu' is not a device. Did",
    "train --data.source nowhere": "data.source: 'nowhere' is neither a source nor a path",
    "train --plan bf17": "plan: 'bf17' is not a word of a plan. Did",
    "train --ranks x": "ranks: 'x' is not a whole number. Write",
    "train --nodes 2": "rendezvous: missing, while --nodes is given. Write",
    "train --optimizer.name adamm": "optimizer: 'adamm' is not an optimizer. Did",
    "train --train.nonfinite no": "train.nonfinite: 'no' is not a policy. Choose",
    "train --run.track wandbb": "run.track: 'wandbb' is not a tracker. Did",
    f"{MINE} --sample mine.py:batch": "batch: '0' of Sequential does not take its inputs",
    f"{MINE} --sample mine.py:text": "sample: mine.py:text is no batch",
    f"{MINE} --sample mine.py:broken": "sample: mine.py:broken failed (ZeroDivisionError",
    f"{MINE} --sample good": "sample: 'good' does not name a batch of yours. Write",
    f"{MINE} --sample mine.py:good --loss mine.py:one": "loss: one(outputs) cannot be called with",
    f"{MINE} --data mine.py:number": "data",
    "train mine.py:wants": "model: mine.py:wants cannot be called by its name alone",
    "train nomodule.thing:make": "model: there is no module 'nomodule'",
    "launch --on moon": "on: 'moon' is not one. Choose one of: local, ssh",
    f"{SLURM} --nodes x": "nodes: 'x' is not a number of machines. Write",
    f"{SLURM} --time x": "time: 'x' is not a time of Slurm's. Write",
    f"{SLURM} --sweep lr": "sweep: 'lr' is not a key and its values. Write",
    "launch --on ssh --dry-run": "hosts: missing. Name",
    "launch --on kubernetes --dry-run": "image: missing",
    "launch none.py --dry-run": "script: there is no none.py. Check",
    "calibrate --seconds x": "seconds: 'x' is not a number. Write",
    "calibrate --seconds -1": "seconds: -1 is no time to measure in. Use",
    "profile --steps x": "steps: 'x' is not a whole number. Write",
    "profile --steps 0": "steps: 0 is",
    "verify": "what: is not given. Write stepladder verify",
    "verify presicion": "what: 'presicion' is not one. Did you mean 'precision'?",
    "verify parity --plans=": "plans: '' names no plan. Write",
    "verify parity mine.py:nothing": "mine.py has no 'nothing'. Choose one of:",
    "verify parity --steps x": "steps: 'x' is not a whole number",
    "verify parity --device gpu": "device: 'gpu' is not a device. Did",
    "verify precision --other bf17": "precision: 'bf17' is not a precision. Did",
    "report none": "run folder: none does not exist. Name",
    "report mine.py": "run folder: mine.py is a file, not a folder. Name",
    "watch": "RUN: is not given. Write stepladder watch",
    "checkpoint verify none": "checkpoint: none holds none. Name",
    "checkpoint convert none": "out: is missing. Say where",
    "checkpoint convert none out --dtype int8": "dtype: 'int8' is not one. Choose",
    "checkpoint convert none out --shard -1": "shard: -1 is not a size in GiB. Try",
    "lab start nothing": "lab: there is no lab called 'nothing'. Choose",
    "lab check loss-scale none.py": "file: none.py is not here",
    "bench presicion": "name: 'presicion' is not one. Did you mean 'precision'?",
    "bench precision --steps 0": "steps: 0 is not a number of 1 or more",
    "bench ring --ranks x": "ranks: 'x' is not a whole number of 1 or more",
    "bench precision --device gpu": "device: 'gpu' is not a device. Did",
    "completion tcsh": "shell: 'tcsh' is not one. Choose one of: bash, zsh, fish",
    "doctor --limit x": "limit: 'x' is not a number. Write",
    "doctor --limit -1": "limit: -1 is not a time for each check. Use",
    "doctor extra": "option: 'extra' is not one of stepladder doctor",
}
