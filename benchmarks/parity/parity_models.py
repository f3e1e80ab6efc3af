"""Models of other people's making, for the parity table, and the samples they read:
`stepladder verify parity benchmarks/parity/parity_models.py:hf_llama` proves one on `data`, and
with `--data benchmarks/parity/parity_models.py:padded` on rows of different lengths."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stepladder.data import Arrays

ROWS, LENGTH, VOCAB = 192, 16, 64
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "pad_token_id": None,
}
Rows = list[dict[str, Tensor]]
Matrices = tuple[str, ...]


def tokens() -> Tensor:
    return torch.randint(0, VOCAB, (ROWS, LENGTH), generator=torch.Generator().manual_seed(3))


def data() -> Rows:
    """As Hugging Face models read them: labels among the inputs, shifted by the model itself."""
    return [{"input_ids": row, "labels": row} for row in tokens()]


def padded() -> Rows:
    """Rows of very different lengths, padded and masked as tokenizers do."""
    lengths = torch.randint(2, LENGTH + 1, (ROWS,), generator=torch.Generator().manual_seed(4))
    seen = (torch.arange(LENGTH) < lengths.unsqueeze(1)).long()
    return [
        {
            "input_ids": row * mask,
            "attention_mask": mask,
            "labels": row.masked_fill(mask == 0, -100),
        }
        for row, mask in zip(tokens(), seen)
    ]


def hf_gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCAB, n_positions=LENGTH, n_embd=32, n_layer=4, n_head=4)
    return GPT2LMHeadModel(config)


def hf_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
    )
    return LlamaForCausalLM(config)


def language_model(kind: str, **settings: object) -> nn.Module:
    """Any causal language model of theirs, from a config alone."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, **{**SMALL, **settings})
    return AutoModelForCausalLM.from_config(config)


def hf_wide() -> nn.Module:
    sizes = {"hidden_size": 8, "num_attention_heads": 2}
    return language_model("llama", vocab_size=32776, **sizes)  # from 32,768 its head is fused


def hf_mistral() -> nn.Module:
    return language_model("mistral", sliding_window=None)


def hf_qwen2() -> nn.Module:
    return language_model("qwen2")


def hf_gemma() -> nn.Module:
    return language_model("gemma", head_dim=8)  # its head is its embedding


def hf_opt() -> nn.Module:
    sizes = {"ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0}
    return language_model("opt", **sizes)


def hf_neox() -> nn.Module:
    return language_model("gpt_neox")


def hf_phi3() -> nn.Module:
    return language_model("phi3", pad_token_id=0, eos_token_id=1)


def hf_mixtral() -> nn.Module:
    return language_model("mixtral", num_local_experts=8, num_experts_per_tok=2)


def hf_qwen3_moe() -> nn.Module:
    sizes = {"num_experts": 8, "moe_intermediate_size": 16, "head_dim": 8}
    return language_model("qwen3_moe", num_experts_per_tok=2, **sizes)


def hf_deepseek_v3() -> nn.Module:
    """Groups of experts, a bias that corrects the choice, a shared expert, latent attention."""
    choice = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
    heads = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
    sizes = {"moe_intermediate_size": 16, "n_shared_experts": 1, "first_k_dense_replace": 1}
    return language_model(
        "deepseek_v3", **choice, **heads, **sizes, v_head_dim=8, num_key_value_heads=4
    )


def pictures(side: int) -> Rows:
    """As their image classifiers read them."""
    draw = torch.Generator().manual_seed(5)
    pixels = torch.randn(ROWS, 1, side, side, generator=draw)
    classes = torch.randint(0, 10, (ROWS,), generator=draw)
    return [{"pixel_values": one, "labels": label} for one, label in zip(pixels, classes)]


def small_pictures() -> Rows:
    return pictures(8)


def large_pictures() -> Rows:
    return pictures(16)


def classifier(kind: str, **settings: object) -> nn.Module:
    from transformers import AutoConfig, AutoModelForImageClassification

    config = AutoConfig.for_model(kind, num_channels=1, num_labels=10, **settings)
    return AutoModelForImageClassification.from_config(config)


def hf_vit() -> nn.Module:
    sizes = {name: SMALL[name] for name in SMALL if name.startswith(("hidden", "num_h", "num_a"))}
    return classifier("vit", image_size=8, patch_size=4, intermediate_size=64, **sizes)


def hf_resnet() -> nn.Module:
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2]}
    return classifier("resnet", layer_type="basic", **sizes)


