"""Losses of every kind, and a plain torch loop over whole batches to hold runs against."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

WEIGHTS = torch.tensor([0.1, 1.0, 2.0, 0.5, 3.0])
draw = torch.Generator().manual_seed(1)
INPUTS = torch.randn(16, 6, generator=draw)
CLASSES = torch.randint(0, 5, (16,), generator=draw)
IGNORED = CLASSES.clone().index_fill_(0, torch.tensor([0, 1, 2, 3, 9]), -100)
FLOATS = torch.rand(16, 5, generator=draw)
BINARY = (FLOATS > 0.5).float()


class Net(nn.Module):
    """With a last layer of zeros: every row has the same loss at first."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.last = nn.Linear(8, 5)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def net():
    torch.manual_seed(0)
    return Net()


def own_mask(outputs, targets):
    """A mean over targets other than 0, of torch's parts."""
    counted = targets != 0
    each = functional.cross_entropy(outputs, targets, reduction="none")
    return (each * counted).sum() / counted.sum()


def own_class_weights(outputs, targets):
    each = -functional.log_softmax(outputs, -1).gather(1, targets[:, None])[:, 0]
    return (each * WEIGHTS[targets]).sum() / WEIGHTS[targets].sum()


def focal(outputs, targets):
    right = functional.softmax(outputs, -1).gather(1, targets[:, None])[:, 0]
    return (-((1 - right) ** 2) * right.log()).mean()


def dice(outputs, targets, dims=None):
    p = outputs.sigmoid()
    return (1 - 2 * (p * targets).sum(dims) / (p.sum(dims) + targets.sum(dims))).mean()


def contrastive(outputs, targets):
    towards = functional.normalize(outputs + 1e-3, dim=-1)
    return functional.cross_entropy(towards @ towards.T / 0.1, torch.arange(len(outputs)))


def sample_weights(outputs, targets):
    classes, weights = targets
    each = functional.cross_entropy(outputs, classes, reduction="none")
    return (each * weights).sum() / weights.sum()


def masked_error(outputs, targets):
    each = functional.mse_loss(outputs, targets["y"], reduction="none")
    return (each * targets["mask"]).sum() / targets["mask"].sum()


def where_known(outputs, targets):
    return ((outputs - targets.nan_to_num()) ** 2)[~targets.isnan()].mean()


def two_means(outputs, targets):
    first = functional.cross_entropy(outputs, targets, ignore_index=0)
    return first + functional.cross_entropy(outputs, targets, ignore_index=1)


def with_spread(outputs, targets):
    return functional.mse_loss(outputs, targets) + outputs.std(0, correction=0).mean()


def with_penalty(outputs, targets):
    """A mean over targets, and one over rows."""
    return functional.cross_entropy(outputs, targets) + 0.1 * outputs.square().mean()


def positives(outputs, targets):
    """As detectors do: a sum over all, divided by how many are positive."""
    each = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    return each.sum() / targets.sum().clamp(min=1)


def batch_mean_kl(outputs, targets):
    return functional.kl_div(functional.log_softmax(outputs, -1), targets, reduction="batchmean")


def with_metric(outputs, targets):
    """A loss that also looks at itself."""
    with torch.no_grad():
        assert (outputs.argmax(-1) == targets).float().mean() <= 1
    return functional.cross_entropy(outputs, targets, ignore_index=3)


def triplet(outputs, targets):
    anchor, positive, negative = outputs[:, :2], outputs[:, 1:3] + 1, outputs[:, 3:] - 1
    return functional.triplet_margin_loss(anchor, positive, negative)


def cosine(outputs, targets):
    return functional.cosine_embedding_loss(outputs + 1, FLOATS[: len(outputs)] * 0 + 1, targets)


def ctc(outputs, targets):
    labels, lengths = targets
    steps = outputs[:, None, :].repeat(1, 6, 1) * torch.arange(1, 7)[None, :, None]
    return functional.ctc_loss(
        steps.log_softmax(-1).transpose(0, 1), labels, torch.full((len(outputs),), 6), lengths
    )


def straight_through(outputs, targets):
    """The value of rounded outputs, with their own gradient."""
    rounded = outputs + (outputs.round() - outputs).detach()
    return functional.mse_loss(rounded, targets)


def detached_divisor(outputs, targets):
    """1 in value however it is cut; its gradient divides by the sum over all rows."""
    total = (outputs - targets).square().sum()
    return total / total.detach()


class Centered(nn.Module):
    """With a running mean that every call in training moves, as DINO's centre."""

    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(5))

    def forward(self, outputs, targets):
        if self.training:
            self.center.mul_(0.9).add_(0.1 * outputs.detach().mean(0))
        return functional.mse_loss(outputs - self.center, targets)


SIGNS = torch.where(CLASSES > 2, 1, -1)
CTC = torch.randint(1, 5, (16, 3), generator=draw), torch.randint(1, 4, (16,), generator=draw)

SAME = {  # however a batch is cut
    "class weights": (nn.CrossEntropyLoss(weight=WEIGHTS), CLASSES),
    "class weights, ignored": (nn.CrossEntropyLoss(weight=WEIGHTS), IGNORED),
    "ignore_index=0": (nn.CrossEntropyLoss(ignore_index=0), CLASSES),
    "smoothing, ignored": (nn.CrossEntropyLoss(label_smoothing=0.1), IGNORED),
    "smoothing, weights": (nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1), IGNORED),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), IGNORED),
    "sum of squares": (nn.MSELoss(reduction="sum"), FLOATS / 8),
    "straight-through": (straight_through, FLOATS),
    "own mask": (own_mask, CLASSES),
    "own class weights": (own_class_weights, CLASSES),
    "focal": (focal, CLASSES),
    "dice by row": (lambda o, t: dice(o, t, 1), BINARY),
    "pos_weight": (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), BINARY),
    "KL": (batch_mean_kl, FLOATS.softmax(-1)),
    "Huber": (nn.HuberLoss(), FLOATS),
    "sample weights": (sample_weights, (CLASSES, FLOATS[:, 0])),
    "mask in a dict": (masked_error, {"y": FLOATS, "mask": FLOATS.flip(0) > 0.4}),
    "unknown targets": (where_known, FLOATS.masked_fill(FLOATS < 0.3, float("nan"))),
    "penalty": (with_penalty, CLASSES),
    "metric": (with_metric, CLASSES),
    "triplet": (triplet, CLASSES),
    "cosine": (cosine, SIGNS),
    "CTC": (ctc, CTC),
}
REFUSED = {  # where a batch is cut
    "contrastive": (contrastive, CLASSES),
    "dice": (dice, BINARY),
    "two means": (two_means, CLASSES),
    "penalty, ignored": (with_penalty, IGNORED),
    "by positives": (positives, BINARY * (torch.arange(16) % 3 > 0)[:, None]),
    "batch statistics": (with_spread, FLOATS),
}


def plain_loop(loss, targets, steps=3, lr=0.1, make=net, inputs=INPUTS):
    """What one device makes of whole batches: losses, and the module."""
    module = make()
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(module(inputs), targets)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses, module
