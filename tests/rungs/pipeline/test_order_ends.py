"""Parts outside the blocks go to the stage where they run, and to all where all read them."""

import pytest
from torch import nn

from stepladder.errors import ModelError
from stepladder.model import find_anatomy, meta_copy
from stepladder.rungs.pipeline.find_stages import measure_blocks
from stepladder.rungs.pipeline.order_ends import find_chain

from .chains import CHAINS, SHARING


def ends(make, batches):
    """The parts before the blocks and after them, as they run."""
    module, inputs = make(), batches(1)[0][0]
    drawn = meta_copy(module)
    ordered, _ = measure_blocks(drawn, find_anatomy(module), inputs)
    anatomy, _ = find_chain(drawn, ordered, inputs)
    return anatomy.entry, anatomy.exit


def test_parts_go_where_they_run_whatever_the_order_of_their_registration():
    make, batches, _ = CHAINS["shuffled"]
    assert ends(make, batches) == (("enter",), ("norm", "out"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("returning", ((), ("out",))), ("reminding", (("enter",), ("out",))), ("answering", ((), ()))],
)
def test_no_more_parts_are_on_every_stage_than_it_takes(name, expected):
    make, batches, _ = SHARING[name]
    assert ends(make, batches) == expected


def test_dropout_is_not_drawn_anew_on_every_stage():
    make, batches, _ = SHARING["returning"]

    def dropping():
        module = make()
        module.enter = nn.Sequential(module.enter, nn.Dropout(0.1))
        return module

    with pytest.raises(ModelError, match="reads more than the last one's result"):
        ends(dropping, batches)
