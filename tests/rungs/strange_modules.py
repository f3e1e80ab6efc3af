"""Modules that nobody here chose: odd parameters, hooks, attributes, outputs."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

WIDTH = 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(torch.tanh(self.fc1(self.norm(x))))


class Net(nn.Module):
    """A stem, blocks and a head, between which each case changes one thing."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Scaled(Net):
    """A parameter without dimensions, as CLIP's logit_scale."""

    def __init__(self) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.logit_scale.exp()


class ScaledBlock(Block):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * super().forward(x)


def scaled_blocks() -> Net:
    net = Net()
    net.blocks = nn.ModuleList(ScaledBlock() for _ in range(2))
    return net


class Empty(Net):
    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(0, 3))
        self.one = nn.Parameter(torch.randn(1, 3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.one + self.nothing.sum()


def old_weight_norm() -> Net:
    net = Net()
    for block in net.blocks:
        nn.utils.weight_norm(block.fc1)
    return net


def new_weight_norm() -> Net:
    net = Net()
    for block in net.blocks:
        parametrizations.weight_norm(block.fc1)
    return net


def orthogonal() -> Net:
    net = Net()
    for block in net.blocks:
        parametrizations.orthogonal(block.fc1)
    return net


def spectral() -> Net:
    net = Net()
    for block in net.blocks:
        parametrizations.spectral_norm(block.fc1)
    return net


def old_spectral() -> Net:
    net = Net()
    nn.utils.spectral_norm(net.head)
    return net


class AnnealedBlock(Block):
    """Counts its calls in a buffer and in an attribute, and computes with both."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            self.count += 1
        return x + 0.5**self.count * self.fc2(torch.tanh(self.fc1(x) * (1 + self.calls)))


def annealed() -> Net:
    net = Net()
    net.blocks = nn.ModuleList(AnnealedBlock() for _ in range(2))
    return net


def pruned() -> Net:
    net = Net()
    for block in net.blocks:
        prune.random_unstructured(block.fc1, "weight", amount=0.3)
    return net


class Caching(Net):
    """Keeps an activation of the last forward as an attribute."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        self.cached = out
        self.cached_list = [out * 2]
        return out


def cached() -> Net:
    net = Caching()
    net(torch.randn(2, 4)).sum()
    return net


class Locked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.draw = torch.Generator().manual_seed(1)
        self.file = open("/dev/null")  # noqa: SIM115
        self.lines = (line for line in "abc")


@dataclass
class Output:
    logits: Tensor
    hidden: Any = None


class DictOut(Net):
    def forward(self, x: Tensor) -> Any:
        return {"logits": super().forward(x), "none": None, "n": 3}


class TupleOut(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), None, (x,)


class DataclassOut(Net):
    def forward(self, x: Tensor) -> Any:
        return Output(super().forward(x))


class InPlaceBlock(Block):
    def forward(self, x: Tensor) -> Tensor:
        x.mul_(1.5)
        return super().forward(x)


def in_place() -> Net:
    net = Net()
    net.blocks = nn.ModuleList(InPlaceBlock() for _ in range(2))
    return net


class ReluBlock(Block):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(torch.tanh(self.fc1(self.act(x))))


def relu_first() -> Net:
    net = Net()
    net.blocks = nn.ModuleList(ReluBlock() for _ in range(2))
    return net


def gradient_hooks() -> Net:
    net = Net()
    net.head.weight.register_hook(lambda gradient: gradient * 3)
    net.blocks[0].fc1.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return net


def halve(parameter: Tensor) -> None:
    parameter.grad.mul_(0.5)


def accumulate_hooks() -> Net:
    net = Net()
    net.head.weight.register_post_accumulate_grad_hook(halve)
    net.blocks[0].fc1.weight.register_post_accumulate_grad_hook(halve)
    return net


def module_hooks() -> Net:
    net = Net()
    net.blocks[0].register_forward_hook(lambda m, args, out: out * 1.1)
    net.blocks[1].register_forward_pre_hook(lambda m, args: (args[0] * 0.9,))
    net.blocks[1].fc1.register_full_backward_hook(lambda m, gi, go: tuple(g * 2 for g in gi))
    net.head.register_full_backward_pre_hook(lambda m, go: tuple(g * 0.5 for g in go))
    return net


class Lazy(Net):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.LazyLinear(WIDTH)


class SparseNet(nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, WIDTH, **how)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def sparse() -> nn.Module:
    return SparseNet(sparse=True)


def max_norm() -> nn.Module:
    return SparseNet(max_norm=1.0)


def by_freq() -> nn.Module:
    return SparseNet(scale_grad_by_freq=True)


def padding() -> nn.Module:
    return SparseNet(padding_idx=0)


class ComplexNet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.randn(3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) * self.phase).abs()


class MixedTypes(Net):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.narrow = nn.Parameter(torch.randn(3).half())

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.wide.float() + self.narrow.float()


class Integers(Net):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.tensor([1, 2, 3]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.table


class Unused(Net):
    """A block that never runs, one that some rows use, and parameters that no pass uses."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(3, 3)
        self.never = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, chosen = super().forward(x), x[:, 0] > 1.2
        if chosen.any():
            out = out.index_add(0, chosen.nonzero()[:, 0], self.extra(out[chosen]))
        return out


class SkippedBlock(Net):
    """A whole block that only some passes run; it differs by rank."""

    def forward(self, x: Tensor) -> Tensor:
        h, chosen = self.blocks[0](self.stem(x)), x[:, 0] > 1.2
        if chosen.any():
            h = h.index_add(0, chosen.nonzero()[:, 0], self.blocks[1](h[chosen]))
        return self.head(h)


class Routed(nn.Module):
    """Layers of which each takes some rows of the input, which needs no gradient itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        made, place = torch.zeros_like(x), x[:, 0].long() % 3
        for index, layer in enumerate(self.layers):
            rows = (place == index).nonzero()[:, 0]
            if len(rows):
                made = made.index_add(0, rows, torch.tanh(layer(x[rows])))
        return self.head(made + x)


class Rarely(Net):
    """Blocks for the rows of later ranks alone, at first."""

    def forward(self, x: Tensor) -> Tensor:
        h, rows = self.stem(x), (x[:, 0] >= 4).nonzero()[:, 0]
        for block in self.blocks:
            if len(rows):
                h = h.index_add(0, rows, block(h[rows]))
        return self.head(h)


def numbered(step: int) -> tuple[Tensor, Tensor]:
    """Rows that begin with their number in all batches."""
    x, y = floats(step)
    x[:, 0] = torch.arange(len(x)) + step * len(x)
    return x, y


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ws = nn.ParameterList([nn.Parameter(torch.randn(4, 4)) for _ in range(3)])
        self.named = nn.ParameterDict({"a": nn.Parameter(torch.randn(4, 3)), "b": torch.randn(3)})
        self.same = self.ws[0]

    def forward(self, x: Tensor) -> Tensor:
        for w in self.ws:
            x = torch.tanh(x @ w)
        return x @ self.same @ self.named["a"] + self.named["b"]


class Keyword(Net):
    def forward(self, *, x: Tensor, scale: float = 2.0, **rest: Any) -> Tensor:
        return super().forward(x) * scale


class Star(Net):
    def forward(self, *args: Any) -> Tensor:
        return super().forward(args[0]) + args[1]


class Same(nn.Module):
    """Its blocks return their input unchanged where nothing is to be done."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 4)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x[:, :3]


class Attr(Net):
    def __getattr__(self, name: str) -> Any:
        if name == "stem":
            return super().__getattr__("stem")
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("stem"), name)


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.stem.requires_grad_(False)
        self.blocks[0].requires_grad_(False)
        self.blocks[1].fc1.bias.requires_grad_(False)


def tied() -> Net:
    net = Net()
    net.blocks[1].fc1.weight = net.blocks[0].fc1.weight
    return net


class Late(Net):
    """Registers a parameter in its first forward."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if not hasattr(self, "late"):
            self.late = nn.Parameter(torch.ones(3))
        return out * self.late


class Stored(Net):
    """Buffers of many types, an extra state, a state-dict hook."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("u16", torch.tensor([1, 2], dtype=torch.uint16))
        self.register_buffer("z", torch.randn(2, dtype=torch.complex64))
        self.register_buffer("d", torch.randn(2, dtype=torch.float64))
        self.register_buffer("wide", torch.randn(1, 3).expand(4, 3))
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.register_buffer("none", None)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return super().forward(x) + self.d.float().sum() + self.z.abs().sum() + self.wide.sum()


class Penalised(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), sum(p.square().sum() for p in self.parameters())


class NonContiguous(Net):
    def __init__(self) -> None:
        super().__init__()
        self.t = nn.Parameter(torch.randn(3, 5).t())

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.t.sum(0)


class Subclass(nn.Parameter):
    pass


class SubclassParameter(Net):
    def __init__(self) -> None:
        super().__init__()
        self.sub = Subclass(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.sub


class View(Net):
    """The head's weight is half of another parameter's memory."""

    def __init__(self) -> None:
        super().__init__()
        both = torch.randn(6, WIDTH)
        self.head.weight = nn.Parameter(both[:3])
        self.other = nn.Parameter(both[3:])

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.other.sum()


def scripted() -> nn.Module:
    return torch.jit.script(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x.unsqueeze(1))
        return self.head(out[:, -1])


def cross(out: Any, y: Tensor) -> Tensor:
    if isinstance(out, dict):
        out = out["logits"]
    elif isinstance(out, tuple):
        out = out[0]
    out = getattr(out, "logits", out)
    return nn.functional.cross_entropy(out, y)


def penalised(out: Any, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out[0], y) + 0.01 * out[1]


def floats(step: int, rows: int = 8) -> Any:
    draw = torch.Generator().manual_seed(step + 5)
    return torch.randn(rows, 4, generator=draw), torch.randint(0, 3, (rows,), generator=draw)


def doubles(step: int, rows: int = 8) -> Any:
    draw = torch.Generator().manual_seed(step + 5)
    x = torch.randn(rows, 4 + 3, generator=draw).double()
    return x[:, :4], x[:, 4:]


def double_rows(step: int, rows: int = 8) -> Any:
    x, y = floats(step, rows)
    return x.double(), y


def tokens(step: int, rows: int = 8) -> Any:
    draw = torch.Generator().manual_seed(step + 5)
    return torch.randint(0, 7, (rows, 5), generator=draw), torch.randint(
        0, 3, (rows,), generator=draw
    )


def keyword(step: int, rows: int = 8) -> Any:
    x, y = floats(step, rows)
    return {"x": x}, y


def star(step: int, rows: int = 8) -> Any:
    x, y = floats(step, rows)
    return (x, x[:, :3]), y


class RunningMean(Net):
    """Keeps a running mean of its activations, of which no result depends."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running", torch.zeros(WIDTH))
        self.register_buffer("replaced", torch.zeros(WIDTH))
        self.register_buffer("constant", torch.randn(1).expand(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        if self.training:
            mean = x.detach().mean(0)
            self.running.lerp_(mean, 0.1)
            self.replaced = 0.9 * self.replaced + 0.1 * mean
        return self.head(x)


def spectral_head() -> nn.Module:
    made = Net()
    parametrizations.spectral_norm(made.head)
    return made


def spectral_shared() -> nn.Module:
    """A block that runs twice in a forward pass, and iterates in both."""
    made = Net()
    parametrizations.spectral_norm(made.blocks[0].fc1)
    made.blocks[1] = made.blocks[0]
    return made


class ObjectOut(Net):
    """Returns an object of a class that torch knows nothing of."""

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(logits=super().forward(x))


def in_float64() -> nn.Module:
    return Net().double()


class Experts(Net):
    """Rows go to one of two layers inside a block, so a rank may leave one out."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.other = nn.Linear(WIDTH, WIDTH)
            block.forward = MethodType(by_sign, block)


def by_sign(block: Any, x: Tensor) -> Tensor:
    chosen = x[:, 0] > 0
    made = torch.zeros_like(x)
    for mine, part in ((chosen, lambda y: Block.forward(block, y)), (~chosen, block.other)):
        if mine.any():
            made[mine] = part(x[mine])
    return x + made


CASES: dict[str, tuple[Any, Any, Any]] = {
    name: (make, floats, cross)
    for name, make in {
        "net": Net, "scaled": Scaled, "scaled_blocks": scaled_blocks, "empty": Empty,
        "old_weight_norm": old_weight_norm, "new_weight_norm": new_weight_norm,
        "orthogonal": orthogonal, "spectral": spectral, "old_spectral": old_spectral,
        "annealed": annealed,
        "pruned": pruned, "cached": cached, "locked": Locked, "dict": DictOut, "tuple": TupleOut,
        "dataclass": DataclassOut, "in_place": in_place, "relu_first": relu_first,
        "gradient_hooks": gradient_hooks, "accumulate_hooks": accumulate_hooks,
        "module_hooks": module_hooks, "lazy": Lazy, "complex": ComplexNet, "mixed": MixedTypes,
        "integers": Integers, "unused": Unused, "skipped": SkippedBlock, "lists": Lists,
        "same": Same, "attr": Attr, "frozen": Frozen, "tied": tied, "late": Late,
        "stored": Stored, "noncontiguous": NonContiguous, "subclass": SubclassParameter,
        "view": View, "scripted": scripted, "lstm": Lstm, "running_mean": RunningMean,
        "spectral_head": spectral_head, "spectral_shared": spectral_shared, "experts": Experts,
        "object": ObjectOut,
    }.items()
}  # fmt: skip
CASES |= {
    "sparse": (sparse, tokens, cross),
    "max_norm": (max_norm, tokens, cross),
    "by_freq": (by_freq, tokens, cross),
    "padding": (padding, tokens, cross),
    "routed": (Routed, numbered, cross),
    "rarely": (Rarely, numbered, cross),
    "keyword": (Keyword, keyword, cross),
    "star": (Star, star, cross),
    "penalised": (Penalised, floats, penalised),
    "float64": (in_float64, doubles, nn.HuberLoss()),
    "weighted64": (
        in_float64,
        double_rows,
        nn.CrossEntropyLoss(torch.tensor([0.5, 1.0, 1.7]).double()),
    ),
}


def random_module(case: str) -> nn.Module:
    """The case's module with random weights, the same in every process."""
    torch.manual_seed(0)
    return CASES[case][0]()
