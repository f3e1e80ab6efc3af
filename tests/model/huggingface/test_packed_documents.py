"""Hugging Face models on packed documents: no token sees another document, and a run trains."""

import numpy as np
import pytest
import torch
import transformers

import stepladder as sl
from stepladder.data.packing import pack
from stepladder.errors import ModelError
from stepladder.model.huggingface.packed_documents import (
    accept_packed_documents,
    huggingface_inputs,
)

ROWS = [[5, 6, 7], [8, 9, 10, 11, 12], [13, 14, 15, 16, 17]]


def small(kind, attention, **more):
    config = kind(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        attn_implementation=attention,
        **more,
    )
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def llama(attention):
    return small(transformers.LlamaConfig, attention)


def gpt2(attention):
    config = transformers.GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, attn_implementation=attention
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_packed_row_gives_each_document_what_it_gets_alone(make, attention):
    model = accept_packed_documents(make(attention))
    inputs, _ = pack(ROWS, 12).fetch(np.array([0]))
    embedded = []
    model.get_input_embeddings().register_forward_hook(lambda *call: embedded.append(call[2]))
    together = model(**inputs).logits
    (gradient,) = torch.autograd.grad(together[0, 7].square().sum(), embedded)
    seen = (gradient[0].abs().sum(-1) > 0).nonzero().flatten().tolist()
    assert seen == [3, 4, 5, 6, 7]
    alone = [model(input_ids=torch.tensor([row])).logits[0] for row in ROWS]
    assert torch.allclose(together[0], torch.cat(alone)[:12], atol=1e-5)
    leaking = model(input_ids=inputs["tokens"]).logits
    assert not torch.allclose(together[0, 3:], leaking[0, 3:], atol=1e-3)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_model_that_looks_back_only_so_far_does_so_in_packed_rows_too(attention):
    model = accept_packed_documents(small(transformers.MistralConfig, attention, sliding_window=3))
    inputs, _ = pack(ROWS, 12).fetch(np.array([0]))
    together = model(**inputs).logits
    alone = [model(input_ids=torch.tensor([row])).logits[0] for row in ROWS]
    assert torch.allclose(together[0], torch.cat(alone)[:12], atol=1e-5)


def test_a_model_that_looks_back_in_several_ways_is_refused_where_that_shows():
    gemma = small(transformers.Gemma2Config, "eager", sliding_window=8, head_dim=8)
    model = accept_packed_documents(gemma)
    with pytest.raises(ModelError, match=r"has blocks that look back on 8 tokens beside others"):
        model(**pack(ROWS, 12).fetch(np.array([0]))[0])
    model(**pack(ROWS, 8).fetch(np.array([0]))[0])


def test_a_run_trains_on_packed_rows():
    run = sl.climb(accept_packed_documents(llama("sdpa")), loss="cross_entropy", plan="fp32")
    with run.batches(pack(ROWS * 8, 12), size=4, seed=0) as batches:
        losses = [run.step(batch).loss for batch, _ in zip(batches, range(4))]
    assert losses[-1] < losses[0]


def test_inputs_without_documents_only_change_their_names():
    found = huggingface_inputs(
        llama("sdpa"), {"tokens": torch.ones(1, 3), "labels": torch.ones(1, 3)}
    )
    assert set(found) == {"input_ids", "labels"}


def test_a_model_that_takes_no_mask_is_refused():
    with pytest.raises(ModelError) as refused:
        accept_packed_documents(torch.nn.Linear(2, 2))
    assert str(refused.value) == (
        "Linear: attends by 'none', which takes no mask of documents. "
        "Build it with attn_implementation='sdpa'."
    )
