"""The built-in models' tensors under the names, and in the form, that Hugging Face gives them.

GPT-2 keeps its matrices turned, with query, key and value beside each other in one; Llama's are
ours under other names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stepladder.errors import PlanError
from stepladder.workload import Shape

LLAMA = {  # ours in a block: theirs
    "attention_norm.weight": "input_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.out.weight": "self_attn.o_proj.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
}
GPT = {
    "attention_norm": "ln_1",
    "attention.out": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
GPT_JOINT = ("attention.query", "attention.key", "attention.value")


@dataclass(frozen=True, slots=True)
class Theirs:
    """One of their tensors, made of ours: put one below the other, then turned or not."""

    name: str
    ours: tuple[str, ...]
    turned: bool = False


def refuse_unbuilt(shape: Shape) -> None:
    """Shapes that the planner counts and no built-in model has."""
    if shape.experts:
        problem = f"the planner counts {shape.experts} experts, and no built-in model has any"
        remedy = "Train a folder of such a model, or hand its module to sl.climb."
        raise PlanError("model.experts", problem, remedy)
    if shape.extra:
        problem = f"{shape.extra} parameters of a block (biases, norms of heads) are in no built-in"
        remedy = "Train the folder of a model that has them; --names same converts it."
        raise PlanError("model.extra", f"{problem} model", remedy)


def their_tensors(shape: Shape) -> list[Theirs]:
    """Every tensor of the model as Hugging Face stores it."""
    refuse_unbuilt(shape)
    return list(llama_tensors(shape) if shape.family == "llama" else gpt_tensors(shape))


def llama_tensors(shape: Shape) -> Iterator[Theirs]:
    yield Theirs("model.embed_tokens.weight", ("embedding.weight",))
    for layer in range(shape.layers):
        for ours, theirs in LLAMA.items():
            yield Theirs(f"model.layers.{layer}.{theirs}", (f"blocks.{layer}.{ours}",))
    yield Theirs("model.norm.weight", ("norm.weight",))
    if not shape.tied:
        yield Theirs("lm_head.weight", ("head.weight",))


def gpt_tensors(shape: Shape) -> Iterator[Theirs]:
    yield Theirs("transformer.wte.weight", ("embedding.weight",))
    yield Theirs("transformer.wpe.weight", ("position.weight",))
    for layer in range(shape.layers):
        block, at = f"blocks.{layer}", f"transformer.h.{layer}"
        for kind, turned in (("weight", True), ("bias", False)):
            joint = tuple(f"{block}.{part}.{kind}" for part in GPT_JOINT)
            yield Theirs(f"{at}.attn.c_attn.{kind}", joint, turned)
            for ours, theirs in GPT.items():
                matrix = turned and "norm" not in ours
                yield Theirs(f"{at}.{theirs}.{kind}", (f"{block}.{ours}.{kind}",), matrix)
    for kind in ("weight", "bias"):
        yield Theirs(f"transformer.ln_f.{kind}", (f"norm.{kind}",))
    if not shape.tied:
        yield Theirs("lm_head.weight", ("head.weight",))


def their_config(shape: Shape) -> dict[str, Any]:
    """The `config.json` that goes with the tensors."""
    if shape.family == "llama":
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": shape.layers,
            "hidden_size": shape.hidden,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "intermediate_size": shape.ffn,
            "vocab_size": shape.vocab,
            "max_position_embeddings": shape.sequence,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
            "hidden_act": "silu",
            "tie_word_embeddings": shape.tied,
        }
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": shape.layers,
        "n_embd": shape.hidden,
        "n_head": shape.heads,
        "n_inner": shape.ffn,
        "vocab_size": shape.vocab,
        "n_positions": shape.sequence,
        "activation_function": "gelu_new",
        "tie_word_embeddings": shape.tied,
    }
