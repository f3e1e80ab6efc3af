"""Dropout inside attention keeps no matrix of weights on a GPU, whatever a CPU would keep."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stepladder.model import describe


class Attends(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.heads, self.dropout = nn.Linear(32, 32), dropout

    def forward(self, x):
        q = self.heads(x).unflatten(-1, (2, 16)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, None, self.dropout).sum((1, 2))


def test_attention_with_dropout_keeps_what_it_keeps_without():
    plain, dropped = (
        sum(
            part.eager.num_bytes(4, 4)
            for part in describe(Attends(p), sample=torch.zeros(1, 256, 32)).parts
        )
        for p in (0.0, 0.1)
    )
    assert dropped == pytest.approx(plain, rel=0.01)
