"""Where a bad number came from is named, rank, samples and layer, and alike on all ranks."""

import pytest
import torch
from torch import nn

from stepladder.errors import NonFinite
from stepladder.train import climb
from stepladder.train.health.locate_nonfinite import named
from tests.ranks import run
from tests.train.toys import llama, net, pairs, ragged, same_bits, share_of


class Rooted(nn.Module):
    """A finite loss with a gradient that is not: the root of zero is as steep as can be."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(16, 4, bias=False), nn.Linear(4, 5)

    def forward(self, x):
        return self.after(torch.sqrt(self.before(x).square()))


def test_a_finite_loss_with_a_bad_gradient_names_sample_and_layer():
    torch.manual_seed(0)
    taken = climb(Rooted(), loss="cross_entropy", optimizer="sgd lr=0.1", plan="fp32 micro=4")
    inputs, targets = pairs(1)[0]
    inputs[5] = 0.0
    with pytest.raises(NonFinite) as raised:
        taken.step((inputs, targets)).read()
    message = str(raised.value)
    assert "rank 0 in sample 5, gradient of 'before.weight' not finite" in message
    assert message.startswith("step 0: loss 1.")


class Infinite(nn.Module):
    """A loss that is infinite while its gradient is not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 5)

    def forward(self, x):
        return self.layer(x)


def far(outputs, targets):
    return outputs.sum() * 1e-3 + torch.tensor(float("inf"))


def test_an_infinite_loss_with_a_finite_gradient_is_left_out_too():
    module, before = Infinite(), Infinite()
    before.load_state_dict(module.state_dict())
    taken = climb(module, loss=far, optimizer="sgd lr=0.1", plan="fp32", nonfinite="skip")
    assert taken.step(pairs(1)[0]).skipped
    assert same_bits(module, before)
    assert taken.events[0].startswith(
        "step 0: loss inf: rank 0 in samples 0 to 7, first in the loss"
    )


def test_looking_for_the_cause_leaves_the_module_as_it_was():
    module = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 5))
    module[1].eval()  # as a user froze it
    taken = climb(module, loss="cross_entropy", plan="fp32", nonfinite="skip")
    inputs, targets = pairs(1)[0]
    inputs[3, 2] = float("inf")
    statistics = module[1].running_mean.clone()
    taken.step((inputs, targets)).read()
    assert "sample 3, first in module '0'" in taken.events[0]
    assert torch.equal(module[1].running_mean, statistics)
    assert not any(part._forward_hooks for part in module.modules())


def poisoned_on(rank: int, world) -> tuple:
    inputs, targets = share_of(pairs(1, rows=12)[0], world.data_index, world.layout.data_ranks, 2)
    if world.place.rank == rank:
        inputs[3] = float("nan")
    return inputs, targets


def fail_on(rank: int, plan: str, policy: str):
    taken = climb(net(), loss="cross_entropy", optimizer="sgd lr=0.1", plan=plan, device="cpu",
                  nonfinite=policy)  # fmt: skip
    try:
        skipped = taken.step(poisoned_on(rank, taken.world), rows="rank").skipped
    except NonFinite as stopped:
        return str(stopped)
    return skipped, taken.lr, taken.events


@pytest.mark.parametrize(
    ("plan", "where"),
    [
        # Rank 1 has rows 2 3, 6 7, 10 11 of twelve; its fourth is 7.
        ("fp32 ddp micro=2", "rank 1 in sample 7, first in module 'first'"),
        ("fp32 zero1 micro=2", "rank 1 in sample 7, first in module 'first'"),
        ("fp32 zero3 micro=2", "rank 1 in samples 6 to 7, gradient of 'first.weight' not finite"),
    ],
)
def test_the_rank_whose_samples_were_bad_is_named_on_every_rank(plan, where):
    one, other = run(fail_on, 2, 1, plan, "stop", init=False)
    assert one == other
    assert one.startswith(f"step 0: loss nan: {where}")


def read_on_one_rank(after: str, folder: str) -> str:
    """Rank 0 reads the bad step's report; rank 1 goes on without."""
    taken = climb(net(), loss="cross_entropy", plan="fp32 ddp", device="cpu", timeout_seconds=100)
    report = taken.step(poisoned_on(1, taken.world), rows="rank")
    try:
        if taken.world.is_rank_zero:
            report.read()
        elif after == "step":
            taken.step(poisoned_on(0, taken.world), rows="rank")
        elif after == "evaluate":
            taken.evaluate([poisoned_on(0, taken.world)], rows="rank")
        else:
            taken.save(folder)
    except NonFinite as stopped:
        return str(stopped)
    return "went on"


@pytest.mark.parametrize("after", ["step", "evaluate", "save"])
def test_ranks_stop_together_where_one_does_not_read_its_reports(after, tmp_path):
    one, other = run(read_on_one_rank, 2, after, str(tmp_path), init=False)
    assert one == other and one.startswith("step 0: loss nan: rank 1 in sample")


def test_all_ranks_back_off_together_and_one_speaks():
    one, other = run(fail_on, 2, 1, "fp32 ddp micro=2", "backoff", init=False)
    assert one[:2] == other[:2] == (True, 0.05)
    assert len(one[2]) == 1 and "rank 1 in sample 7" in one[2][0] and other[2] == []


def overflow_on(rank: int, plan: str) -> str:
    """A rank's copy of one matrix is so large that what it computes is infinite."""
    taken = climb(llama(), loss="cross_entropy", optimizer="sgd lr=0.1", plan=plan, device="cpu")
    world = taken.world
    if world.place.rank == rank:
        with torch.no_grad():
            taken.climbed.shards[-1].owned.fill_(float("inf"))
    batch = share_of(ragged(1)[0], world.data_index, world.layout.data_ranks, 2)
    try:
        taken.step(batch, rows="rank").read()
    except NonFinite as stopped:
        return str(stopped)
    return "went on"


@pytest.mark.parametrize("plan", ["fp32 tensor=2 micro=2", "fp32 pipeline=2 micro=2"])
def test_cut_models_stop_alike_with_a_layer_named(plan):
    one, other = run(overflow_on, 2, 1, plan, init=False)
    assert one == other and one.startswith("step 0: loss nan: rank ")
    assert "gradient of '" in one


def test_samples_are_listed_as_people_would():
    assert named([4]) == "sample 4"
    assert named([4, 5, 6]) == "samples 4 to 6"
    assert named([1, 3]) == "samples 1, 3"
    assert named([0, *range(2, 20)]) == "samples 0, 2, 3, 4, 5, 6, 7, 8 and 11 more"
