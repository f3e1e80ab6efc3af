"""What is said of a run that goes on."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepladder.checkpoint import TensorSource, write_checkpoint
from stepladder.errors import RecordError
from stepladder.train import climb
from tests.train.toys import net, pairs


def start(rate, optimizer="sgd lr=0.1", seed=0, module=None):
    return climb(
        module or net(),
        loss="cross_entropy",
        optimizer=optimizer,
        plan="fp32",
        rate=rate,
        seed=seed,
    )


def test_a_run_that_goes_on_at_another_rate_says_so(tmp_path):
    first = start("cosine warmup=2 steps=10")
    first.step(pairs(1)[0])
    first.save(tmp_path)

    same = start("cosine warmup=2 steps=10")
    same.load(tmp_path)
    assert same.events == []

    longer = start("cosine warmup=2 steps=20", "sgd lr=0.2")
    longer.load(tmp_path)
    rate, optimizer = longer.events
    assert rate.startswith("the rate was 'cosine warmup=2 steps=10") and "steps=20" in rate
    assert optimizer.startswith("the optimizer was 'sgd lr=0.1") and "lr=0.2" in optimizer


def test_a_run_that_goes_on_keeps_its_seed_and_says_so(tmp_path):
    first = start("constant", seed=3)
    first.save(tmp_path)
    other = start("constant", seed=5)
    other.load(tmp_path)
    assert other.seed == 3
    assert other.events == ["step-000000 was saved with seed 3, not 5: it stays"]


def test_a_model_that_no_run_wrote_leaves_the_seed_alone(tmp_path):
    tensors = [TensorSource.of(name, p.detach()) for name, p in net().named_parameters()]
    state = {"step": 0, "position": 0, "seed": 0, "loss_scale": {}}
    write_checkpoint(tensors, tmp_path, state, 2**30)
    run = start("constant", seed=5)
    run.load(tmp_path)
    assert run.seed == 5 and run.events == []


class Attention(nn.Module):
    """Heads that no shape tells, an activation by name, and a counter."""

    def __init__(self, heads=2, activation=functional.relu, scale=0.5, dropout=0.0) -> None:
        super().__init__()
        self.heads, self.activation, self.scale = heads, activation, scale
        self.calls = torch.randint(0, 1000, ()).item()  # not a setting: forward changes it
        self.mix = nn.Linear(16, 16)
        self.drop = nn.Dropout(dropout)
        self.last = nn.Linear(16, 5)

    def forward(self, x):
        self.calls += 1
        parts = self.mix(x).unflatten(1, (self.heads, -1)).softmax(-1).flatten(1)
        return self.last(self.drop(self.activation(parts)) * self.scale)


def attend(plan="fp32", **settings):
    return climb(Attention(**settings), loss="cross_entropy", optimizer="sgd lr=0.1", plan=plan)


def test_another_model_of_the_same_shapes_is_refused(tmp_path):
    attend().save(tmp_path)
    for settings, said in (
        ({"heads": 4}, "'heads' is 2 there and 4 here. Build the same model"),
        ({"activation": functional.gelu}, "'activation' is relu there and gelu here"),
    ):
        other = attend(**settings)
        before = other.module.mix.weight.clone()
        with pytest.raises(RecordError, match=f"is of another model: {said}"):
            other.load(tmp_path)
        assert torch.equal(other.module.mix.weight, before)
        assert other.load(tmp_path, strict=False) and len(other.events) == 1


def test_another_activation_module_is_another_model(tmp_path):
    def chain(between):
        return start("constant", module=nn.Sequential(nn.Linear(16, 8), between, nn.Linear(8, 5)))

    chain(nn.ReLU()).save(tmp_path)
    with pytest.raises(RecordError, match="'1' is a ReLU there and a GELU here"):
        chain(nn.GELU()).resume(tmp_path)
    chain(nn.ReLU(inplace=True)).resume(tmp_path)


def test_settings_that_are_tuned_are_reported(tmp_path):
    attend().save(tmp_path)
    same, tuned = attend(), attend(scale=0.25, dropout=0.1)
    same.load(tmp_path)
    assert same.events == []
    tuned.load(tmp_path)
    (said,) = tuned.events
    assert said == (
        "settings differ from step-000000: 'scale' is 0.5 there and 0.25 here and 1 more"
    )


def test_another_batch_size_or_precision_is_reported(tmp_path):
    first = attend()
    first.step(pairs(1)[0]).read()
    first.save(tmp_path)
    other = attend(plan="fp16")
    other.load(tmp_path)
    assert other.events == ["the precision was 'fp32' when step-000001 was saved and is 'fp16' now"]
    other.step(pairs(1, rows=4)[0])
    assert other.events[1:] == ["a batch had 8 rows when step-000001 was saved and has 4 now"]


def test_batches_made_before_the_checkpoint_was_loaded_go_on_from_there(tmp_path):
    source = [(x, y) for x, y in zip(*pairs(1, rows=32)[0])]
    first, second = start("constant"), start("constant")
    straight = [first.step(b).loss for b, _ in zip(first.batches(source, 8), range(2))]
    first.save(tmp_path)
    straight = [first.step(b).loss for b, _ in zip(first.batches(source, 8), range(2))]
    feed = second.batches(source, 8)
    next(feed)
    second.resume(tmp_path)
    assert [second.step(batch).loss for batch, _ in zip(feed, range(2))] == straight
    feed.close()
    assert list(feed) == []
