"""Attention and the call inside it."""

import pytest
import torch
from torch import nn

from stepladder.errors import ModelError, PlanError
from stepladder.model import build, set_attention
from stepladder.model.builtin.attention import (
    Attention,
    document_mask,
    flash_attention,
    fused_attention,
    plain_attention,
)

torch.set_num_threads(1)


def heads(count, length=6, width=4):
    return torch.randn(2, count, length, width, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_the_formula_and_the_fused_kernel_agree(kv_heads, causal):
    query, key, value = heads(4), heads(kv_heads), heads(kv_heads) + 1
    plain = plain_attention(query, key, value, causal=causal)
    torch.testing.assert_close(fused_attention(query, key, value, causal=causal), plain)
    torch.testing.assert_close(flash_attention(query, key, value, causal=causal), plain)


def test_a_causal_token_looks_at_itself_and_back():
    query, key, value = heads(1), heads(1), heads(1)
    seen = plain_attention(query, key, value)
    torch.testing.assert_close(seen[..., 0, :], value[..., 0, :])


@pytest.mark.parametrize("attend", [plain_attention, fused_attention, flash_attention])
def test_fewer_queries_than_keys_are_the_last_of_them(attend):
    query, key, value = heads(4), heads(2), heads(2) + 1
    whole, last = attend(query, key, value), attend(query[:, :, 4:], key, value)
    torch.testing.assert_close(last, whole[:, :, 4:])


def test_the_last_documents_look_at_all_that_were_seen():
    seen = torch.tensor([[0, 0, 1, 1]])
    assert torch.equal(document_mask(seen[:, 2:], seen), document_mask(seen)[:, :, 2:])


def test_a_document_mask_is_causal_and_keeps_documents_apart():
    mask = document_mask(torch.tensor([[0, 0, 1]]))
    assert mask[0, 0].tolist() == [[True, False, False], [True, True, False], [False, False, True]]


@pytest.mark.parametrize("attend", [plain_attention, fused_attention])
def test_a_mask_is_obeyed(attend):
    query, key, value = heads(2, length=3), heads(2, length=3), heads(2, length=3)
    mask = document_mask(torch.tensor([[0, 0, 1]]))
    seen = attend(query, key, value, mask=mask)
    torch.testing.assert_close(seen[..., 2, :], value[..., 2, :])


def test_a_cut_of_the_heads_computes_its_share_of_the_whole():
    torch.manual_seed(0)
    whole, hidden = Attention(8, 4, 2, bias=False), torch.randn(2, 5, 8)
    parts = []
    for half in range(2):
        part = Attention(8, 4, 2, bias=False)
        for name in ("query", "key", "value"):
            rows = getattr(whole, name).weight.chunk(2)[half]
            getattr(part, name).weight = nn.Parameter(rows)
        part.out.weight = nn.Parameter(whole.out.weight.chunk(2, 1)[half])
        parts.append(part(hidden))
    torch.testing.assert_close(parts[0] + parts[1], whole(hidden))


def test_setting_attention_reaches_every_block_and_leaves_the_numbers():
    model, tokens = build("llama-tiny"), torch.arange(20).view(2, 10)
    before = model(tokens)
    for kind, attend in [("plain", plain_attention), ("flash", flash_attention)]:
        set_attention(model, kind)
        assert all(block.attention.attend is attend for block in model.blocks)
        torch.testing.assert_close(model(tokens), before)


def test_an_unknown_way_to_attend_is_answered_with_the_nearest():
    with pytest.raises(PlanError) as caught:
        set_attention(build("gpt-tiny", device="meta"), "flsh")
    assert str(caught.value) == ("attention: 'flsh' is not a way to attend. Did you mean 'flash'?")


def test_a_module_without_our_attention_cannot_be_told_how():
    set_attention(nn.Linear(2, 2), "auto")
    with pytest.raises(ModelError) as caught:
        set_attention(nn.Linear(2, 2), "plain")
    assert str(caught.value) == (
        "Linear: has no attention that can be replaced. Use attention=auto."
    )


def test_flash_refuses_a_mask():
    with pytest.raises(ModelError) as caught:
        flash_attention(heads(2), heads(2), heads(2), mask=torch.ones(6, 6, dtype=torch.bool))
    assert str(caught.value) == (
        "attention: the flash kernel takes no mask, and packed documents need one. "
        "Use attention=auto."
    )


def test_flash_refuses_heads_no_kernel_takes():
    odd = heads(2).to(torch.float8_e4m3fn)
    with pytest.raises(ModelError) as caught:
        flash_attention(odd, odd, odd)
    assert str(caught.value) == (
        "attention: no flash kernel on cpu takes float8_e4m3fn heads of 4. "
        "Use attention=auto, or precision=bf16 and heads of at most 256."
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the limit on heads is the GPU kernel's")
def test_flash_is_refused_before_the_run_where_the_heads_are_too_wide():
    model = build("gpt:layers=1,hidden=512,heads=1", device="cuda")
    with pytest.raises(ModelError) as caught:
        set_attention(model, "flash")
    assert "no flash kernel on cuda takes bfloat16 heads of 512" in str(caught.value)
    assert model.blocks[0].attention.attend is fused_attention
