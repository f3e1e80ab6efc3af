"""Your own language model, letter by letter, on the source of Python's argparse."""

import argparse
import inspect

import torch
from torch import nn

import stepladder as sl

LENGTH = 48
TEXT = inspect.getsource(argparse)
LETTERS = sorted(set(TEXT))


class Windows:
    """Pieces of the text; the target of each letter is the next one."""

    def __init__(self, text):
        self.ids = torch.tensor([LETTERS.index(letter) for letter in text])

    def __len__(self):
        return len(self.ids) - LENGTH

    def __getitem__(self, start):
        piece = self.ids[start : start + LENGTH + 1]
        return piece[:-1], piece[1:]


class LanguageModel(nn.Module):
    def __init__(self, width=48, layers=2):
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), width)
        self.positions = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, len(LETTERS))

    def forward(self, ids):  # (batch, length)
        length = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device)
        x = self.letters(ids) + self.positions(torch.arange(length, device=ids.device))
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


@torch.no_grad()
def write(model, start, letters):
    """Go on from a text, each letter drawn from what the model expects."""
    device = next(model.parameters()).device
    ids = [LETTERS.index(letter) for letter in start]
    for _ in range(letters):
        logits = model(torch.tensor([ids[-LENGTH:]], device=device))[0, -1]
        ids.append(int(torch.multinomial(torch.softmax(logits / 0.5, -1), 1)))
    return "".join(LETTERS[index] for index in ids)


torch.manual_seed(0)
model = LanguageModel()
run = sl.climb(
    model, loss="cross_entropy", optimizer="adamw lr=5e-3 clip=1", rate="cosine warmup=10 steps=80"
)
for report in sl.fit(run, run.batches(Windows(TEXT), size=16), steps=80):
    if report.step % 20 == 0:
        print(f"step {report.step}: loss {report.loss:.3f}")
print(write(model.eval(), "def ", 80))
