"""A stage runs the module's own forward, with the parts of other stages stood in for."""

from functools import partial

import pytest
import torch
from torch import nn

from stepladder.data import Batch
from stepladder.errors import ModelError
from stepladder.model import find_anatomy, meta_copy
from stepladder.model.call_module import call
from stepladder.plan.stage_split import split_blocks
from stepladder.rungs.pipeline.crossings import find_crossings
from stepladder.rungs.pipeline.find_stages import Stages, names_of
from stepladder.rungs.pipeline.stage_module import keep_own
from stepladder.rungs.pipeline.stage_parts import find_parts

from .chains import ALL, BETWEEN, PostNorm, Residual, Shuffled, gpt, made


def stages_of(module, inputs, *, index, num_stages=2):
    drawn = meta_copy(module).eval()
    record, blocks, _ = find_parts(drawn, find_anatomy(module), num_stages, inputs)
    chunks = tuple(split_blocks(len(blocks), num_stages))
    homes, crossings = find_crossings(record, blocks, chunks, lambda part: True)
    owners = tuple(range(num_stages))
    names = names_of(module, (*blocks, *homes))
    return Stages(tuple(blocks), chunks, homes, crossings, owners, index, names, record.results)


def halves_of(make, inputs):
    """The model's two stages, each out of a copy of its own, and these copies."""
    chunks, modules = [], []
    for index in range(2):
        module = make().eval()
        (chunk,) = keep_own(module, find_anatomy(module), stages_of(make(), inputs, index=index))
        chunk.part = Batch.of(inputs, position=0, size=1)
        chunk.run = finish if index else carry
        chunks.append(chunk)
        modules.append(module)
    return chunks, modules


def carry(chunk):
    return chunk.carry(chunk.part.inputs)


def finish(chunk):
    return call(chunk.view, chunk.part.inputs)


def run_both(make, inputs):
    """The whole model's outputs, and those of its two halves one after the other."""
    (first, second), _ = halves_of(make, inputs)
    whole = make().eval()
    with torch.no_grad():
        found, expected = second(*first()), call(whole, inputs)
    return getattr(found, "logits", found), getattr(expected, "logits", expected)


def inputs_to(name):
    make, batches, _ = ALL[name]
    batch = batches(1)[0]
    return make, {"input_ids": batch["input_ids"]} if isinstance(batch, dict) else batch[0]


@pytest.mark.parametrize("name", sorted(ALL.keys() - {"encoder"}))
def test_two_halves_compute_what_the_whole_does(name):
    found, expected = run_both(*inputs_to(name))
    assert torch.equal(found, expected)


def test_torchs_encoder_evaluates_the_same_where_rows_are_not_padded():
    make, tokens = inputs_to("encoder")
    tokens = tokens.clamp(min=8)
    tokens[:, 12:] = 0  # at the end alone: torch would evaluate without these
    found, expected = run_both(make, tokens)
    torch.testing.assert_close(found[:, :12], expected[:, :12])


@pytest.mark.parametrize("name", BETWEEN)
def test_gradients_pass_over_the_border(name):
    make, inputs = inputs_to(name)
    (first, second), modules = halves_of(make, inputs)
    sent = first()
    taken = [t.detach().requires_grad_(t.is_floating_point()) for t in sent]
    second(*taken).square().sum().backward()
    pairs = [(s, t.grad) for s, t in zip(sent, taken) if s.requires_grad and t.grad is not None]
    torch.autograd.backward([s for s, _ in pairs], [gradient for _, gradient in pairs])
    whole = make().eval()
    call(whole, inputs).square().sum().backward()
    found = {}
    for part_name, parameter in [one for half in modules for one in half.named_parameters()]:
        if parameter.grad is not None:
            found[part_name] = found.get(part_name, 0) + parameter.grad
    for part_name, parameter in whole.named_parameters():
        if parameter.grad is None:
            assert part_name not in found
        else:
            torch.testing.assert_close(found[part_name], parameter.grad, rtol=1e-4, atol=1e-5)


