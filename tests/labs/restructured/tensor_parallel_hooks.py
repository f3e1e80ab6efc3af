"""The lab 'tensor-parallel' without autograd functions: hooks, and torch's own collective."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


def everyones(tensor):
    total = tensor.clone()
    dist.all_reduce(total)
    return total


class CutMLP(nn.Module):
    def __init__(self, up, down):
        super().__init__()
        ways, rank = dist.get_world_size(), dist.get_rank()
        width = up.out_features // ways
        mine = slice(rank * width, (rank + 1) * width)
        self.up = nn.Parameter(up.weight[mine].detach().clone())
        self.up_bias = nn.Parameter(up.bias[mine].detach().clone())
        self.down = nn.Parameter(down.weight[:, mine].detach().clone())
        self.down_bias = nn.Parameter(down.bias.detach().clone())

    def forward(self, x):
        x = x.view_as(x)
        x.register_hook(everyones)
        part = F.gelu(x @ self.up.T + self.up_bias) @ self.down.T
        with torch.no_grad():
            others = everyones(part) - part
        return part + others + self.down_bias
