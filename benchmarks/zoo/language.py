"""Language models of Hugging Face from tiny configs: decoders, encoders, and both together."""

from __future__ import annotations

from typing import Any

import torch

from problem import LENGTH, PAD, VOCAB, Problem, causal, classes, lengths, masked, three, tokens

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NO_DROPOUT = {
    "attention_dropout": 0.0, "hidden_dropout": 0.0, "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0, "dropout": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
    "resid_pdrop": 0.0, "activation_dropout": 0.0,
}  # fmt: skip


def config(kind: str, **settings: Any) -> Any:
    from transformers import AutoConfig  # here: importing it takes seconds

    return AutoConfig.for_model(kind, **{**SMALL, **NO_DROPOUT, **settings})


def decoder(kind: str, **settings: Any) -> Problem:
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_config(config(kind, **settings))
    return Problem(module, three(causal))


def gpt2() -> Problem:
    return decoder("gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=32)


def gptj() -> Problem:
    return decoder("gptj", n_embd=32, n_layer=2, n_head=4, n_positions=32, rotary_dim=4)


def llama() -> Problem:
    return decoder("llama")


def mistral() -> Problem:
    return decoder("mistral", sliding_window=8)


def qwen2() -> Problem:
    return decoder("qwen2")


def qwen3() -> Problem:
    return decoder("qwen3", head_dim=8)


def gemma2() -> Problem:
    return decoder("gemma2", head_dim=8, query_pre_attn_scalar=8, sliding_window=8)


def phi() -> Problem:
    return decoder("phi", num_key_value_heads=4)


def phi3() -> Problem:
    return decoder("phi3")


def opt() -> Problem:
    return decoder("opt", ffn_dim=64, word_embed_proj_dim=32)


def gpt_neox() -> Problem:
    return decoder("gpt_neox")


def bloom() -> Problem:
    return decoder("bloom", n_layer=2, n_head=4)


def falcon() -> Problem:
    return decoder("falcon", new_decoder_architecture=False)


def stablelm() -> Problem:
    return decoder("stablelm")


def olmo2() -> Problem:
    return decoder("olmo2")


def mamba() -> Problem:
    return decoder("mamba", state_size=4, intermediate_size=64, time_step_rank=4)


def mixtral() -> Problem:
    return decoder("mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None)


def mixtral_auxiliary_loss() -> Problem:
    return decoder(
        "mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None,
        output_router_logits=True, router_aux_loss_coef=0.5,
    )  # fmt: skip


def olmoe() -> Problem:
    return decoder("olmoe", num_experts=4, num_experts_per_tok=2)


def encoder(kind: str, **settings: Any) -> Problem:
    from transformers import AutoModelForMaskedLM

    module = AutoModelForMaskedLM.from_config(config(kind, **settings))
    return Problem(module, three(masked))


def bert() -> Problem:
    return encoder("bert")


def roberta() -> Problem:
    return encoder("roberta", max_position_embeddings=LENGTH + 4)


def distilbert() -> Problem:
    return encoder("distilbert", dim=32, n_layers=2, n_heads=4, hidden_dim=64)


def albert() -> Problem:
    return encoder("albert", embedding_size=16)


def electra() -> Problem:
    return encoder("electra", embedding_size=16)


def deberta_v2() -> Problem:
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
    return encoder("deberta-v2", norm_rel_ebd="layer_norm", share_att_key=True, **relative)


def modernbert() -> Problem:
    return encoder(
        "modernbert", local_attention=8, global_attn_every_n_layers=2,
        cls_token_id=1, sep_token_id=2, reference_compile=False,
    )  # fmt: skip


def bert_classifier() -> Problem:
    from transformers import AutoModelForSequenceClassification

    module = AutoModelForSequenceClassification.from_config(config("bert", num_labels=10))
    return Problem(module, three(classified), absent={"context": "one target for a sequence"})


def classified(step: int) -> dict[str, torch.Tensor]:
    return {**causal(step), "labels": classes(step)}


def xlnet() -> Problem:
    from transformers import XLNetConfig, XLNetLMHeadModel

    settings = XLNetConfig(
        vocab_size=VOCAB, d_model=32, n_layer=2, n_head=4, d_inner=64, dropout=0.0, pad_token_id=PAD
    )
    return Problem(XLNetLMHeadModel(settings), three(causal))


def xlm() -> Problem:
    from transformers import XLMConfig, XLMWithLMHeadModel

    settings = XLMConfig(
        vocab_size=VOCAB, emb_dim=32, n_layers=2, n_heads=4, dropout=0.0, attention_dropout=0.0,
        max_position_embeddings=32, pad_index=PAD,
    )  # fmt: skip
    return Problem(XLMWithLMHeadModel(settings), three(masked))


def sequence_to_sequence(kind: str, **settings: Any) -> Problem:
    from transformers import AutoModelForSeq2SeqLM

    module = AutoModelForSeq2SeqLM.from_config(config(kind, **settings))
    return Problem(module, three(translated))


def translated(step: int) -> dict[str, torch.Tensor]:
    """Sources and targets of different lengths."""
    batch = causal(step)
    mask = torch.arange(LENGTH) < lengths(step + 7).unsqueeze(1)
    return {**batch, "labels": tokens(step + 7).masked_fill(~mask, -100)}


def t5() -> Problem:
    return sequence_to_sequence(
        "t5", d_model=32, d_kv=8, d_ff=64, num_layers=3, num_decoder_layers=3, num_heads=4,
        dropout_rate=0.0, decoder_start_token_id=PAD,
    )  # fmt: skip


def bart() -> Problem:
    return sequence_to_sequence(
        "bart", d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=64,
        decoder_ffn_dim=64, encoder_attention_heads=4, decoder_attention_heads=4,
        decoder_start_token_id=2, forced_eos_token_id=2,
    )  # fmt: skip


ALL = [
    gpt2, gptj, llama, mistral, qwen2, qwen3, gemma2, phi, phi3, opt, gpt_neox, bloom, falcon,
    stablelm, olmo2, mamba, mixtral, mixtral_auxiliary_loss, olmoe, xlnet, xlm, bert,
    bert_classifier, roberta, distilbert, albert, electra, deberta_v2, modernbert, t5, bart,
]  # fmt: skip
