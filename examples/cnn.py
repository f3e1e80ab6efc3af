"""Your own CNN: a module, a dataset, a loop. Nothing changes for a GPU, or under torchrun."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepladder as sl


def make_stripes(rows, seed):
    """Noisy images of stripes in one of four directions; the direction is the class."""
    draw = torch.Generator().manual_seed(seed)
    classes = torch.randint(0, 4, (rows,), generator=draw)
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    directions = torch.stack([x, y, x + y, x - y])[classes]  # (rows, 16, 16)
    phases = 6.28 * torch.rand(rows, 1, 1, generator=draw)
    images = torch.sin(directions + phases) + 0.5 * torch.randn(rows, 16, 16, generator=draw)
    return TensorDataset(images.unsqueeze(1), classes)


def accuracy(outputs, targets):
    return (outputs.argmax(-1) == targets).float().mean()


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(32, 4),
)  # fmt: skip

run = sl.climb(model, loss="cross_entropy", optimizer="adamw lr=1e-2")
for report in sl.fit(run, run.batches(make_stripes(1024, seed=0), size=64), steps=40):
    if report.step % 10 == 0:
        print(f"step {report.step}: loss {report.loss:.3f}")

held_out = DataLoader(make_stripes(256, seed=1), batch_size=64)
print(run.evaluate(held_out, metrics={"accuracy": accuracy}))
run.save("runs/cnn")
