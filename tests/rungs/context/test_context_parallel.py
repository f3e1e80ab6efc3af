"""Stretches of a sequence on several ranks compute what the whole computes on one."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepladder.data.packing import pack
from stepladder.errors import DataError, ModelError
from stepladder.measure.storage_ledger import Ledger
from stepladder.model import build
from stepladder.rungs.context.context_parallel import shifted_cross_entropy
from stepladder.train import climb
from tests.ranks import run
from tests.soak import soak_after
from tests.train.toys import gpt, ragged

LENGTH, MICRO = 16, 2


def llama():
    """Two key heads for four query heads."""
    return build("llama:layers=2,hidden=32,heads=4,kv_heads=2,vocab=64,sequence=16", seed=0)


def hf_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(
        GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16, **none)
    )


def hf_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=64, max_position_embeddings=16,
        )
    )  # fmt: skip


def words(num: int):
    """Rows with targets in the first chunks only, in all, in none."""
    return ragged(num, rows=8, length=LENGTH)


def packed(num: int):
    """Documents of 1 to 11 tokens, which begin and end anywhere in a chunk."""
    draw = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 12, (num * 8 * LENGTH,), generator=draw).tolist()
    rows = pack([torch.randint(0, 64, (n,), generator=draw) for n in lengths], LENGTH)
    return [rows.fetch(torch.arange(8).add(8 * index).numpy()) for index in range(num)]


def labelled(num: int):
    return [{"input_ids": tokens, "labels": targets} for tokens, targets in words(num)]


SUBJECTS = {
    "gpt": (gpt, words, "cross_entropy"),
    "llama, packed": (llama, packed, "cross_entropy"),
    "Hugging Face gpt2": (hf_gpt2, labelled, None),
    "llama": (llama, words, "cross_entropy"),
    "gpt, packed": (gpt, packed, "cross_entropy"),
    "Hugging Face llama": (hf_llama, labelled, None),
}


def rows_of(value, mine: Tensor):
    if isinstance(value, Tensor):
        return value[mine]
    if isinstance(value, dict):
        return {name: rows_of(part, mine) for name, part in value.items()}
    return tuple(rows_of(part, mine) for part in value)


def learn(plan: str, subject: str, optimizer: str, steps: int = 3):
    """Losses, gradient norms, an evaluation, and every parameter after the last step."""
    make, data, loss = SUBJECTS[subject]
    taken = climb(
        make(), loss=loss, optimizer=optimizer, plan=f"{plan} micro={MICRO}", device="cpu"
    )
    *batches, held_out = data(steps + 1)
    ways, index = taken.world.layout.data_ranks, taken.world.data_index
    mine = torch.arange(8) // MICRO % ways == index
    reports = [taken.step(rows_of(batch, mine), rows="rank") for batch in batches]
    found = [report.loss for report in reports], [report.grad_norm for report in reports]
    tokens, judged = (
        [report.tokens for report in reports],
        taken.evaluate([rows_of(held_out, mine)], rows="rank"),
    )
    parameters = {
        name: getattr(p, "full_tensor", lambda p=p: p)().detach()
        for name, p in taken.module.named_parameters(remove_duplicate=False)
    }
    return *found, tokens, judged, parameters


def check_same(plan: str, ranks: int, subject: str, optimizer: str, close: float = 1e-5) -> None:
    expected = learn(plan.split()[0], subject, optimizer)
    seen = set()
    for *found, parameters in run(learn, ranks, plan, subject, optimizer, init=False):
        for each, known in zip(found, expected[:-1], strict=True):
            assert each == pytest.approx(known, rel=close)
        for name, value in parameters.items():
            known = expected[-1][name]
            # A key's bias has no gradient but rounding, and stays near its zero.
            assert (value - known).norm() <= close * max(known.norm().item(), 0.01)
        seen |= set(parameters)
    assert seen == set(expected[-1]), "every stage has its own"


@pytest.mark.parametrize("subject", soak_after(SUBJECTS, gate=3))
def test_two_chunks_learn_what_the_whole_does(subject):
    check_same("fp32 ddp context=2", 2, subject, "sgd lr=0.5")


@pytest.mark.parametrize(
    ("plan", "subject"),
    soak_after(
        [
            ("fp32 zero2 context=2 recompute=blocks", "llama, packed"),
            ("fp32 zero3 context=2 recompute=selective", "llama"),
            ("fp32 ddp context=2 recompute=blocks attention=plain", "llama"),
            ("fp32 zero1 context=2", "llama, packed"),
            ("fp32 zero3 context=2 recompute=blocks", "Hugging Face llama"),
        ],
        gate=3,
    ),
)
def test_the_rung_stands_with_the_others(plan, subject):
    check_same(plan, 2, subject, "adamw lr=1e-3 clip=0.5")


@pytest.mark.parametrize(
    ("plan", "subject"),
    soak_after(
        [
            ("fp32 ddp context=2 pipeline=2", "llama"),
            ("fp32 ddp context=4", "llama, packed"),
            ("fp32 ddp replicate=2 context=2", "Hugging Face llama"),
            ("fp32 zero3 shard=2 context=2", "llama"),
            ("fp32 ddp context=2 pipeline=2", "gpt, packed"),
            ("fp32 zero3 context=2 pipeline=2", "Hugging Face gpt2"),
        ],
        gate=1,
    ),
)
def test_four_ranks_learn_what_one_does(plan, subject):
    check_same(plan, 4, subject, "sgd lr=0.5")


@pytest.mark.soak
def test_chunks_in_bf16_stay_within_its_rounding():
    check_same("bf16 ddp context=2", 2, "llama", "sgd lr=0.1", close=2e-3)


def learn_traced(*task):
    """With the compiler's tracing and its backward graph, and without its C++, which takes long."""
    compile = nn.Module.compile
    nn.Module.compile = lambda module, **_: compile(module, backend="aot_eager")
    try:
        return learn(*task)
    finally:
        nn.Module.compile = compile


