"""The built-in models' tensors under Hugging Face's names and in its layout.

GPT-2's matrices are transposed, with query, key and value in one; Llama's only have other names.
Of mixtures each expert's matrices are tensors of their own, where ours are stacked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stepladder.errors import PlanError
from stepladder.workload import Shape

LLAMA_NAMES = {  # of a block: our name, Hugging Face's name
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
NORM_NAMES = {
    "attention.query_norm.weight": "self_attn.q_norm.weight",
    "attention.key_norm.weight": "self_attn.k_norm.weight",
}
GPT_NAMES = {
    "attention_norm": "ln_1",
    "attention.out": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
MIXTURES = {
    "mixtral": "MixtralForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
GPT_QKV = ("attention.query", "attention.key", "attention.value")


@dataclass(frozen=True, slots=True)
class HuggingfaceTensor:
    """One Hugging Face tensor: some of ours concatenated, then perhaps transposed."""

    name: str
    stored_names: tuple[str, ...]
    transposed: bool = False
    place: tuple[int, ...] = ()  # in a stacked tensor of ours


def refuse_unsupported_shape(shape: Shape) -> None:
    """Raise for shapes that the planner can forecast and no built-in model has."""
    if shape.extra and not shape.query_key_norms:
        problem = f"{shape.extra} parameters of a block (biases, norms of heads) are in no built-in"
        remedy = "Train the folder of a model that has them; --names same converts it."
        raise PlanError("model.extra", f"{problem} model", remedy)


def refuse_without_names(shape: Shape) -> None:
    """Raise for built-in models whose tensors have no Hugging Face names here."""
    if shape.experts:
        mixture_kind(shape)
    elif shape.query_key_norms or shape.head:
        problem = "norms of queries and keys, or heads of another width, have no names here"
        raise PlanError("model.extra", problem, "--names same converts it.")


def huggingface_tensors(shape: Shape) -> list[HuggingfaceTensor]:
    """Every tensor of the model as Hugging Face stores it."""
    refuse_unsupported_shape(shape)
    refuse_without_names(shape)
    return list(llama_tensors(shape) if shape.family == "llama" else gpt_tensors(shape))


def llama_tensors(shape: Shape) -> Iterator[HuggingfaceTensor]:
    yield HuggingfaceTensor("model.embed_tokens.weight", ("embedding.weight",))
    for layer in range(shape.layers):
        names = {**LLAMA_NAMES, **(NORM_NAMES if shape.query_key_norms else {})}
        if sparse := shape.is_sparse(layer):
            names = {ours: name for ours, name in names.items() if not ours.startswith("mlp.")}
        for stored, name in names.items():
            yield HuggingfaceTensor(f"model.layers.{layer}.{name}", (f"blocks.{layer}.{stored}",))
        if sparse:
            yield from mixture_tensors(shape, f"model.layers.{layer}", f"blocks.{layer}.mlp")
    yield HuggingfaceTensor("model.norm.weight", ("norm.weight",))
    if not shape.tied:
        yield HuggingfaceTensor("lm_head.weight", ("head.weight",))


def mixture_tensors(shape: Shape, at: str, ours: str) -> Iterator[HuggingfaceTensor]:
    mixtral = mixture_kind(shape) == "mixtral"
    at = f"{at}.{'block_sparse_moe' if mixtral else 'mlp'}"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    yield HuggingfaceTensor(f"{at}.gate.weight", (f"{ours}.router.weight",))
    for expert in range(shape.experts):
        for word, stored, *place in (gate, "gate_up", 0), (up, "gate_up", 1), (down, "down"):
            name, whole = f"{at}.experts.{expert}.{word}.weight", f"{ours}.experts.{stored}"
            yield HuggingfaceTensor(name, (whole,), place=(expert, *place))


def mixture_kind(shape: Shape) -> str:
    """The model of transformers that computes what this mixture does."""
    norms, dense = shape.query_key_norms, not all(map(shape.is_sparse, range(shape.layers)))
    kind = {"head": "qwen3_moe", "all": "olmoe"}.get(norms, "mixtral")
    odd = [
        (bool(shape.shared_ffn), "an MLP beside the experts"),
        (bool(shape.raw) and kind == "mixtral", "weights of experts as the router gave them"),
        (bool(shape.head) and kind != "qwen3_moe", "heads of another width"),
        (dense and kind != "qwen3_moe", "layers without experts"),
    ]
    for present, what in odd:
        if present:
            beside = {"all": " beside norms of all heads", "": " without norms of queries and keys"}
            problem = f"{what}{beside.get(norms, '')} is in no mixture that has names here"
            raise PlanError("model.experts", problem, "--names same converts it.")
    return kind


def gpt_tensors(shape: Shape) -> Iterator[HuggingfaceTensor]:
    yield HuggingfaceTensor("transformer.wte.weight", ("embedding.weight",))
    yield HuggingfaceTensor("transformer.wpe.weight", ("position.weight",))
    for layer in range(shape.layers):
        block, at = f"blocks.{layer}", f"transformer.h.{layer}"
        for kind, transposed in (("weight", True), ("bias", False)):
            joint = tuple(f"{block}.{part}.{kind}" for part in GPT_QKV)
            yield HuggingfaceTensor(f"{at}.attn.c_attn.{kind}", joint, transposed)
            for stored, name in GPT_NAMES.items():
                matrix = transposed and "norm" not in stored
                yield HuggingfaceTensor(
                    f"{at}.{name}.{kind}", (f"{block}.{stored}.{kind}",), matrix
                )
    for kind in ("weight", "bias"):
        yield HuggingfaceTensor(f"transformer.ln_f.{kind}", (f"norm.{kind}",))
    if not shape.tied:
        yield HuggingfaceTensor("lm_head.weight", ("head.weight",))


def huggingface_config(shape: Shape) -> dict[str, Any]:
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
            **(mixture_config(shape) if shape.experts else {}),
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


def mixture_config(shape: Shape) -> dict[str, Any]:
    """What differs from Llama's."""
    kind = mixture_kind(shape)
    count = "num_local_experts" if kind == "mixtral" else "num_experts"
    found = {
        "architectures": [MIXTURES[kind]],
        "model_type": kind,
        count: shape.experts,
        "num_experts_per_tok": shape.active,
        "intermediate_size": shape.expert_width,
    }
    if kind == "mixtral":
        return {**found, "sliding_window": None}
    found["norm_topk_prob"] = not shape.raw
    if kind == "olmoe":
        return found
    return {
        **found,
        "head_dim": shape.head_width,
        "intermediate_size": shape.ffn,
        "moe_intermediate_size": shape.expert_width,
        "mlp_only_layers": [n for n in range(shape.layers) if not shape.is_sparse(n)],
    }
