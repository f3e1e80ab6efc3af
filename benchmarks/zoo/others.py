"""Models outside language and perception: diffusion, recurrent, graph, recommender, autoencoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from problem import LENGTH, ROWS, VOCAB, Problem, classes, draw, numbers, three, tokens

SIDE = 8


class Denoiser(nn.Module):
    """A diffusion model with its loss: the error of the noise it predicts."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, noise: Tensor, time: Tensor, **condition: Tensor) -> Tensor:
        kept = torch.cos(time / 1000 * 1.5).view(-1, 1, 1, 1)
        noisy = kept * images + (1 - kept**2).sqrt() * noise
        predicted = self.model(noisy, timestep=time, **condition).sample
        return functional.mse_loss(predicted, noise)


def noised(step: int, channels: int = 3) -> dict[str, Tensor]:
    return {
        "images": numbers(step, channels, SIDE, SIDE),
        "noise": numbers(step + 20, channels, SIDE, SIDE),
        "time": torch.randint(0, 1000, (ROWS,), generator=draw(step, 5)),
    }


NO_SEQUENCE = {"context": "no sequence with a target for each position"}


def diffusion_unet() -> Problem:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=SIDE, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), attention_head_dim=8,
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return Problem(Denoiser(model), three(noised), absent=NO_SEQUENCE)


def conditional_unet() -> Problem:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=SIDE, in_channels=3, out_channels=3, block_out_channels=(16, 32),
        layers_per_block=1, norm_num_groups=4, attention_head_dim=2, cross_attention_dim=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    batches = three(lambda step: {**noised(step), "encoder_hidden_states": numbers(step, 4, 16)})
    return Problem(Denoiser(model), batches, absent=NO_SEQUENCE)


def dit() -> Problem:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=8, in_channels=3, out_channels=3, num_layers=2,
        sample_size=SIDE, patch_size=2, num_embeds_ada_norm=1000, norm_num_groups=1,
    )  # fmt: skip
    batches = three(lambda step: {**noised(step), "class_labels": classes(step)})
    return Problem(Denoiser(model), batches, absent=NO_SEQUENCE)


class RecurrentLanguageModel(nn.Module):
    """Embedding, two LSTM layers, and a head that shares the embedding's weight."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, VOCAB)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(ids))[0])


def next_tokens(step: int) -> tuple[Tensor, Tensor]:
    ids = tokens(step, ROWS, LENGTH + 1)
    return ids[:, :-1], ids[:, 1:]


def lstm() -> Problem:
    return Problem(RecurrentLanguageModel(), three(next_tokens), loss="cross_entropy")


class MessagePassing(nn.Module):
    """A graph network over dense adjacency matrices: gather, update, read out."""

    def __init__(self, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.entry = nn.Linear(4, width)
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.updates = nn.ModuleList(nn.GRUCell(width, width) for _ in range(layers))
        self.exit = nn.Linear(width, 10)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        state = self.entry(nodes)  # (graphs, nodes, width)
        for message, update in zip(self.messages, self.updates):
            received = edges @ state / edges.sum(-1, keepdim=True).clamp(min=1)
            update_by = message(torch.cat((state, received), -1)).relu()
            state = update(update_by.flatten(0, 1), state.flatten(0, 1)).view_as(state)
        return self.exit(state.mean(1))


class Graphs(nn.Module):
    """The graph network with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.network = MessagePassing()

    def forward(self, nodes: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.network(nodes, edges), labels)


def graphs(step: int) -> dict[str, Tensor]:
    linked = torch.rand(ROWS, 6, 6, generator=draw(step, 6)) < 0.4
    edges = (linked | linked.transpose(1, 2)).float()
    return {"nodes": numbers(step, 6, 4), "edges": edges, "labels": classes(step)}


def graph_network() -> Problem:
    return Problem(Graphs(), three(graphs), absent=NO_SEQUENCE)


class Tower(nn.Module):
    def __init__(self, rows: int, width: int = 16) -> None:
        super().__init__()
        self.identity = nn.Embedding(rows, width)
        self.tags = nn.EmbeddingBag(500, width, mode="mean")
        self.layers = nn.Sequential(nn.Linear(2 * width, 32), nn.ReLU(), nn.Linear(32, width))

    def forward(self, identity: Tensor, tags: Tensor) -> Tensor:
        return self.layers(torch.cat((self.identity(identity), self.tags(tags)), -1))


class TwoTowers(nn.Module):
    """Users and items in large tables, scored by a scaled dot product."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = Tower(2000), Tower(3000)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(
        self, user: Tensor, user_tags: Tensor, item: Tensor, item_tags: Tensor, labels: Tensor
    ) -> Tensor:
        score = self.scale * (self.users(user, user_tags) * self.items(item, item_tags)).sum(-1)
        return functional.binary_cross_entropy_with_logits(score, labels)


def clicks(step: int) -> dict[str, Tensor]:
    return {
        "user": tokens(step, ROWS, high=2000),
        "user_tags": tokens(step + 1, ROWS, 3, high=500),
        "item": tokens(step + 2, ROWS, high=3000),
        "item_tags": tokens(step + 3, ROWS, 3, high=500),
        "labels": (numbers(step) > 0).float(),
    }


def two_tower_recommender() -> Problem:
    return Problem(TwoTowers(), three(clicks), absent=NO_SEQUENCE)


def autoencoder() -> Problem:
    encoder = [nn.Conv2d(1, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.SiLU()]
    middle = [
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.Tanh(),
        nn.Linear(8, 64),
        nn.Unflatten(1, (16, 2, 2)),
    ]
    decoder = [nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1)]
    module = nn.Sequential(*encoder, *middle, *decoder)
    batches = three(lambda step: (image := numbers(step, 1, SIDE, SIDE), image))
    return Problem(module, batches, loss="squared_error", absent=NO_SEQUENCE)


ALL = [
    diffusion_unet, conditional_unet, dit, lstm, graph_network, two_tower_recommender, autoencoder,
]  # fmt: skip
