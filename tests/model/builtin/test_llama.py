"""Llama from a shape."""

import pytest
import torch

from stepladder.model import build

torch.set_num_threads(1)


def test_our_llama_answers_as_hugging_faces_with_the_same_weights():
    transformers = pytest.importorskip("transformers", reason="compared against transformers")
    ours = build("llama-tiny", theta=10_000.0)
    config = transformers.LlamaConfig(
        num_hidden_layers=4, hidden_size=128, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=384, vocab_size=256, max_position_embeddings=256, rms_norm_eps=1e-5,
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config)
    words = {
        "embed_tokens": "embedding", "model.": "", "layers.": "blocks.", "lm_head": "head",
        "self_attn.": "attention.", "q_proj": "query", "k_proj": "key", "v_proj": "value",
        "o_proj": "out", "_proj": "", "post_attention_layernorm": "mlp_norm",
        "input_layernorm": "attention_norm",
    }  # fmt: skip
    values = ours.state_dict()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            for word, our_word in words.items():
                name = name.replace(word, our_word)
            parameter.copy_(values.pop(name))
    assert not values
    tokens = torch.arange(24).view(2, 12)
    torch.testing.assert_close(theirs(tokens).logits, ours(tokens), rtol=1e-4, atol=1e-4)


def test_all_blocks_share_one_table():
    model = build("llama-tiny")
    assert len({id(block.attention.rotary) for block in model.blocks}) == 1
    assert len(list(model.buffers())) == 2


def test_a_block_alone_is_complete():
    block = build("llama-tiny").blocks[0]
    assert block(torch.zeros(1, 4, 128)).shape == (1, 4, 128)


def test_given_positions_are_obeyed_and_only_their_distances_matter():
    model, tokens = build("llama-tiny"), torch.arange(12).view(1, 12)
    counted = model(tokens)
    torch.testing.assert_close(model(tokens, positions=torch.arange(12) + 50), counted)
    assert not torch.allclose(model(tokens, positions=torch.arange(12) * 5), counted, atol=1e-4)