def test_a_rank_keeps_its_own_parts_under_their_names():
    module = gpt()
    stages = stages_of(gpt(), torch.zeros(1, 16, dtype=torch.long), index=1)
    keep_own(module, find_anatomy(module), stages)
    assert module.embedding is None and module.blocks[0] is None
    kept = {name.split(".")[0] for name, _ in module.named_parameters()}
    assert kept == {"blocks", "norm", "head"}
    assert [name for name, _ in module.anatomy.blocks_of(module)] == ["blocks.2", "blocks.3"]


def test_a_list_beside_the_blocks_is_split_with_them():
    module, rows = made(PostNorm), torch.zeros(1, 64)
    keep_own(module, find_anatomy(module), stages_of(made(PostNorm), rows, index=0))
    kept = {name.rpartition(".")[0] for name, _ in module.named_parameters()}
    assert {name for name in kept if "norms" in name} == {"norms.0", "norms.1"}


class Peeking(nn.Module):
    """In evaluation it answers by the table that it read with; in training by a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(4))
        self.answer = nn.Linear(4, 8)

    def forward(self, tokens):
        hidden = self.table(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden @ self.table.weight.T if self.peeks else self.answer(hidden)

    peeks = False


def test_a_weight_read_where_it_does_not_live_is_named():
    tokens = torch.zeros(2, 3, dtype=torch.long)
    (first, second), _ = halves_of(Peeking, tokens)
    second.view.peeks = True
    with pytest.raises(ModelError) as raised:
        second(*first())
    assert str(raised.value) == (
        "layout.pipeline: 'weight' of 'table' is read on a stage that does not hold it. "
        "Read it inside that part's forward, or use pipeline=1."
    )


class Impatient(Peeking):
    """Ends early on some inputs, which no stand-in shows."""

    def forward(self, tokens):
        if tokens.sum() == 0:
            return self.table(tokens)
        return super().forward(tokens)


def test_a_pass_that_ends_before_the_stage_does_is_one_line():
    module, ones = Peeking(), torch.ones(2, 3, dtype=torch.long)
    stages = stages_of(Peeking(), ones, index=0)
    module.__class__ = Impatient
    (chunk,) = keep_own(module, find_anatomy(module), stages)
    with pytest.raises(ModelError) as raised:
        chunk.carry(torch.zeros_like(ones))
    assert str(raised.value) == (
        "layout.pipeline: Impatient ended its forward pass before block 'blocks.2'. Use pipeline=1."
    )


class Moody(Residual):
    """Leaves the second block out when it is told to."""

    skips = False

    def through(self, x):
        for index, layer in enumerate(self.layers):
            x = x if self.skips and index == 2 else x + layer(x)
        return x


def test_a_pass_that_takes_another_way_than_the_traced_one_is_one_line():
    rows = torch.zeros(2, 64)
    (first, _), _ = halves_of(partial(made, Moody), rows)
    first.view.skips = True
    with pytest.raises(ModelError) as raised:
        first()
    assert str(raised.value).startswith(
        "layout.pipeline: other parts run ('layers.3') before block 'layers.2' than when the model"
    )


class Asking(Shuffled):
    """Looks between its blocks what they are and what layers they have, as Swin does."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.downsample = nn.Linear(16, 16), None

        def is_wide(self):
            return self.linear.weight.shape[0] > 8

        def forward(self, x):
            return torch.tanh(self.linear(x))

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Block() for _ in range(4))

    def forward(self, x):
        hidden = self.enter(x)
        for layer in self.layers:
            assert layer.downsample is None and layer.linear.bias is not None
            assert isinstance(layer, self.Block) and layer.is_wide()
            hidden = layer(hidden)
        return self.out(self.norm(hidden))


def test_a_stage_may_ask_what_another_stages_blocks_are():
    inputs = torch.randn(2, 64)
    found, expected = run_both(partial(made, Asking), inputs)
    assert torch.equal(found, expected)
