"""Models whose blocks run one after the other: what the pipeline's tests split."""

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


class Stack(nn.Module):
    """Four blocks between two linears; what happens between the blocks is each class's own."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.out = nn.Linear(64, 16), nn.Linear(16, 10)
        self.layers = nn.ModuleList(self.block() for _ in range(4))

    def block(self) -> nn.Module:
        return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))

    def forward(self, x):
        return self.out(self.through(self.enter(x)))


class Residual(Stack):
    """Blocks without their residual connection, which is outside of them."""

    def through(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class Repeated(Stack):
    """The first block and the last stand in the list twice, as in models that share layers."""

    def __init__(self) -> None:
        super().__init__()
        first, *between, last = self.layers
        self.layers = nn.ModuleList([first, first, *between, last, last])

    def through(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class InPlace(Stack):
    """The residual stream is one tensor, written to between blocks that do not save it."""

    class Block(nn.Linear):
        def forward(self, x):
            return super().forward(x * 0.5)

    def block(self):
        return self.Block(16, 16)

    def through(self, x):
        for layer in self.layers:
            x += layer(x)
        return x


class PostNorm(Stack):
    """Norms in a list beside the blocks, each after its residual, and a scale on every stage."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(4))
        self.scales = nn.Parameter(torch.randn(4, 16))

    def through(self, x):
        for layer, norm, scale in zip(self.layers, self.norms, self.scales):
            x = norm(x + layer(x) * scale)
        return x


class Pairs(Stack):
    """Attention and MLP in a list of lists, as many short implementations of ViT have them."""

    def __init__(self) -> None:
        super().__init__()
        pairs = [nn.ModuleList([self.block(), nn.Linear(16, 16)]) for _ in range(4)]
        self.layers = nn.ModuleList(pairs)

    def through(self, x):
        for attend, mix in self.layers:
            x = attend(x) + x
            x = torch.relu(mix(x)) + x
        return x


class TwoStreams(Stack):
    """Hands the residual on beside what flows, as Mamba's fused blocks do."""

    class Block(nn.Linear):
        def forward(self, x, residual):
            residual = x if residual is None else x + residual
            return super().forward(residual), residual

    def block(self):
        return self.Block(16, 16)

    def through(self, x):
        residual = None
        for layer in self.layers:
            x, residual = layer(x, residual)
        return x + residual


class UNet(Stack):
    """What the first half of the blocks made comes back in the second."""

    def through(self, x):
        kept = []
        for index, layer in enumerate(self.layers):
            x = layer(x if index < 2 else x + kept.pop(0))
            kept.append(x)
        return x


class Reminded(Stack):
    """Every block is also given what entered, and a length that the one before it counted."""

    class Block(nn.Bilinear):
        def forward(self, x, entered, count):
            return torch.tanh(super().forward(x, entered)) / count, count + 1

    def block(self):
        return self.Block(16, 16, 16)

    def through(self, x):
        entered, count = x, 1
        for layer in self.layers:
            x, count = layer(x, entered, count)
        return x


class FirstOnesBias(Stack):
    """The first block makes a bias of its weights alone, which all others are given, as T5's."""

    class Block(nn.Linear):
        def forward(self, x, bias):
            bias = self.bias.cumsum(0) if bias is None else bias
            return torch.tanh(super().forward(x)) + bias, bias

    def block(self):
        return self.Block(16, 16)

    def through(self, x):
        bias = None
        for layer in self.layers:
            x, bias = layer(x, bias)
        return x


class Choosing(Stack):
    """Whole numbers that the first block computes decide what becomes of the last one's result."""

    class Block(nn.Linear):
        def forward(self, x):
            made = super().forward(x)
            return torch.tanh(made), made.argmax(-1, keepdim=True)

    def block(self):
        return self.Block(16, 16)

    def through(self, x):
        x, chosen = self.layers[0](x)
        for layer in self.layers[1:]:
            x, _ = layer(x)
        return x * (chosen % 2)


class Encoder(nn.Module):
    """torch's own encoder, on rows that are padded."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(64, 16), nn.Linear(16, 64)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4)

    def forward(self, tokens):
        padding = tokens < 8
        return self.out(self.encoder(self.table(tokens), src_key_padding_mask=padding))


class Translator(nn.Module):
    """torch's own encoder and decoder: every block of the decoder reads the encoder's result."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(64, 16), nn.Linear(16, 64)
        self.transformer = nn.Transformer(16, 2, 2, 4, 32, dropout=0.0, batch_first=True)

    def forward(self, tokens):
        read = self.table(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.out(self.transformer(read, read, tgt_mask=mask, tgt_is_causal=True))


class Plain(nn.Module):
    """No list of blocks at all."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.third, self.fourth = nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = nn.functional.max_pool2d(x + torch.relu(self.second(x)), 4)
        return self.fourth(torch.relu(self.third(x.flatten(1))))


def sequential():
    middle = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32))
    return nn.Sequential(middle, nn.ReLU(), nn.Linear(32, 10))


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

# Some of their parts are on every stage.
SHARING = {
    "returning": (partial(made, Returning), numbers, "cross_entropy"),
    "reminding": (partial(made, Reminding), numbers, "cross_entropy"),
    "answering": (partial(made, Answering), tokens, "cross_entropy"),
}

# More happens between their blocks than that each takes what the one before it returned.
BETWEEN = {
    "residual": (partial(made, Residual), numbers, "cross_entropy"),
    "repeated": (partial(made, Repeated), numbers, "cross_entropy"),
    "in_place": (partial(made, InPlace), numbers, "cross_entropy"),
    "post_norm": (partial(made, PostNorm), numbers, "cross_entropy"),
    "pairs": (partial(made, Pairs), numbers, "cross_entropy"),
    "two_streams": (partial(made, TwoStreams), numbers, "cross_entropy"),
    "unet": (partial(made, UNet), numbers, "cross_entropy"),
    "reminded": (partial(made, Reminded), numbers, "cross_entropy"),
    "first_ones_bias": (partial(made, FirstOnesBias), numbers, "cross_entropy"),
    "choosing": (partial(made, Choosing), numbers, "cross_entropy"),
    "encoder": (partial(made, Encoder), tokens, "cross_entropy"),
    "translator": (partial(made, Translator), tokens, "cross_entropy"),
    "plain": (partial(made, Plain), images, "cross_entropy"),
    "sequential": (partial(made, sequential), numbers, "cross_entropy"),
}
ALL = {**CHAINS, **SHARING, **BETWEEN}
