"""Models of every kind that a tensor axis cuts or refuses, small enough for a laptop's ranks."""

import torch
from torch import nn
from torch.nn import functional as F

from stepladder.model import build
from stepladder.model.builtin.mlp import MLP
from stepladder.model.builtin.vit import ViT


def gpt(vocab: int = 64, dropout: float = 0.0):
    shape = f"gpt:layers=2,hidden=32,heads=4,vocab={vocab},sequence=16"
    return build(shape, seed=0, dropout=dropout) if dropout else build(shape, seed=0)


def odd_gpt():
    """A vocabulary that does not divide."""
    return gpt(vocab=65)


def llama():
    shape = "llama:layers=2,hidden=32,heads=4,kv_heads=2,ffn=64,vocab=64,sequence=16"
    return build(shape, seed=0)


def mlp():
    torch.manual_seed(0)
    return MLP(inputs=16, width=16, layers=2, classes=10)


def vit():
    torch.manual_seed(0)
    return ViT(image=8, patch=4, hidden=32, layers=2, heads=4, channels=1, classes=10)


def hf_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=65, n_positions=16, n_embd=32, n_layer=2, n_head=4, **none, **ids)
    )


def hf_llama(kind: str = "llama", **settings):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(
            kind,
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=16,
            **settings,
        )
    )


def hf_phi3():
    """Its queries, keys and values are one matrix, and so are gate and up."""
    return hf_llama("phi3", pad_token_id=0, eos_token_id=1)


class Attention(nn.Module):
    """Written as people write it: the number of heads is an attribute."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def count(self) -> int:
        return self.num_heads

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = (
            project(x).view(rows, length, self.count(), -1).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(rows, length, -1))


class HiddenHeads(Attention):
    """Keeps the number of heads where nobody can divide it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.several = {"heads": heads}

    def count(self) -> int:
        return self.several["heads"]


class Block(nn.Module):
    def __init__(self, attention: nn.Module, width: int) -> None:
        super().__init__()
        self.first, self.attention, self.second = (
            nn.LayerNorm(width),
            attention,
            nn.LayerNorm(width),
        )
        self.wide = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.wide(self.second(x))


class Foreign(nn.Module):
    def __init__(self, attention=Attention, classes: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(64, 32)
        self.places = nn.Parameter(torch.randn(16, 32) * 0.02)
        self.layers = nn.ModuleList(Block(attention(32, 4), 32) for _ in range(2))
        self.answer = nn.Linear(32, classes)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.answer(x)


def foreign():
    torch.manual_seed(0)
    return Foreign()


def deceiving():
    torch.manual_seed(0)
    return Foreign(HiddenHeads)


class Encoder(nn.Module):
    """torch's own layers, whose attention reads its children's weights itself."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.answer = nn.Linear(32, 64)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.answer(x)


def encoder():
    torch.manual_seed(0)
    return Encoder()


class Placed(Block):
    """Takes positions as well, and writes to what its last linear returns."""

    def __init__(self, attention: nn.Module, width: int) -> None:
        super().__init__(attention, width)
        self.wide[2] = nn.Linear(64, width, bias=False)

    def forward(self, x, places, cache=None):
        x = x + self.attention(self.first(x + places[0]))
        wide = self.wide(self.second(x))
        wide += x
        return (wide, cache)


class PlacedModel(Foreign):
    """Blocks of more arguments, and a bias of the head that has a second name, as BERT's has."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Placed(Attention(32, 4), 32) for _ in range(2))
        self.bias = self.answer.bias

    def forward(self, tokens):
        x = self.tokens(tokens)
        for layer in self.layers:
            x, _ = layer(x, (self.places[: tokens.shape[1]], None), cache=None)
        return self.answer(x)


def placed():
    torch.manual_seed(0)
    return PlacedModel()


class ReadTwice(PlacedModel):
    """Reads that bias under its second name."""

    def forward(self, tokens):
        return super().forward(tokens) + self.bias


def read_twice():
    torch.manual_seed(0)
    return ReadTwice()


def uncuttable():
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(2)))


def three_heads():
    return build("gpt:layers=1,hidden=48,heads=3,vocab=64,sequence=16", seed=0)


def three_foreign_heads():
    made = foreign()
    made.layers = nn.ModuleList(Block(Attention(48, 3), 48) for _ in range(2))
    return made


def odd_width():
    made = mlp()
    for block in made.blocks:
        block.up, block.down = nn.Linear(16, 65), nn.Linear(65, 16)
    return made


def one_class():
    return MLP(inputs=16, width=16, layers=2, classes=1)


def normed_table():
    made = foreign()
    made.tokens.max_norm = 1.0
    return made


class Running(nn.Embedding):
    """Each row with all rows before it, which no rank has."""

    def forward(self, tokens):
        return super().forward(tokens).cumsum(-2)


def running_table():
    made = foreign()
    made.tokens.__class__ = Running
    return made


def half_tied():
    made = foreign()
    made.layers[0].attention.out.weight = made.layers[0].attention.q.weight
    return made


def normed_inside():
    """A sum over the numbers that a cut divides."""
    made = foreign()
    for layer in made.layers:
        layer.wide[1] = nn.Softmax(-1)
    return made
