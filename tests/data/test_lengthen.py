"""Rows of unequal length are padded alike on all ranks."""

import torch
from torch import nn

from stepladder.data import batches
from stepladder.data.lengthen import lengthen
from stepladder.train import climb
from tests.ranks import run

LENGTHS = (2, 5, 3, 7, 4, 1, 6, 2)
DRAW = torch.Generator().manual_seed(0)
SAMPLES = [
    (torch.randint(1, 9, (n,), generator=DRAW), torch.randint(0, 3, (n,), generator=DRAW))
    for n in LENGTHS
]


class Both(nn.Module):
    """Sees both neighbours of a token, and so the padding behind a row."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.mix = nn.Conv1d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens):
        mixed = torch.tanh(self.mix(self.embed(tokens).mT).mT)
        return self.head(mixed + mixed.mean(1, keepdim=True))


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def padded(samples):
    tokens, targets = zip(*samples)
    pad = nn.utils.rnn.pad_sequence
    return pad(tokens, True), pad(targets, True, -100)


def plain_losses():
    torch.manual_seed(0)
    module = Both()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    found = []
    for first in (0, 4):
        tokens, targets = padded(SAMPLES[first : first + 4])
        value = loss(module(tokens), targets)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(value.item())
    return found


def ragged_losses():
    torch.manual_seed(0)
    run = climb(Both(), loss=loss, optimizer="sgd lr=0.5", plan="fp32 ddp", device="cpu")
    read = iter(run.batches(SAMPLES, size=4, shuffle=False, workers=0))
    return [run.step(next(read)).loss for _ in range(2)]


def test_ranks_pad_to_the_longest_row_of_the_whole_batch():
    wanted = torch.tensor(plain_losses())
    for found in run(ragged_losses, 2, init=False):
        torch.testing.assert_close(torch.tensor(found), wanted, rtol=1e-5, atol=0)


def test_each_column_is_padded_with_its_own_value():
    samples = [
        {"input_ids": torch.ones(n).long(), "attention_mask": torch.ones(n).long(),
         "labels": torch.ones(n).long(), "features": torch.ones(3).long()}
        for n in (2, 4)
    ]  # fmt: skip
    batch = next(iter(batches(samples, size=2, shuffle=False, workers=0)))
    longer = lengthen(batch, {4: 6, 3: 3}.get)
    ends = {key: tensor[1, 4:].tolist() for key, tensor in longer.inputs.items()}
    assert ends == {
        "input_ids": [0, 0], "attention_mask": [0, 0], "labels": [-100, -100], "features": []
    }  # fmt: skip
    assert longer.targets is longer.inputs["labels"] and longer.valid == batch.valid
