"""Two tasks on one trunk: a loss for each, metrics, early stopping, the best checkpoint, a journal.

`stepladder watch runs/multitask` shows the curves, also while it trains.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stepladder as sl
from stepladder.train import BestCheckpoint, EarlyStopping


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.size = nn.Linear(32, 1)
        self.sign = nn.Linear(32, 2)

    def forward(self, x):
        features = self.trunk(x)
        return {"size": self.size(features).squeeze(1), "sign": self.sign(features)}


def make_rows(rows, seed):
    x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, torch.stack((x.norm(dim=1), (x.sum(1) > 0).float()), 1))


def both_losses(outputs, targets):
    size, sign = targets[:, 0], targets[:, 1].long()
    return F.mse_loss(outputs["size"], size) + F.cross_entropy(outputs["sign"], sign)


def size_error(outputs, targets):
    return (outputs["size"] - targets[:, 0]).abs().mean()


def sign_accuracy(outputs, targets):
    return (outputs["sign"].argmax(1) == targets[:, 1]).float().mean()


metrics = {"size error": size_error, "sign accuracy": sign_accuracy}

torch.manual_seed(0)
run = sl.climb(TwoHeads(), loss=both_losses, optimizer="adamw lr=2e-2")
stop, best = EarlyStopping(patience=2), BestCheckpoint(run, "runs/multitask/best")
run.resume(best.folder)  # started again, it goes on from its best
training, held_out = make_rows(512, seed=0), DataLoader(make_rows(128, seed=1), batch_size=64)
with run.open_journal("runs/multitask") as journal:
    for report in sl.fit(run, run.batches(training, size=64), steps=400):
        journal.write("step", **report.to_dict())
        if report.step % 10 == 9:
            found = run.evaluate(held_out, metrics=metrics)
            print(f"step {report.step}: held-out loss {found.loss:.3f}")
            for name, value in found.metrics.items():
                run.log(name, value)
            best(found.loss)
            if stop(found.loss):
                break
run.load(best.path)
print(f"stopped at step {report.step}, best loss {best.value:.3f} in {best.path}")
print(run.evaluate(held_out, metrics=metrics))
