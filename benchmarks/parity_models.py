"""Models of other people's making, for the parity table: each function returns what
`stepladder verify parity --model benchmarks/parity_models.py:FUNCTION` asks for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stepladder.data import Arrays

ROWS, LENGTH, VOCAB = 192, 16, 64


def tokens() -> Tensor:
    return torch.randint(0, VOCAB, (ROWS, LENGTH), generator=torch.Generator().manual_seed(3))


def labelled() -> list[dict[str, Tensor]]:
    """As Hugging Face models read them: labels among the inputs, shifted by the model itself."""
    return [{"input_ids": row, "labels": row} for row in tokens()]


def hf_gpt2() -> tuple[nn.Module, list[dict[str, Tensor]]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCAB, n_positions=LENGTH, n_embd=32, n_layer=4, n_head=4)
    return GPT2LMHeadModel(config), labelled()


def hf_llama() -> tuple[nn.Module, list[dict[str, Tensor]]]:
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
    return LlamaForCausalLM(config), labelled()


class Odd(nn.Module):
    """Nobody's architecture: widths no rank divides, a head that is the embedding, a branch that
    some batches skip, a frozen scale."""

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
        if read[0, 0] % 2:  # of a pass, so that some passes of one batch skip it
            hidden = hidden + self.aside(hidden)
        return self.answer(hidden)


def odd() -> tuple[nn.Module, Arrays, str]:
    read = tokens()
    return Odd(), Arrays(read, read.roll(-1, 1)), "cross_entropy"
