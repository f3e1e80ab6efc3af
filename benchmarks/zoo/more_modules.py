"""More modules of other projects' kinds, for memory: each with one batch on the host.

They differ from those of `real_sizes.py` in what they are made of: recurrent decoders, scattered
sums, one- and three-dimensional convolutions, separable and grouped ones, contrastive pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from real_sizes import Case, click_loss, hugging_face, torchvision_model


def regnet() -> Case:
    return torchvision_model("regnet_y_1_6gf", 64)


def densenet() -> Case:
    return torchvision_model("densenet121", 64)


def maxvit() -> Case:
    return torchvision_model("maxvit_t", 32)


def mobilenet() -> Case:
    return torchvision_model("mobilenet_v3_large", 128)


def whisper() -> Case:
    module = hugging_face("whisper", "AutoModelForSpeechSeq2Seq", d_model=512, encoder_layers=6,
                          decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
                          encoder_ffn_dim=2048, decoder_ffn_dim=2048)  # fmt: skip
    labels = torch.randint(0, 51865, (16, 128))
    return Case(module, {"input_features": torch.randn(16, 80, 3000), "labels": labels})


def wav2vec2() -> Case:
    module = hugging_face("wav2vec2", "AutoModelForAudioClassification", apply_spec_augment=False,
                          layerdrop=0.0, num_labels=12)  # fmt: skip
    return Case(module, {"input_values": torch.randn(16, 48000), "labels": torch.arange(16) % 12})


def clip() -> Case:
    module = hugging_face("clip", "AutoModel")
    batch = {
        "input_ids": torch.randint(0, 49408, (64, 77)),
        "pixel_values": torch.randn(64, 3, 224, 224), "return_loss": True,
    }  # fmt: skip
    return Case(module, batch)


class Translator(nn.Module):
    """A GRU that reads and a GRU that writes, with attention between them."""

    def __init__(self, vocabulary: int = 32000, width: int = 512) -> None:
        super().__init__()
        self.source, self.target = (nn.Embedding(vocabulary, width) for _ in range(2))
        self.reader = nn.GRU(width, width, num_layers=2, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * width, width)
        self.writer = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.join, self.head = nn.Linear(2 * width, width), nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        read = self.bridge(self.reader(self.source(source))[0])
        written = self.writer(self.target(target))[0]
        weights = (written @ read.transpose(1, 2)).softmax(-1)
        return self.head(torch.tanh(self.join(torch.cat((written, weights @ read), -1))))


def gru_translator() -> Case:
    source, target = torch.randint(0, 32000, (64, 64)), torch.randint(0, 32000, (64, 65))
    inputs = (source, target[:, :-1].clone())
    return Case(Translator(), (inputs, target[:, 1:].clone()), "cross_entropy")


class MessageLayer(nn.Module):
    """Messages along edges, summed at their ends."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU())
        self.update, self.norm = nn.Linear(2 * width, width), nn.LayerNorm(width)

    def forward(self, nodes: Tensor, ends: Tensor) -> Tensor:
        rows = torch.arange(len(nodes), device=nodes.device)[:, None]
        begin, end = nodes[rows, ends[..., 0]], nodes[rows, ends[..., 1]]
        sent = self.message(torch.cat((begin, end), -1))
        place = ends[..., 1:].expand(-1, -1, nodes.shape[-1])
        summed = torch.zeros_like(nodes).scatter_add(1, place, sent.to(nodes.dtype))
        return self.norm(nodes + self.update(torch.cat((nodes, summed), -1)))


