"""The page on other projects: their side of it runs too, and both sides take the same steps."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

import stepladder as sl
from stepladder.data import SampleOrder

from .blocks import ROOT, blocks

PAGE = ROOT / "docs" / "coming_from.md"
HERE = {  # what a laptop's processor has no use for
    '"bf16-mixed"': '"32-true"',
    'strategy="fsdp"': 'accelerator="cpu", logger=False, enable_checkpointing=False, '
    "enable_progress_bar=False, enable_model_summary=False",
    'mixed_precision="bf16"': 'mixed_precision="no", cpu=True',
    '"bf16 ': '"fp32 ',
}
ROWS, STEPS = 64, 4


def body(words: str, language: str) -> str:
    """The page's block that holds these words, for this machine."""
    (found,) = [b.body for b in blocks(PAGE) if b.language == language and words in b.body]
    for theirs, ours in HERE.items():
        found = found.replace(theirs, ours)
    return found


@pytest.fixture
def names():
    """What both sides take for granted, with the batches that stepladder draws."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 8, generator=draw)
    dataset = TensorDataset(x, torch.randint(0, 4, (ROWS,), generator=draw))
    order = SampleOrder(ROWS, 0, True).indices(np.arange(16 * STEPS)).tolist()
    loader = DataLoader(Subset(dataset, order), batch_size=8)
    return {"dataset": dataset, "loader": loader, "torch": torch, "F": F, "sl": sl}


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(8, 4)


def assert_same(one: torch.nn.Module, other: torch.nn.Module) -> None:
    first = model().weight
    for theirs, ours in zip(one.parameters(), other.parameters()):
        assert torch.allclose(theirs, ours, atol=1e-6)
    assert not torch.allclose(next(one.parameters()), first, atol=1e-4)


def test_lightning_and_we_take_the_same_steps(names, tmp_path, monkeypatch):
    pytest.importorskip("pytorch_lightning", reason="its side is run by itself")
    monkeypatch.chdir(tmp_path)
    exec(body("class Classifier", "python"), names)
    torch.manual_seed(0)
    names["module"] = names["Classifier"]()
    exec(body("L.Trainer(", "py"), names)
    torch.manual_seed(0)
    exec(body("sl.from_lightning", "python"), names)
    assert_same(names["module"], names["run"].module)


def test_accelerate_and_we_take_the_same_steps(names):
    accelerate = pytest.importorskip("accelerate", reason="its side is run by itself")
    before = dict(os.environ)
    theirs = names["model"] = model()
    names["optimizer"] = torch.optim.AdamW(
        theirs.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.0
    )
    names["Accelerator"] = accelerate.Accelerator
    try:
        exec(body("Accelerator(", "py"), names)
    finally:  # it keeps what it was told in the process and in its environment
        accelerate.state.AcceleratorState._reset_state(True)
        os.environ.clear()
        os.environ.update(before)
    names["model"] = model()
    exec(body("print(report.loss)", "python"), names)
    assert_same(theirs, names["run"].module)
