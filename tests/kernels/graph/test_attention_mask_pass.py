"""Attention is called without a mask that hides the future or nothing, and with every other."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from stepladder.kernels.graph import attention_mask_pass
from stepladder.kernels.graph.attention_mask_pass import ATTENTION, AttentionMaskPass, every_graph

LENGTH = 6


def compared(x):
    steps = torch.arange(x.shape[1])
    return (steps[None, :] <= steps[:, None])[None, None]


def lower_triangle(x):
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


def added(x):
    return torch.full((LENGTH, LENGTH), -torch.inf).triu(1)


def added_in_place(x):
    mask = torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
    mask |= ~torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu_(1)
    return mask.expand(len(x), 1, -1, -1)


def least_number(x):
    mask = torch.zeros(LENGTH, LENGTH)
    return mask.masked_fill_(torch.ones(LENGTH, LENGTH).triu(1).bool(), torch.finfo(x.dtype).min)


def packed_rows(x):
    """As Hugging Face's decoders find where a packed row goes on with another document."""
    positions = torch.arange(LENGTH)[None].expand(len(x), -1)
    step = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
    document = (step != 1).cumsum(-1)
    return (document[:, None, :, None] == document[:, None, None, :]) & compared(x)


def compared_by_methods(x):
    """As torch 2.11 traces what is inside of `torch.vmap`."""
    steps = torch.arange(LENGTH)
    document = torch.zeros(LENGTH).long()
    same = document[:, None].__eq__(document[None, :])
    return steps[None, :].__le__(steps[:, None]).__and__(same)


def nothing_hidden(x):
    return torch.ones(LENGTH, dtype=torch.bool)[None, None, None, :]


def window(x):
    steps = torch.arange(LENGTH)
    return compared(x) & (steps[None, :] > steps[:, None] - 3)


def padding(x):
    return compared(x) & (x[:, None, None, :, 0] > -9)


def padding_written(x):
    mask = lower_triangle(x)
    mask[:, 0] = x[0, :, 0] > -9
    return mask


def padding_written_by_a_method(x):
    return lower_triangle(x).__iand__(x[0, :, 0] > -9)


def biased(x):
    steps = torch.arange(LENGTH)
    return added(x) - (steps[None, :] - steps[:, None]).abs() * 0.5


def random(x):
    return torch.rand(LENGTH, LENGTH) > -1


class Attention(nn.Module):
    def __init__(self, mask, *, recompute=False):
        super().__init__()
        self.mask, self.recompute = mask, recompute

    def attend(self, x, mask):
        heads = x[:, None].expand(-1, 2, -1, -1)
        return scaled_dot_product_attention(heads, heads * 2, heads + 1, mask)

    def forward(self, x):
        mask = self.mask(x)
        if self.recompute:
            return checkpoint(self.attend, x, mask, use_reentrant=False)
        return self.attend(x, mask)


def attentions(module, *given):
    """Each attention's arguments after the pass; the results are those of the module."""
    found = []

    def look(captured, _):
        AttentionMaskPass()(captured.graph)
        for graph in every_graph(captured.graph):
            graph.lint()
            graph.owning_module.recompile()
            found.extend(node.kwargs for node in graph.nodes if node.target is ATTENTION)
        return captured.forward

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(module, backend=look)(*given), module(*given))
    return found


@pytest.mark.parametrize(
    "mask",
    [
        compared, compared_by_methods, lower_triangle, added, added_in_place, least_number,
        packed_rows,
    ],
)  # fmt: skip
@pytest.mark.parametrize("recompute", [False, True])
def test_a_mask_that_hides_the_future_becomes_is_causal(mask, recompute):
    x = torch.randn(3, LENGTH, 4, requires_grad=recompute)
    (found,) = attentions(Attention(mask, recompute=recompute), x)
    assert found["attn_mask"] is None and found["is_causal"] is True