def adapted(module: nn.Module, matrices: Matrices, task: str | None) -> nn.Module:
    """The module frozen, with LoRA beside some of its matrices; none of them starts at zero."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        task_type=task, r=4, lora_alpha=1, init_lora_weights=False, target_modules=list(matrices)
    )
    return get_peft_model(module, config)


def lora_llama() -> nn.Module:
    """Beside every matrix of a block that a tensor axis cuts, by column or by row."""
    matrices = ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj")
    return adapted(hf_llama(), matrices, "CAUSAL_LM")


def lora_gpt2() -> nn.Module:
    """Linears stored the other way round, queries, keys and values in one; no task is named."""
    return adapted(hf_gpt2(), ("c_attn", "c_proj"), None)


class Odd(nn.Module):
    """Nobody's architecture: widths no rank divides, a head that is the embedding, a branch for
    some rows that a micro-batch without such rows skips, a frozen scale."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 30)
        self.layers = nn.ModuleList(nn.Linear(30, 30) for _ in range(3))
        self.aside = nn.Linear(30, 30, bias=False)
        self.scale = nn.Parameter(torch.full((30,), 0.5), requires_grad=False)
        self.answer = nn.Linear(30, VOCAB, bias=False)
        self.answer.weight = self.table.weight

    def forward(self, read: Tensor) -> Tensor:
        hidden = self.table(read)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden)) * self.scale
        rows = (read[:, 0] % 2).nonzero()[:, 0]
        if len(rows):
            hidden = hidden.index_add(0, rows, self.aside(hidden[rows]))
        return self.answer(hidden)


class ResidualOutside(nn.Module):
    """Blocks without their residual connection; their norms are in a list beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 32)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(4))
        self.answer = nn.Linear(32, VOCAB)

    def forward(self, read: Tensor) -> Tensor:
        hidden = self.table(read)
        for layer, norm in zip(self.layers, self.norms):
            hidden = norm(hidden + layer(hidden))
        return self.answer(hidden)


class SkipConnections(ResidualOutside):
    """As a U-Net's: what the first two blocks made comes back before the last two."""

    def forward(self, read: Tensor) -> Tensor:
        hidden, kept = self.table(read), []
        for index, (layer, norm) in enumerate(zip(self.layers, self.norms)):
            hidden = layer(norm(hidden if index < 2 else hidden + kept.pop()))
            kept.insert(0, hidden)
        return self.answer(hidden)


class TorchEncoder(nn.Module):
    """`nn.TransformerEncoder`, told which tokens are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.answer = nn.Embedding(VOCAB, 32), nn.Linear(32, VOCAB)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4)

    def forward(self, read: Tensor) -> Tensor:
        hidden = self.encoder(self.table(read), src_key_padding_mask=read < 8)
        return self.answer(hidden)


class TorchTransformer(nn.Module):
    """`nn.Transformer`: each block of the decoder reads what the encoder made."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.answer = nn.Embedding(VOCAB, 32), nn.Linear(32, VOCAB)
        self.body = nn.Transformer(32, 4, 2, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, read: Tensor) -> Tensor:
        hidden = self.table(read)
        mask = nn.Transformer.generate_square_subsequent_mask(read.shape[1])
        return self.answer(self.body(hidden, hidden, tgt_mask=mask, tgt_is_causal=True))


class ListedMixture(nn.Module):
    """Experts as modules in a list; those without tokens are skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(32), nn.Linear(32, 8, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(8)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        rows = self.norm(hidden).flatten(0, 1)
        weights, chosen = self.router(rows).softmax(-1).topk(2)
        made = torch.zeros_like(rows)
        for index, expert in enumerate(self.experts):
            where, slot = (chosen == index).nonzero(as_tuple=True)
            if len(where):
                made[where] += expert(rows[where]) * weights[where, slot, None]
        return hidden + made.view_as(hidden)


class ListedExperts(nn.Module):
    """A mixture of anybody's making, a linear between two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.answer = nn.Embedding(VOCAB, 32), nn.Linear(32, VOCAB)
        self.first, self.between, self.second = ListedMixture(), nn.Linear(32, 32), ListedMixture()

    def forward(self, read: Tensor) -> Tensor:
        hidden = self.first(self.table(read))
        return self.answer(self.second(torch.tanh(self.between(hidden))))


def sequential() -> nn.Module:
    """Layers in a row, without a list of like blocks."""
    layers = [nn.Embedding(VOCAB, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)]
    return nn.Sequential(*layers, nn.Linear(32, VOCAB))


def next_tokens() -> Arrays:
    """Tokens and the one that follows each, as a plain module reads them."""
    read = tokens()
    return Arrays(read, read.roll(-1, 1))


SAMPLES = {  # which model reads others than `data`
    **dict.fromkeys(("hf_mistral", "hf_qwen2", "hf_opt", "hf_phi3", "lora_llama"), "padded"),
    "ListedExperts": "next_tokens",
    "hf_vit": "small_pictures",
    "hf_resnet": "large_pictures",
    **dict.fromkeys(("Odd", "ResidualOutside", "SkipConnections"), "next_tokens"),
    **dict.fromkeys(("TorchEncoder", "TorchTransformer", "sequential"), "next_tokens"),
}