@pytest.mark.soak
def test_a_compiled_block_looks_across_ranks():
    task = "llama", "sgd lr=0.5"
    losses, norms, *_ = learn("fp32", *task)
    for found in run(learn_traced, 2, "fp32 ddp context=2 compile=on", *task, init=False):
        assert found[0] == pytest.approx(losses, rel=1e-5)
        assert found[1] == pytest.approx(norms, rel=1e-5)


def activations(ways: int) -> int:
    """Bytes that forward keeps for backward."""
    model = build("llama:layers=4,hidden=64,heads=4,ffn=64,vocab=64,sequence=512")
    plan = f"fp32 context={ways}"
    taken = climb(model, loss="cross_entropy", optimizer="sgd lr=0.1", plan=plan, device="cpu")
    (batch,) = ragged(1, rows=1, length=512)
    batch[1][:] = 1
    assert taken.step(batch).loss > 0  # the first step also tests the module
    with Ledger(taken.world.device, 1) as ledger:
        taken.step(batch)
    return sum(
        life.num_bytes for life in ledger.lives if life.phase == "forward" and ledger.kept(life)
    )


def test_activations_shrink_by_the_ways_and_gathered_keys_do_not_stay():
    whole = activations(1)
    for ways in (2, 4):
        for kept in run(activations, ways, ways, init=False):
            assert kept == pytest.approx(whole / ways, rel=0.05)


def refused(make, batch, loss="cross_entropy", plan="fp32 context=2", sample=None) -> str:
    taken = climb(make(), loss=loss, optimizer="sgd lr=0.1", plan=plan, device="cpu", sample=sample)
    try:
        taken.step(batch)
    except (DataError, ModelError) as problem:
        return str(problem)
    return ""


