"""`plan --rehearse`, as people type it: the step's own memory beside the formula's."""

import json

import pytest

from stepladder.cli.main import main

OWN = """\
import torch
from torch import nn


def make():
    return nn.Sequential(nn.Linear(8, 512), nn.GELU(), nn.Linear(512, 4))


def batch():
    return torch.zeros(16, 8), torch.zeros(16, dtype=torch.long)


def broken():
    return nn.Linear(7, 2)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "rehearsed_code.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return "rehearsed_code.py"


def test_a_named_plan_is_rehearsed_beside_its_formula(capsys):
    words = ["gpt-tiny", "--on", "1 H100-80GB", "--plan", "bf16 micro=2 recompute=blocks"]
    assert main(["plan", *words, "--rehearse"]) == 0
    shown = capsys.readouterr().out
    for said in (
        "Rehearsed in ", "allocated peak", "The formula's allocated peak is ", "The peak is in ",
        "Largest at the peak", "To train with it",
    ):  # fmt: skip
        assert said in shown, said


def test_a_module_of_ones_own_is_rehearsed_on_a_rank_of_several(own, capsys):
    words = [f"{own}:make", "--on", "2 x H100-80GB", "--plan", "zero3 micro=8", "--rehearse"]
    assert main(["plan", *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["rehearsal"]
    (one,) = told["ranks"]
    assert told["fits"] and told["seconds"] > 0
    assert one["rank"] == 0 and one["ranks"] == 2
    assert one["reserved_bytes"] >= one["allocated_bytes"] > one["memory"]["parameters"] > 0


def test_the_best_plan_is_rehearsed_where_none_is_named(own, capsys):
    words = [f"{own}:make", "--on", "1 H100-80GB", "--batch", "16", "--rehearse", "--json"]
    assert main(["plan", *words]) == 0
    told = json.loads(capsys.readouterr().out)
    best = told["ranked"][0]["plan"].split()
    assert told["rehearsal"]["ranks"][0]["plan"].split()[0] == best[0]


DEEP = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 4096), nn.Linear(4096, 32)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(32, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def batch():
    return torch.zeros(1024, 32), torch.zeros(1024, dtype=torch.long)
"""


def test_what_does_not_fit_ends_somewhere_and_changes_are_rehearsed(tmp_path, monkeypatch, capsys):
    (tmp_path / "deep_code.py").write_text(DEEP)
    monkeypatch.chdir(tmp_path)
    plan = "fp32 micro=8192 batch=8192 memory=1GiB"
    words = ["plan", "deep_code.py:Deep", "--on", "1 H100-80GB", "--rehearse", "--plan", plan]
    assert main(words) == 1
    shown = capsys.readouterr().out
    assert "Rehearsed, it DOES NOT FIT." in shown and " can be used. It ends in " in shown
    assert "Largest owner: " in shown and " GiB made in layers." in shown
    assert "Changes, cheapest first, each rehearsed" in shown


def test_what_cannot_be_rehearsed_is_refused_in_one_line(own, capsys):
    words = [f"{own}:broken", "--sample", f"{own}:batch", "--on", "1 H100-80GB"]
    assert main(["plan", *words, "--plan", "fp32 micro=8", "--rehearse"]) == 2
    refused = capsys.readouterr().err.splitlines()
    assert refused[-1].count("Traceback") == 0
    words = ["gpt-tiny", "--on", "2 x H100-80GB", "--plan", "zero3 offload=parameters"]
    assert main(["plan", *words, "--rehearse"]) == 2
    assert "offload=parameters cannot be rehearsed" in capsys.readouterr().err


def test_the_time_of_the_step_is_told_by_its_operations_too(own, capsys):
    words = [f"{own}:make", "--on", "1 x H200", "--plan", "bf16 micro=8", "--calibration", "none"]
    assert main(["plan", *words, "--rehearse"]) == 0
    (line,) = (one for one in capsys.readouterr().out.splitlines() if "A step takes" in one)
    assert "kernels, between" in line and "s by the formula; asking for them takes the host" in line
