"""GPT-2 from a shape, and what it shares with Llama."""

import pytest
import torch

from stepladder.errors import ModelError
from stepladder.model import build, set_attention
from stepladder.model.builtin.gpt import GPT
from stepladder.model.builtin.llama import Llama
from stepladder.workload.presets import PRESETS

torch.set_num_threads(1)
BOTH = pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny"])


def tokens_of(*shape):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", sorted(name for name, s in PRESETS.items() if not s.experts))
def test_a_model_has_the_parameters_its_shape_says(name):
    shape = PRESETS[name]
    with torch.device("meta"):
        model = {"gpt": GPT, "llama": Llama}[shape.family](shape)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters


@BOTH
def test_logits_have_a_row_for_every_token(name):
    assert build(name)(tokens_of(2, 12)).shape == (2, 12, 256)


@BOTH
def test_a_token_does_not_see_the_future(name):
    model, tokens = build(name), tokens_of(1, 12)
    changed = tokens.clone()
    changed[0, 8:] += 1
    before, after = model(tokens), model(changed % 256)
    torch.testing.assert_close(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:])


@BOTH
@pytest.mark.parametrize("attention", ["auto", "plain"])
def test_packed_documents_answer_as_if_alone(name, attention):
    model, tokens = build(name), tokens_of(1, 12)
    set_attention(model, attention)
    positions = torch.tensor([[*range(5), *range(7)]])
    documents = torch.tensor([[0] * 5 + [1] * 7])
    packed = model(tokens, positions=positions, documents=documents)
    alone = torch.cat([model(tokens[:, :5]), model(tokens[:, 5:])], 1)
    torch.testing.assert_close(packed, alone)
    assert not torch.allclose(model(tokens), alone)


@BOTH
def test_a_part_that_is_missing_is_passed_by(name):
    whole, tokens = build(name), tokens_of(2, 8)
    first, last = build(name), build(name)
    first.blocks[2] = first.blocks[3] = first.norm = first.head = None
    last.embedding = last.blocks[0] = last.blocks[1] = None
    torch.testing.assert_close(last(first(tokens)), whole(tokens), rtol=0, atol=0)
    assert set(first.state_dict()) | set(last.state_dict()) == set(whole.state_dict())


def test_dropout_falls_only_in_training():
    model, tokens = build("gpt-tiny", dropout=0.5), tokens_of(2, 8)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    torch.testing.assert_close(model(tokens), build("gpt-tiny")(tokens))


def test_a_sequence_longer_than_the_positions_is_refused():
    with pytest.raises(ModelError) as caught:
        build("gpt-tiny", device="meta", sequence=8)(torch.zeros(1, 9, dtype=torch.long))
    assert str(caught.value) == (
        "sequence: 9 tokens are longer than the 8 positions this model was built with. "
        "Build it with sequence=9."
    )


def test_the_head_is_the_embedding_where_the_shape_ties_them():
    tied, free = build("gpt-tiny"), build("gpt:layers=1,tied=0")
    assert tied.head.weight is tied.embedding.weight
    assert free.head.weight is not free.embedding.weight
