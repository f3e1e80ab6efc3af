"""Models whose blocks form a chain, or nearly: what the pipeline's tests split."""

from functools import partial

import torch
from torch import nn

from stepladder.model import build
from stepladder.model.builtin.mlp import MLP
from stepladder.model.builtin.resnet import ResNet
from tests.train.toys import ragged


def gpt():
    return build("gpt:layers=4,hidden=32,heads=2,vocab=64,sequence=16,tied=1", seed=0)


def llama():
    return build("llama:layers=4,hidden=32,heads=2,vocab=64,sequence=16", seed=0)


def tied():
    """No biases: a key's has no gradient but rounding, and Adam makes a step of that."""
    return build("llama:layers=4,hidden=32,heads=2,vocab=64,sequence=16,tied=1", seed=0)


def mlp():
    torch.manual_seed(0)
    return MLP(layers=4)


def resnet():
    """Blocks of unlike shapes, with running statistics."""
    torch.manual_seed(0)
    return ResNet(depths=(2, 2), width=8, small=True, channels=1, classes=10)


def hf_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    off = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    sizes = {"n_layer": 4, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(**sizes, **off, **ends))


def hf_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    sizes = {"num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 64}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=16))


class OddBlock(nn.Module):
    """Writes to what it is given, takes it by name and returns it in a pair."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, *, scale, x):
        x *= 0.9
        return x + self.linear(self.norm(x)) * scale, "beside"


class Odd(nn.Module):
    """Parameters outside every part, read before the blocks and after them."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.enter = nn.Linear(64, width)
        self.place = nn.Parameter(torch.randn(width))
        self.layers = nn.ModuleList(OddBlock(width) for _ in range(4))
        self.out = nn.Linear(width, 10)
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x):
        hidden = self.enter(x)
        hidden += self.place
        for layer in self.layers:
            hidden, _ = layer(x=hidden, scale=torch.tensor(0.5))
        return self.out(hidden) * self.gain


class LayerDrop(Odd):
    """A random number decides in training whether a layer runs, as in OPT and BART."""

    def forward(self, x):
        hidden = self.enter(x)
        for layer in self.layers:
            if not self.training or torch.rand([]) >= 0:
                hidden, _ = layer(x=hidden, scale=torch.tensor(0.5))
        return self.out(hidden)


class Shuffled(nn.Module):
    """Registers its parts in another order than they run, as OPT does with its final norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(16, 10)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4))
        self.enter = nn.Linear(64, 16)

    def forward(self, x):
        hidden = self.enter(x)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.out(self.norm(hidden))


class Returning(Shuffled):
    """What entered comes back at the end, and a part runs on both sides of the blocks."""

    def forward(self, x):
        hidden = entered = self.norm(self.enter(x))
        for layer in self.layers:
            hidden = layer(hidden)
        return self.out(self.norm(hidden + entered))


class Reminding(Shuffled):
    """Every block is given what a part of its own made, of weights alone, as DeBERTa's are."""

    class Block(nn.Linear):
        def forward(self, x, table):
            return torch.tanh(super().forward(x) + table)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Block(16, 16) for _ in range(4))
        self.table = nn.Embedding(3, 16)

    def forward(self, x):
        hidden, table = self.enter(x), self.norm(self.table.weight).sum(0)
        for layer in self.layers:
            hidden = layer(hidden, table)
        return self.out(hidden)


class Answering(nn.Module):
    """Makes its logits by the table that it read with, without a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 16)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.Tanh()) for _ in range(4))
        for layer in self.layers:
            layer.append(nn.Linear(32, 16))

    def forward(self, tokens):
        hidden = self.table(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden @ self.table.weight.T


def made(kind):
    torch.manual_seed(0)
    return kind()


def layer_drop():
    torch.manual_seed(0)
    return LayerDrop()


def odd():
    torch.manual_seed(0)
    return Odd()


def tokens(num, rows=8):
    return ragged(num, rows=rows)


def labelled(num, rows=8):
    return [{"input_ids": t, "labels": y} for t, y in tokens(num, rows)]


def numbers(num, rows=8, shape=(64,)):
    draw = torch.Generator().manual_seed(3)
    return [
        (
            torch.randn(rows, *shape, generator=draw),
            torch.randint(0, 10, (rows,), generator=draw),
        )
        for _ in range(num)
    ]


def images(num, rows=8):
    return numbers(num, rows, (1, 8, 8))


CHAINS = {
    "gpt": (gpt, tokens, "cross_entropy"),
    "llama": (llama, tokens, "cross_entropy"),
    "tied": (tied, tokens, "cross_entropy"),
    "mlp": (mlp, numbers, "cross_entropy"),
    "resnet": (resnet, images, "cross_entropy"),
    "hf_gpt2": (hf_gpt2, labelled, None),
    "hf_llama": (hf_llama, labelled, None),
    "odd": (odd, numbers, "cross_entropy"),
    "shuffled": (partial(made, Shuffled), numbers, "cross_entropy"),
    "layer_drop": (layer_drop, numbers, "cross_entropy"),  # cannot be traced in training
}

# Chains only if every stage holds some of the other parts.
SHARING = {
    "returning": (partial(made, Returning), numbers, "cross_entropy"),
    "reminding": (partial(made, Reminding), numbers, "cross_entropy"),
    "answering": (partial(made, Answering), tokens, "cross_entropy"),
}
