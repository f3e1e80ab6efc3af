"""A stage runs the module's own forward, with the parts of other stages stood in for."""

from functools import partial

import pytest
import torch
from torch import nn

from stepladder.data import Batch
from stepladder.errors import ModelError
from stepladder.model import find_anatomy, meta_copy
from stepladder.rungs.pipeline.find_stages import Stages, measure_blocks
from stepladder.rungs.pipeline.stage_module import keep_own
from stepladder.rungs.pipeline.trace_chain import trace_chain

from .chains import CHAINS, Shuffled, gpt, made


def ordered(module, inputs):
    """The anatomy with its ends as they run."""
    return measure_blocks(meta_copy(module).eval(), find_anatomy(module), inputs)[0]


def stages_of(module, inputs, *, index, chunks=(range(2), range(2, 4))):
    links = trace_chain(meta_copy(module).eval(), ordered(module, inputs), inputs)
    return Stages(chunks, tuple(range(len(chunks))), index, links)


def run_both(make, inputs):
    """The whole model's outputs, and those of its two halves one after the other."""
    flowing = []
    for index in range(2):
        module = make().eval()
        anatomy = ordered(module, inputs)
        (chunk,) = keep_own(module, anatomy, stages_of(make(), inputs, index=index))
        chunk.part = Batch.of(inputs, position=0, size=1)
        last = index == 1

        def finish(chunk, last=last):
            given = chunk.part.inputs
            named = given if isinstance(given, dict) else {}
            return chunk.view(*([] if named else [given]), **named) if last else chunk.carry(given)

        chunk.run = finish
        with torch.no_grad():
            flowing = [chunk(*flowing)]
    whole = make().eval()
    with torch.no_grad():
        expected = whole(**inputs) if isinstance(inputs, dict) else whole(inputs)
    return getattr(flowing[0], "logits", flowing[0]), getattr(expected, "logits", expected)


@pytest.mark.parametrize("name", CHAINS)
def test_two_halves_compute_what_the_whole_does(name):
    make, batches, _ = CHAINS[name]
    batch = batches(1)[0]
    inputs = {"input_ids": batch["input_ids"]} if isinstance(batch, dict) else batch[0]
    found, expected = run_both(make, inputs)
    assert torch.equal(found, expected)


def test_a_rank_keeps_its_own_parts_under_their_names():
    module = gpt()
    stages = stages_of(gpt(), torch.zeros(1, 16, dtype=torch.long), index=1)
    keep_own(module, find_anatomy(module), stages)
    assert module.embedding is None and module.blocks[0] is None
    kept = {name.split(".")[0] for name, _ in module.named_parameters()}
    assert kept == {"blocks", "norm", "head"}
    assert [name for name, _ in module.anatomy.blocks_of(module)] == ["blocks.2", "blocks.3"]


class Weightless(nn.Module):
    """Answers by the table that it read with, in a way that no gradient shows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(4))

    def forward(self, tokens):
        hidden = self.table(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden @ self.table.weight.detach().T


def test_a_weight_read_where_it_does_not_live_is_named():
    with pytest.raises(ModelError) as raised:
        run_both(Weightless, torch.zeros(2, 3, dtype=torch.long))
    assert str(raised.value) == (
        "layout.pipeline: 'weight' of 'table' is read on a stage that does not hold it. "
        "Read it inside that part's forward, or use pipeline=1."
    )


class Impatient(Weightless):
    """Ends early on some inputs, which no stand-in shows."""

    def forward(self, tokens):
        if tokens.sum() == 0:
            return self.table(tokens)
        return super().forward(tokens)


def test_a_pass_that_ends_before_the_stage_does_is_one_line():
    module, ones = Weightless(), torch.ones(2, 3, dtype=torch.long)
    stages = stages_of(Weightless(), ones, index=0)
    module.__class__ = Impatient
    (chunk,) = keep_own(module, find_anatomy(module), stages)
    with pytest.raises(ModelError) as raised:
        chunk.carry(torch.zeros_like(ones))
    assert str(raised.value) == (
        "layout.pipeline: Impatient ended its forward pass before block 2 of stage 0. "
        "Use pipeline=1."
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