class GraphNet(nn.Module):
    """Graphs of so many nodes and edges, one number each."""

    def __init__(self, width: int = 256, depth: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.layers = nn.ModuleList(MessageLayer(width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, kinds: Tensor, ends: Tensor) -> Tensor:
        nodes = self.embed(kinds)
        for layer in self.layers:
            nodes = layer(nodes, ends)
        return self.head(nodes.sum(1))


def graph_net() -> Case:
    inputs = torch.randint(0, 100, (256, 64)), torch.randint(0, 64, (256, 512, 2))
    return Case(GraphNet(), (inputs, torch.randn(256, 1)), "squared_error")


class DeepFM(nn.Module):
    """Pairs of features by factors, and a deep network beside them."""

    def __init__(self, sizes: tuple[int, ...] = (100_000,) * 26, width: int = 16) -> None:
        super().__init__()
        begins = torch.tensor((0, *sizes[:-1])).cumsum(0)
        self.register_buffer("begins", begins, persistent=False)
        self.factors, self.single = nn.Embedding(sum(sizes), width), nn.Embedding(sum(sizes), 1)
        self.deep = nn.Sequential(
            nn.Linear(len(sizes) * width + 13, 400), nn.BatchNorm1d(400), nn.ReLU(),
            nn.Dropout(0.2), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 1),
        )  # fmt: skip

    def forward(self, kinds: Tensor, numbers: Tensor) -> Tensor:
        places = kinds + self.begins
        factors = self.factors(places)
        pairs = factors.sum(1).square() - factors.square().sum(1)
        deep = self.deep(torch.cat((factors.flatten(1), numbers), -1))
        return (self.single(places).sum((1, 2)) + pairs.sum(-1) / 2 + deep[:, 0]).float()


def deep_fm() -> Case:
    inputs = torch.randint(0, 100_000, (16384, 26)), torch.randn(16384, 13)
    return Case(DeepFM(), (inputs, torch.rand(16384).round()), click_loss)


class WaveBlock(nn.Module):
    """A gated dilated convolution over time."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.gated = nn.Conv1d(channels, 2 * channels, 3, dilation=dilation, padding=dilation)
        self.norm, self.out = nn.BatchNorm1d(channels), nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.gated(self.norm(x)).chunk(2, 1)
        return x + self.out(torch.tanh(value) * torch.sigmoid(gate))


class WaveNet(nn.Module):
    def __init__(self, channels: int = 128, depth: int = 16) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, channels, 1), nn.Conv1d(channels, 1, 1)
        self.blocks = nn.Sequential(*(WaveBlock(channels, 2 ** (i % 8)) for i in range(depth)))

    def forward(self, sound: Tensor) -> Tensor:
        return self.last(self.blocks(self.first(sound)))


def wavenet() -> Case:
    sound = torch.randn(16, 1, 8192)
    return Case(WaveNet(), (sound, sound.roll(-1, -1)), "squared_error")


def volume_block(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(inside, outside, 3, padding=1), nn.InstanceNorm3d(outside, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
        nn.Conv3d(outside, outside, 3, padding=1), nn.InstanceNorm3d(outside, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
    )  # fmt: skip


class VolumeUNet(nn.Module):
    """A U-Net of scans in three dimensions."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        a, b, c = channels, 2 * channels, 4 * channels
        self.down1, self.down2 = volume_block(1, a), volume_block(a, b)
        self.middle = volume_block(b, c)
        self.lift2, self.up2 = nn.ConvTranspose3d(c, b, 2, stride=2), volume_block(2 * b, b)
        self.lift1, self.up1 = nn.ConvTranspose3d(b, a, 2, stride=2), volume_block(2 * a, a)
        self.last = nn.Conv3d(a, 4, 1)

    def forward(self, scan: Tensor) -> Tensor:
        first = self.down1(scan)
        second = self.down2(functional.max_pool3d(first, 2))
        x = self.middle(functional.max_pool3d(second, 2))
        x = self.up2(torch.cat((self.lift2(x), second), 1))
        return self.last(self.up1(torch.cat((self.lift1(x), first), 1)))


def voxel_loss(scores: Tensor, kinds: Tensor) -> Tensor:
    return functional.cross_entropy(scores, kinds)


def volume_unet() -> Case:
    batch = torch.randn(2, 1, 64, 64, 64), torch.randint(0, 4, (2, 64, 64, 64))
    return Case(VolumeUNet(), batch, voxel_loss)


MORE = {
    make.__name__: make
    for make in (
        regnet, densenet, maxvit, mobilenet, whisper, wav2vec2, clip, gru_translator, graph_net,
        deep_fm, wavenet, volume_unet,
    )
}  # fmt: skip
