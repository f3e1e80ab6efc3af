"""Mixtures whose experts are modules in a list, as people write them; nothing is stepladder's."""

import torch
from torch import nn
from torch.nn import functional as F

EXPERTS, WIDTH, VOCAB = 4, 8, 16


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)

    def forward(self, hidden):
        return self.down(F.silu(self.up(hidden)))


class Mixture(nn.Module):
    def __init__(self, expert=Expert):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(expert() for _ in range(EXPERTS))

    def choose(self, rows):
        # Not made to add up to one: unchosen logits would have gradients of rounding alone.
        return self.gate(rows).softmax(-1).topk(2, -1)


class Masked(Mixture):
    """Skips an expert without tokens, by a look at the numbers."""

    def forward(self, hidden):
        rows = hidden.reshape(-1, WIDTH)
        weights, chosen = self.choose(rows)
        out = torch.zeros_like(rows)
        for index, expert in enumerate(self.experts):
            mine = chosen == index
            if mine.any():
                where, slot = mine.nonzero(as_tuple=True)
                out[where] += expert(rows[where]) * weights[where, slot, None]
        return out.view_as(hidden)


class IndexAdd(Mixture):
    """As transformers 4 had Mixtral: an expert without tokens is called with no rows."""

    def forward(self, hidden):
        rows = hidden.reshape(-1, WIDTH)
        weights, chosen = self.choose(rows)
        out = torch.zeros_like(rows)
        mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        for index in range(EXPERTS):
            slot, where = torch.where(mask[index])
            given = self.experts[index](rows[None, where].reshape(-1, WIDTH))
            out.index_add_(0, where, given * weights[where, slot, None])
        return out.view_as(hidden), self.gate(rows)


class Dense(Mixture):
    """Every expert has every token."""

    def forward(self, hidden):
        scores = self.gate(hidden)
        every = torch.stack([expert(hidden) for expert in self.experts], -1)
        return (every * scores.softmax(-1).unsqueeze(-2)).sum(-1)


class Named(Mixture):
    """Experts by name, and a shared one beside them; counts its own calls."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleDict({f"expert_{i}": Expert() for i in range(EXPERTS)})
        self.shared = Expert()
        self.calls, self.seen = 0, []

    def forward(self, hidden):
        self.calls += 1
        self.seen.append(self.calls)
        rows = hidden.reshape(-1, WIDTH)
        weights, chosen = self.choose(rows)
        out = self.shared(rows)
        for index in chosen.unique().tolist():
            part = (weights * (chosen == index)).sum(-1)
            where = part.nonzero()[:, 0]
            name = f"expert_{index}"
            out = out.index_add(0, where, self.experts[name](rows[where]) * part[where, None])
        return out.view_as(hidden)


class Noisy(Named):
    """Draws noise for its choice, so that another draw gives experts other rows."""

    def choose(self, rows):
        scores = self.gate(rows)
        return (scores + torch.rand_like(scores)).softmax(-1).topk(2, -1)


class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.norm, self.mixture = nn.LayerNorm(WIDTH), kind()

    def forward(self, hidden):
        made = self.mixture(self.norm(hidden))
        return hidden + (made[0] if isinstance(made, tuple) else made)


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(kind) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def model(kind):
    """Far from its first values; no token of any batch chooses the last expert of block 1."""
    made, generator = Model(kind), torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
        made.blocks[1].norm.bias.fill_(1.0)
        made.blocks[1].norm.weight.fill_(0.1)
        made.blocks[1].mixture.gate.weight[-1].fill_(-3.0)
    return made


def batch(step):
    tokens = torch.randint(0, VOCAB, (8, 4), generator=torch.Generator().manual_seed(step))
    return tokens, tokens.roll(-1, 1)
