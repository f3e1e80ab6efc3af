"""What the tally takes for attention, and for causal attention."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stepladder.model import count_flops

torch.set_num_threads(1)
LENGTH, WIDTH = 16, 8
WHOLE = 4 * 2 * LENGTH * LENGTH * WIDTH  # scores and mixing, batch of two


class Written(nn.Module):
    """Attention written out, masked by a given function of its scores."""

    def __init__(self, mask):
        super().__init__()
        self.mask = mask
        self.bias = nn.Parameter(torch.zeros(LENGTH, LENGTH))

    def forward(self, hidden):
        scores = self.mask(hidden @ hidden.transpose(1, 2) / 8, self.bias)
        return F.dropout(scores.softmax(-1), 0.1) @ hidden


def lower(scores):
    return torch.ones_like(scores[0], dtype=torch.bool).tril()


MASKS = {
    "fill": lambda scores, bias: scores.masked_fill(~lower(scores), float("-inf")),
    "where": lambda scores, bias: torch.where(lower(scores), scores, -1e9),
    "add whole": lambda scores, bias: scores + torch.full_like(scores, -1e9).triu(1),
    "add": lambda scores, bias: scores + torch.full_like(scores[0], -1e9).triu(1),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_mask_that_differs_from_query_to_query_halves(mask):
    flops = count_flops(Written(mask), torch.zeros(2, LENGTH, WIDTH))
    assert flops.forward == flops.attention == WHOLE // 2


OTHERS = {
    "none": lambda scores, bias: scores,
    "padding": lambda scores, bias: scores.masked_fill(
        torch.zeros(2, 1, LENGTH, dtype=torch.bool).expand(2, LENGTH, LENGTH), float("-inf")
    ),
    "learned": lambda scores, bias: scores + bias,
    "scaled": lambda scores, bias: scores * 3,
}


@pytest.mark.parametrize("mask", OTHERS.values(), ids=OTHERS)
def test_other_attention_counts_whole(mask):
    flops = count_flops(Written(mask), torch.zeros(2, LENGTH, WIDTH))
    assert flops.forward == flops.attention == WHOLE


def test_written_attention_wants_as_many_gradients_as_fused():
    class Fused(nn.Linear):
        def forward(self, hidden):
            heads = super().forward(hidden)
            return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)

    class Plain(nn.Linear):
        def forward(self, hidden):
            heads = super().forward(hidden)
            return Written(MASKS["fill"])(heads)

    inputs = torch.zeros(2, LENGTH, WIDTH)
    fused = count_flops(Fused(WIDTH, WIDTH), inputs)
    written = count_flops(Plain(WIDTH, WIDTH), inputs)
    assert (fused.forward, fused.backward) == (written.forward, written.backward)
    assert fused.attention == WHOLE // 2


def test_fused_attention_counts_only_the_gradients_asked_for():
    class Queries(nn.Linear):
        def forward(self, hidden):
            return F.scaled_dot_product_attention(super().forward(hidden), hidden, hidden)

    flops = count_flops(Queries(WIDTH, WIDTH, bias=False), torch.zeros(2, LENGTH, WIDTH))
    linear = 2 * 2 * LENGTH * WIDTH * WIDTH
    assert flops.backward == linear + 2 * (WHOLE // 2)  # the scores' gradient, then the queries'


def test_a_square_matmul_without_a_softmax_is_not_attention():
    class Square(nn.Module):
        def forward(self, hidden):
            return hidden @ hidden.transpose(1, 2)

    flops = count_flops(Square(), torch.zeros(2, LENGTH, WIDTH))
    assert (flops.forward, flops.attention) == (WHOLE // 2, 0)


def test_grouped_and_transposed_convolutions_count_what_they_multiply():
    images = torch.zeros(1, 8, 6, 6)
    grouped = count_flops(nn.Conv2d(8, 8, 3, padding=1, groups=4), images)
    assert grouped.forward == 2 * 36 * 8 * 2 * 9
    widened = count_flops(nn.ConvTranspose2d(8, 4, 2, stride=2), images)
    assert widened.forward == 2 * 36 * 8 * 4 * 4