class Foreign(nn.Module):
    """A language model whose attention is torch's, called by itself, and one more thing."""

    def __init__(self, extra: str = "") -> None:
        super().__init__()
        self.extra = extra
        self.embedding, self.mix = nn.Embedding(64, 32), nn.Linear(32, 32)
        self.convolution = nn.Conv1d(32, 32, 3, padding=2)
        self.head = nn.Linear(32, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        heads = self.mix(hidden).unflatten(-1, (2, 16)).transpose(1, 2)
        mask = torch.ones(heads.shape[-2], heads.shape[-2]).bool().tril()
        seen = {
            "a mask of its own": lambda: F.scaled_dot_product_attention(heads, heads, heads, mask),
            "other keys": lambda: F.scaled_dot_product_attention(
                heads, heads[:, :, :1], heads[:, :, :1]
            ),
            "no attention of torch's": lambda: (heads @ heads.transpose(2, 3) * mask) @ heads,
        }.get(
            self.extra,
            lambda: F.scaled_dot_product_attention(
                heads, heads, heads, is_causal=self.extra != "both ways"
            ),
        )()
        hidden = hidden + seen.transpose(1, 2).flatten(2)
        if self.extra == "a convolution":
            hidden = hidden + self.convolution(hidden.mT)[..., :-2].mT
        return self.head(hidden)


def foreign(extra: str = "") -> Foreign:
    torch.manual_seed(0)
    return Foreign(extra)


SUBJECTS["foreign"] = (foreign, words, "cross_entropy")
SUBJECTS["foreign, both ways"] = (partial(foreign, "both ways"), words, "cross_entropy")


@pytest.mark.parametrize("subject", ["foreign", "foreign, both ways"])
def test_an_attention_of_torchs_own_is_found_in_any_module(subject):
    check_same("fp32 ddp context=2", 2, subject, "sgd lr=0.5")


def refusals() -> dict[str, str]:
    tokens, targets = ragged(1, rows=2, length=LENGTH)[0]
    targets = targets.clamp(min=0)
    found = {
        extra: refused(partial(foreign, extra), (tokens, targets))
        for extra in (
            "a mask of its own", "other keys", "a convolution", "no attention of torch's",
        )
    }  # fmt: skip
    found["odd"] = refused(gpt, (tokens[:, :15], targets[:, :15]))
    found["rows"] = refused(gpt, (tokens, targets[:, 0]))
    found["wide"] = refused(gpt, ({"tokens": tokens, "documents": tokens[:, :3]}, targets))
    window = hf_llama()
    window.config.sliding_window = 8
    try:
        refused(lambda: window, {})
    except ModelError as problem:
        found["window"] = str(problem)
    return found


def test_what_cannot_be_cut_is_refused_in_one_line():
    first, second = run(refusals, 2, init=False)
    assert first == second, "every rank says the same"
    for extra in ("a convolution", "no attention of torch's"):
        start, by = first.pop(extra).split(" (by ")
        assert start == (
            "layout.context: Foreign gives other results for 2 chunks of a sequence than for "
            "the whole"
        )
        assert by.endswith(
            "). Use context=1. Only torch's fused attention may look across tokens, and positions "
            "must be an argument called positions or position_ids."
        )
    assert first == {
        "a mask of its own": "layout.context: the module made an attention mask from its chunk "
        "of the sequence alone. Leave attention_mask out where rows are full, or use context=1.",
        "other keys": "layout.context: 8 queries look at 1 keys, not at their own. Use context=1.",
        "odd": "layout.context: 2 ways cannot slice 15 tokens evenly. Use sequences of 14.",
        "rows": "batch: has no target for each position of a sequence. Use context=1.",
        "wide": "batch: (2, 3) is not a row of 16 positions like the targets. "
        "Use context=1, or leave that tensor out.",
        "window": "LlamaForCausalLM: sees 8 tokens back, and a chunk does not know where its "
        "window begins. Use context=1.",
    }


class LooksBack(nn.Conv1d):
    def forward(self, hidden: Tensor) -> Tensor:
        before = F.pad(hidden.mT, (self.kernel_size[0] - 1, 0))
        return hidden + super().forward(before).mT


class Smoothed(nn.Module):
    """A stack whose second block looks back by a convolution, which no chunk gathers for."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.layers = nn.ModuleList(LooksBack(32, 32, width) for width in (1, 3))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def refused_in_stages() -> str:
    torch.manual_seed(0)
    batch = words(1)[0]
    return refused(Smoothed, batch, plan="fp32 context=2 pipeline=2", sample=batch)


@pytest.mark.soak
def test_every_stage_refuses_what_cannot_be_cut():
    first, *others = run(refused_in_stages, 4, init=False)
    assert first.startswith("layout.context: Smoothed gives other results for 2 chunks")
    assert others == [first] * 3


def test_a_loss_over_whole_sequences_is_refused():
    outputs = SimpleNamespace(logits=torch.zeros(1, 4, 8), aux_loss=torch.zeros(()))
    with pytest.raises(ModelError, match="adds a loss over whole sequences"):
        shifted_cross_entropy(outputs, torch.zeros(1, 4, dtype=torch.long))


def drawn() -> list[bool]:
    """Which numbers the first dropout of a step leaves out."""
    (batch,) = ragged(1, rows=2)
    batch[1][:] = 1
    model, zeros = gpt(dropout=0.5), []
    taken = climb(model, loss="cross_entropy", optimizer="sgd lr=0.0", plan="fp32 context=2")
    hook = lambda part, args, out: zeros.append(out == 0) if part.training else None  # noqa: E731
    model.dropout.register_forward_hook(hook)
    taken.step(batch)
    return zeros[0].flatten().tolist()


def test_every_stretch_draws_its_own_dropout():
    first, second = run(drawn, 2, init=False)
    assert 0.3 < sum(first) / len(first) < 0.7
    assert sum(a == b for a, b in zip(first, second)) < 0.7 * len(first)


def sample_alone() -> bool:
    """One rank calls the module by itself, between steps, on a whole sequence."""
    (batch,) = ragged(1, rows=2)
    taken = climb(gpt(), loss="cross_entropy", optimizer="sgd lr=0.0", plan="fp32 context=2")
    taken.step(batch)
    if not taken.world.is_rank_zero:
        return True
    return torch.equal(taken.module(batch[0]), gpt()(batch[0]))


def test_one_rank_may_call_the_module_alone():
    assert all(run(sample_alone, 2, init=False))
