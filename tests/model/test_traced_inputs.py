"""A module that computes its own loss is described by its logits, as one that is given a loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepladder.model import describe

CLASSES, WIDTH, LENGTH, ROWS = 4096, 64, 32, 16


class Words(nn.Module):
    """Returns its loss where it is given labels, and its logits anyway."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        logits = self.head(x)
        if labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return {"loss": loss, "logits": logits}


class Shifted(Words):
    """Reads its labels, shifted, and so runs only with them."""

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        if labels is None:
            raise ValueError("no labels")
        return super().forward(labels.roll(1, -1), labels)


def batch() -> dict[str, Tensor]:
    tokens = torch.randint(0, CLASSES, (ROWS, LENGTH))
    return {"tokens": tokens, "labels": tokens.clone()}


def test_a_loss_that_a_module_computes_itself_is_counted_once() -> None:
    whole, sample = Words(), batch()
    found = describe(whole, sample=sample)
    assert found == describe(whole, sample={"tokens": sample["tokens"]})
    assert found.vocab == CLASSES
    kept = found.parts[-1].eager.num_bytes(4, 4)
    assert kept < 4 * LENGTH * CLASSES / 4  # for a sample: no logits, which are counted by shape


def test_a_module_that_reads_its_labels_is_described_with_them() -> None:
    assert describe(Shifted(), sample=batch()).vocab == CLASSES
