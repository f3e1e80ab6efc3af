"""What crosses the border between two stages: all that is needed after it, and nothing else."""

import pytest
import torch

from stepladder.errors import ModelError
from stepladder.model import find_anatomy, meta_copy
from stepladder.plan.stage_split import split_blocks
from stepladder.rungs.pipeline.crossings import EVERYWHERE, find_crossings
from stepladder.rungs.pipeline.stage_parts import find_parts, is_shareable

from .chains import ALL, Residual, made


def crossings(module, inputs, num_stages=2):
    """The stage of each part, and the tensors that cross each border by their last port."""
    drawn = meta_copy(module)
    record, blocks, _ = find_parts(drawn, find_anatomy(module), num_stages, inputs)
    chunks = split_blocks(len(blocks), num_stages)
    homes, found = find_crossings(
        record, blocks, chunks, lambda part: is_shareable(drawn, blocks, part)
    )
    return homes, [[f"{c.ports[-1].part}:{c.ports[-1].leaf}" for c in border] for border in found]


def of(name, num_stages=2):
    make, batches, _ = ALL[name]
    batch = batches(1)[0]
    return crossings(make(), batch if isinstance(batch, dict) else batch[0], num_stages)


@pytest.mark.parametrize(
    ("name", "borders"),
    [
        ("gpt", [["blocks.2:0"]]),
        ("hf_llama", [["model.layers.2:0"]]),
        ("residual", [["layers.2:0"]]),
        ("post_norm", [["layers.2:0"]]),
        ("pairs", [["layers.2.0:0"]]),
        ("two_streams", [["layers.2:1", "layers.2:0"]]),
        ("unet", [["layers.1:0", "layers.2:0"]]),
        ("choosing", [["layers.0:1", "layers.2:0"]]),
        ("encoder", [["encoder.layers.2:0"]]),
        ("plain", [["third:0"]]),
    ],
)
def test_what_is_read_after_the_border_crosses_it(name, borders):
    assert of(name)[1] == borders


def test_what_is_read_two_stages_later_crosses_both_borders():
    assert of("translator", 4)[1] == [
        [
            "transformer.decoder.layers.0.multihead_attn:2",
            "transformer.decoder.layers.1.self_attn:2",
        ],
        [
            "transformer.decoder.layers.1.multihead_attn:2",
            "transformer.decoder.layers.2.self_attn:2",
        ],
        [
            "transformer.decoder.layers.2.multihead_attn:2",
            "transformer.decoder.layers.3.self_attn:2",
        ],
    ]


def test_parts_between_the_blocks_go_with_the_block_before_them():
    homes, _ = of("post_norm")
    assert homes == {
        "enter": 0, "norms.0": 0, "norms.1": 0, "norms.2": 1, "norms.3": 1, "out": 1,
    }  # fmt: skip


def test_a_part_that_several_stages_use_is_on_all_of_them():
    homes, borders = of("returning")
    assert homes == {"enter": 0, "norm": EVERYWHERE, "out": 1}
    assert borders == [["layers.0:0", "layers.2:0"]]
    assert of("answering")[0] == {"table": EVERYWHERE}


def test_what_depends_on_parameters_alone_is_computed_by_every_stage_and_not_sent():
    homes, borders = of("reminding")
    assert homes == {"enter": 0, "table": EVERYWHERE, "norm": EVERYWHERE, "out": 1}
    assert borders == [["layers.2:0"]]


def test_where_that_takes_a_block_it_is_sent():
    assert of("first_ones_bias")[1] == [["layers.2:1", "layers.2:0"]]


class Hidden(Residual):
    """Reads after all blocks what was made between two of them and given to none."""

    def through(self, x):
        kept = self.layers[0](x).sin()
        for layer in self.layers[1:]:
            x = x + layer(x)
        return x + kept


def test_what_no_part_takes_or_returns_is_refused():
    with pytest.raises(ModelError) as raised:
        crossings(made(Hidden), torch.zeros(2, 64))
    assert str(raised.value) == (
        "layout.pipeline: what follows the border before block 'layers.2' of Hidden reads a tensor "
        "of earlier parts that goes into no part and comes out of none. Let a block take or return "
        "it, or use pipeline=1, and shard or tensor instead."
    )


class Unread(Residual):
    """Computes what nobody reads."""

    def through(self, x):
        first = x.sin()
        for layer in self.layers:
            x = x + layer(x)
            first * 2
        return x


def test_what_is_read_for_nothing_does_not_cross():
    assert crossings(made(Unread), torch.zeros(2, 64))[1] == [["layers.2:0"]]


class Detached(Residual):
    """No gradient shows that the end reads what entered."""

    def through(self, x):
        entered = x
        for layer in self.layers:
            x = x + layer(x)
        return x + entered.detach()


def test_what_no_gradient_shows_crosses_as_well():
    assert crossings(made(Detached), torch.zeros(2, 64))[1] == [["layers.0:0", "layers.2:0"]]


class Copied(Residual):
    """A view of the stream and the stream, of which one is written to."""

    def through(self, x):
        view = x.view(-1, 16)
        for layer in self.layers:
            x += layer(view * 1.0)
        return x


def test_two_views_of_a_tensor_that_is_written_to_later_are_refused():
    with pytest.raises(ModelError, match="goes into no part and comes out of none"):
        crossings(made(Copied), torch.zeros(2, 64))