def test_a_mask_that_hides_nothing_is_left_out():
    (found,) = attentions(Attention(nothing_hidden), torch.randn(3, LENGTH, 4))
    assert found["attn_mask"] is None and "is_causal" not in found


@pytest.mark.parametrize(
    "mask", [window, padding, padding_written, padding_written_by_a_method, biased]
)
def test_any_other_mask_stays(mask):
    (found,) = attentions(Attention(mask), torch.randn(3, LENGTH, 4))
    assert found.get("attn_mask", "by position") is not None


def test_a_random_mask_stays_whatever_it_would_be():
    (found,) = attentions(Attention(random), torch.randn(3, LENGTH, 4))
    assert "is_causal" not in found


class Narrowing(nn.Module):
    """The mask of the first attention is changed before the second."""

    def forward(self, x):
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        first = scaled_dot_product_attention(x, x, x, mask)
        mask &= torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(-1)
        return scaled_dot_product_attention(first, x, x, mask)


def test_a_mask_counts_as_it_is_when_attention_reads_it():
    first, second = attentions(Narrowing(), torch.randn(2, 2, LENGTH, 4))
    assert first["is_causal"] is True
    assert "is_causal" not in second


def test_a_length_that_varies_keeps_its_mask():
    module, found = Attention(compared), []

    def look(captured, _):
        AttentionMaskPass()(captured.graph)
        found.extend(n.kwargs for n in captured.graph.nodes if n.target is ATTENTION)
        return captured.forward

    torch._dynamo.reset()
    torch.compile(module, backend=look, dynamic=True)(torch.randn(3, LENGTH, 4))
    assert [bool(each.get("is_causal")) for each in found] == [False]


def expanded(x, times):
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, times, length, width).reshape(
        batch, heads * times, length, width
    )  # fmt: skip


class Grouped(nn.Module):
    def __init__(self, repeat, mask=compared):
        super().__init__()
        self.repeat, self.mask = repeat, mask

    def forward(self, q, k, v):
        mask = self.mask(q.transpose(1, 2))
        return scaled_dot_product_attention(q, self.repeat(k), self.repeat(v), attn_mask=mask)


HEADS = torch.randn(2, 8, LENGTH, 4), torch.randn(2, 2, LENGTH, 4), torch.randn(2, 2, LENGTH, 4)


@pytest.mark.parametrize(
    "repeat",
    [
        lambda x: expanded(x, 4),
        lambda x: x.unsqueeze(2).expand(-1, -1, 4, -1, -1).flatten(1, 2),
        lambda x: torch.repeat_interleave(x, 4, dim=1),
        lambda x: x.repeat_interleave(4, 1),
        lambda x: x.repeat_interleave(4, dim=-3),
    ],
)
def test_keys_repeated_for_a_group_are_read_once(monkeypatch, repeat):
    monkeypatch.setattr(attention_mask_pass, "reads_keys_once", lambda query: True)
    (found,) = attentions(Grouped(repeat), *HEADS)
    assert found["enable_gqa"] is True and found["is_causal"] is True


@pytest.mark.parametrize(
    "repeat",
    [
        lambda x: x.repeat(1, 4, 1, 1),  # heads in another order
        lambda x: x[:, None].expand(-1, 4, -1, -1, -1).reshape(2, 8, LENGTH, 4),
        lambda x: x[:, :, None].expand(-1, -1, 4, -1, -1).mul(2).reshape(2, 8, LENGTH, 4),
    ],
)
def test_heads_in_another_order_stay(monkeypatch, repeat):
    monkeypatch.setattr(attention_mask_pass, "reads_keys_once", lambda query: True)
    (found,) = attentions(Grouped(repeat), *HEADS)
    assert "enable_gqa" not in found and found["is_causal"] is True


def test_keys_stay_repeated_where_attention_would_repeat_them_itself():
    (found,) = attentions(Grouped(lambda x: expanded(x, 4)), *HEADS)
    assert "enable_gqa" not in found
