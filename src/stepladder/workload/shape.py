"""A transformer's shape: the numbers from which parameters, FLOPs and activations follow.

Text form: `llama:layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256`. The family
sets what the numbers leave open: Llama has three ffn matrices, rotary positions, RMSNorm and no
biases; GPT has two, learned positions, LayerNorm, biases and a tied head.

`experts=8,active=2` makes each MLP of a Llama a mixture: so many of them, each token through two, a
router that chooses.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import isqrt
from typing import Any

from stepladder.errors import PlanError, nearest

MIXTURE = ("active", "expert_ffn", "shared_ffn", "dense", "every", "raw")  # what needs experts
MOST_LAYERS = 10_000  # of a mixture: ten times the deepest
UNUSUAL = ("head", "experts", *MIXTURE, "extra")  # 0 in most models, and left out of their text


@dataclass(frozen=True, slots=True)
class Shape:
    """A transformer in numbers: layers, hidden size, heads, vocabulary."""

    family: str  # "llama" or "gpt"
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int  # the width inside the MLP
    vocab: int
    sequence: int = 2048  # the longest the positions allow; a forecast may use less
    tied: bool = False  # the head shares the embedding's matrix
    head: int = 0  # the width of one head; 0: hidden over heads
    experts: int = 0  # MLPs of a layer from which each token's are chosen; 0: one, for all tokens
    active: int = 0  # of them, those that one token goes to
    expert_ffn: int = 0  # the width inside an expert; 0: ffn
    shared_ffn: int = 0  # the width inside an MLP beside the experts that every token goes to
    dense: int = 0  # first layers that have no experts
    every: int = 0  # of the layers, each so-many-th has experts; 0: each
    raw: int = 0  # 1: the weights of a token's experts are not made to add up to one
    extra: int = 0  # parameters of a block beside those of its family: biases, norms of heads

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate: three matrices instead of two."""
        return self.family == "llama"

    @property
    def biased(self) -> bool:
        return self.family == "gpt"

    @property
    def head_width(self) -> int:
        return self.head or self.hidden // self.heads

    @property
    def query_width(self) -> int:
        """Of all heads together: hidden, but where `head` says otherwise."""
        return self.heads * self.head_width

    @property
    def query_key_norms(self) -> str:
        """What `extra` is: "head" for norms of each head of queries and keys, "all" for norms of
        all heads together."""
        keys = self.kv_heads * self.head_width
        norms = {2 * self.head_width: "head", self.query_width + keys: "all"}
        return norms.get(self.extra, "") if self.gated else ""

    @property
    def attention_parameters(self) -> int:
        """Of one block's four projections."""
        key_value = 2 * self.hidden * self.kv_heads * self.head_width
        matrices = 2 * self.hidden * self.query_width + key_value
        biases = self.hidden + self.query_width + 2 * self.kv_heads * self.head_width
        return matrices + (biases if self.biased else 0)

    @property
    def mlp_parameters(self) -> int:
        """Of a layer without experts."""
        matrices = (3 if self.gated else 2) * self.hidden * self.ffn
        return matrices + (self.ffn + self.hidden if self.biased else 0)

    @property
    def expert_width(self) -> int:
        return self.expert_ffn or self.ffn

    @property
    def expert_parameters(self) -> int:
        """Of one expert."""
        return 3 * self.hidden * self.expert_width

    @property
    def mixture_parameters(self) -> int:
        """Of a layer's router, experts, and the MLP beside them."""
        router, shared = self.hidden * self.experts, 3 * self.hidden * self.shared_ffn
        return router + self.experts * self.expert_parameters + shared

    def is_sparse(self, layer: int) -> bool:
        """Whether the layer, counted from 0, has experts."""
        chosen = layer >= self.dense and (layer + 1) % max(self.every, 1) == 0
        return bool(self.experts) and chosen

    @property
    def sparse_layers(self) -> int:
        step = max(self.every, 1)
        return self.layers // step - min(self.dense, self.layers) // step if self.experts else 0

    @property
    def norm_parameters(self) -> int:
        return self.hidden * (2 if self.biased else 1)

    @property
    def block_parameters(self) -> int:
        """Of a layer without experts."""
        mlp = self.mlp_parameters + 2 * self.norm_parameters
        return self.attention_parameters + mlp + self.extra

    @property
    def embedding_parameters(self) -> int:
        positions = self.sequence * self.hidden if self.family == "gpt" else 0
        return self.vocab * self.hidden + positions

    @property
    def head_parameters(self) -> int:
        """Of the head's own matrix: none when it is tied."""
        return 0 if self.tied else self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        more = self.sparse_layers * (self.mixture_parameters - self.mlp_parameters)
        blocks = self.layers * self.block_parameters + more
        return self.embedding_parameters + blocks + self.norm_parameters + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Those that one token meets."""
        idle = self.experts - self.active
        return self.parameters - self.sparse_layers * idle * self.expert_parameters

    def __str__(self) -> str:
        unsaid = ("family", "tied", *(name for name in UNUSUAL if not getattr(self, name)))
        numbers = [f.name for f in fields(self) if f.name not in unsaid]
        words = [f"{name}={getattr(self, name)}" for name in numbers]
        return f"{self.family}:{','.join([*words, f'tied={int(self.tied)}'])}"


FAMILIES = {
    "llama": Shape("llama", 2, 64, 4, 4, 256, 256, tied=False),
    "gpt": Shape("gpt", 2, 64, 4, 4, 256, 256, sequence=1024, tied=True),
}


def parse_shape(text: str) -> Shape:
    """A shape from `family:key=number,…`; kv_heads and ffn follow from the rest when left out."""
    family, _, settings = text.partition(":")
    if family not in FAMILIES:
        raise PlanError("model", f"'{family}' is not a family", nearest(family, FAMILIES))
    known = [f.name for f in fields(Shape) if f.name != "family"]
    given: dict[str, int] = {}
    for word in filter(None, settings.split(",")):
        key, _, value = word.strip().partition("=")
        if key not in known:
            raise PlanError("model", f"'{key}' is not part of a shape", nearest(key, known))
        if key in given:
            raise PlanError(
                f"model.{key}", f"given twice, as {given[key]} and {value}", "Keep one."
            )
        given[key] = parse_number(key, value)
    return check_shape(fill_defaults(family, given))


def parse_number(key: str, text: str) -> int:
    # Python's isdigit is true of digits int refuses, and int refuses thousands of digits.
    plain = text.isascii() and text.isdigit() and len(text) < 10
    if key == "tied" and text not in ("0", "1"):
        raise PlanError("model.tied", f"'{text}' is neither 0 nor 1", "Write tied=1 or tied=0.")
    if key != "tied" and not (plain and int(text)):
        problem = f"'{text}' is not a whole number from 1 to 999999999"
        raise PlanError(f"model.{key}", problem, "Write one.")
    return int(text)


def fill_defaults(family: str, given: dict[str, int]) -> Shape:
    start = FAMILIES[family]
    hidden = given.get("hidden", start.hidden)
    follows = {"kv_heads": given.get("heads", start.heads), "ffn": 4 * hidden}
    numbers: dict[str, Any] = {**follows, **given}
    tied = bool(numbers.pop("tied", start.tied))
    return replace(start, **numbers, tied=tied)


def check_shape(shape: Shape) -> Shape:
    if shape.hidden % shape.heads and not shape.head:
        best = min(divisors(shape.hidden), key=lambda n: abs(n - shape.heads))
        raise PlanError(
            "model.heads",
            f"{shape.heads} heads do not divide hidden={shape.hidden}",
            f"Nearest that do: {best}.",
        )
    if shape.heads % shape.kv_heads:
        raise PlanError(
            "model.kv_heads",
            f"{shape.kv_heads} does not divide {shape.heads} heads",
            f"Use a divisor of {shape.heads}.",
        )
    check_mixture(shape)
    return shape


def check_mixture(shape: Shape) -> None:
    """The numbers of experts, which mean something only together."""
    if not shape.experts:
        alone = next((name for name in MIXTURE if getattr(shape, name)), None)
        if alone:
            problem = f"{getattr(shape, alone)} says nothing of a model without experts"
            raise PlanError(f"model.{alone}", problem, "Write experts=8 too, or leave it out.")
        return
    if not shape.gated:
        problem = f"{shape.experts} experts in a {shape.family}, whose MLP has no gate as theirs do"
        raise PlanError("model.experts", problem, "Write the model as a llama.")
    if not shape.active:
        problem = f"{shape.experts} experts, and not to how many of them a token goes"
        raise PlanError("model.active", problem, f"Write active={min(2, shape.experts)}.")
    if shape.active > shape.experts:
        problem = f"a token cannot go to {shape.active} of {shape.experts} experts"
        raise PlanError("model.active", problem, f"Use 1 to {shape.experts}.")
    if shape.layers > MOST_LAYERS:
        problem = f"{shape.layers} layers, which a mixture has in an order that is gone through"
        raise PlanError("model.layers", problem, f"Use at most {MOST_LAYERS}.")
    if not shape.sparse_layers:
        name = "dense" if shape.dense >= shape.layers else "every"
        problem = f"{getattr(shape, name)} leaves none of {shape.layers} layers for experts"
        raise PlanError(f"model.{name}", problem, "Use a smaller number.")


def divisors(number: int) -> list[int]:
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
