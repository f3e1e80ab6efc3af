"""The EMA of a run's weights against torch's AveragedModel in a plain loop over whole batches."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from stepladder.checkpoint import CheckpointReader, read_manifest
from stepladder.errors import PlanError, TrainingError
from stepladder.rungs import local
from stepladder.train import EMA, climb
from stepladder.train.checkpointing.async_copy import Copying
from tests.ranks import run as run_on_ranks
from tests.soak import soak_after
from tests.train.toys import llama, net, pairs, ragged

DECAY = 0.7
OPTIMIZERS = {
    "sgd lr=0.3": lambda given: torch.optim.SGD(given, 0.3),
    "adamw lr=1e-2 betas=0.9,0.99 eps=1e-3": lambda given: torch.optim.AdamW(
        given, 1e-2, betas=(0.9, 0.99), eps=1e-3, weight_decay=0
    ),
}
TOKENS = ragged(3)


class Normed(nn.Module):
    """BatchNorm, whose statistics are buffers, and a mask that is not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 12), nn.BatchNorm1d(12), nn.Linear(12, 5)
        self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x)))) + self.mask[0]


def random_llama():
    """Weights that are not what a module is initialised with."""
    module = llama()
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=draw)
    return module


def normed():
    torch.manual_seed(3)
    return Normed()


def start(module=None, plan="fp32", optimizer="sgd lr=0.3", **how):
    module = normed() if module is None else module
    return climb(module, loss="cross_entropy", optimizer=optimizer, plan=plan, device="cpu", **how)


def learn(run, ema, batches):
    for batch in batches:
        run.step(batch, rows="global")
        ema.update()


def plain(module, batches, optimizer):
    """A plain loop; the averaged copy of the module, which starts as the module is."""
    average = get_ema_multi_avg_fn(DECAY)
    averaged = AveragedModel(module, multi_avg_fn=average, use_buffers=True)
    averaged.update_parameters(module)  # the first one copies
    stepped = OPTIMIZERS[optimizer](module.parameters())
    for inputs, targets in batches:
        stepped.zero_grad()
        functional.cross_entropy(module(inputs).flatten(0, -2), targets.flatten()).backward()
        stepped.step()
        averaged.update_parameters(module)
    return averaged.module


def saved(path: Path, kind: str = "model") -> dict[str, torch.Tensor]:
    """The whole tensors of a kind in a checkpoint, by name."""
    manifest, prefix = read_manifest(path), f"{kind}/"
    with CheckpointReader(path, manifest) as reader:
        found = [name for name in manifest.tensors if name.startswith(prefix)]
        return {name.removeprefix(prefix): reader.read(name) for name in found}


def assert_same(found: dict[str, torch.Tensor], module: nn.Module, **how) -> None:
    expected = {n: v for n, v in module.state_dict().items() if n in found}
    assert len(expected) >= len(list(module.parameters()))
    for name, value in expected.items():
        if value.is_floating_point() and name != "mask":  # of Inf torch's average is NaN
            torch.testing.assert_close(found[name], value, **how)


def bits(run) -> list[torch.Tensor]:
    """All that the run computes with and updates, on this rank."""
    held = [
        tensor for shard in run.climbed.shards for tensor in (shard.owned, local(shard.parameter))
    ]
    return [tensor.detach().clone() for tensor in (*held, *run.module.buffers())]


def average(plan: str, folder: str) -> dict[str, float]:
    """Train with each optimizer, evaluate and save with the averages; losses by optimizer."""
    losses = {}
    for optimizer in OPTIMIZERS:
        run = climb(
            random_llama(), loss="cross_entropy", optimizer=optimizer, plan=plan, device="cpu",
            sample=TOKENS[0],
        )  # fmt: skip
        ema = EMA(run, decay=DECAY)
        for batch in TOKENS:
            run.step(batch, rows="global")
            ema.update()
        before, loss = bits(run), run.evaluate(TOKENS[:1], rows="global")
        with ema.applied():
            losses[optimizer] = run.evaluate(TOKENS[:1], rows="global")
            run.save(Path(folder) / optimizer.split()[0], wait=False)
        assert all(torch.equal(a, b) for a, b in zip(before, bits(run), strict=True))
        assert run.evaluate(TOKENS[:1], rows="global") == loss  # nothing gathered stays behind
        run.finish_saving()
    run.world.close()
    return losses


PLANS = [
    ("fp32 zero3 micro=3", 2),
    ("fp32 pipeline=2 micro=6", 2),
    ("fp32 zero1 micro=3", 2),
    ("fp32 tensor=2", 2),
    ("fp32 micro=4", 1),
    ("fp32 ddp micro=3", 2),
    ("fp32 context=2", 2),
]


@pytest.mark.parametrize(("plan", "ranks"), soak_after(PLANS, gate=2), ids=str)
def test_the_average_is_that_of_a_plain_loop(tmp_path, plan, ranks):
    losses = run_on_ranks(average, ranks, plan, str(tmp_path), init=False)
    for optimizer in OPTIMIZERS:
        expected = plain(random_llama(), TOKENS, optimizer)
        found = tmp_path / optimizer.split()[0] / "step-000003"
        assert_same(saved(found), expected, rtol=1e-4, atol=1e-5)
        assert_same(saved(found, "registered/ema/model"), expected, rtol=1e-4, atol=1e-5)
        logits = expected(TOKENS[0][0]).flatten(0, -2)
        loss = functional.cross_entropy(logits, TOKENS[0][1].flatten()).item()
        assert [one[optimizer] for one in losses] == pytest.approx([loss] * ranks, rel=1e-5)


def predict() -> list[torch.Tensor]:
    """What the module answers before, inside and after applied()."""
    run = start(net(), "fp32 zero2")  # keeps what a forward pass gathered
    ema = EMA(run, decay=0.5)
    learn(run, ema, pairs(2))
    inputs = pairs(1)[0][0]
    answers = [run.module(inputs).detach()]  # with a graph, and no backward pass to free them
    with ema.applied():
        answers.append(run.module(inputs).detach())
    answers.append(run.module(inputs).detach())
    run.world.close()
    return answers


def test_a_prediction_leaves_no_gathered_weights_behind():
    for before, inside, after in run_on_ranks(predict, 2, init=False):
        assert torch.equal(before, after)
        assert not torch.equal(before, inside)


def test_buffers_are_averaged_as_weights_are_and_integers_stay():
    run = start()
    ema = EMA(run, decay=DECAY)
    learn(run, ema, pairs(3))
    expected, before = plain(normed(), pairs(3), "sgd lr=0.3"), bits(run)
    with ema.applied():
        assert_same(run.module.state_dict(), expected)
        assert run.module.norm.num_batches_tracked == 3
        assert run.module.mask[1] == float("-inf")
    assert all(torch.equal(a, b) for a, b in zip(before, bits(run), strict=True))


def test_buffers_can_be_left_as_the_run_has_them():
    run = start()
    ema = EMA(run, decay=DECAY, buffers=False)
    learn(run, ema, pairs(3))
    now = run.module.norm.running_mean.clone()
    with ema.applied():
        assert torch.equal(run.module.norm.running_mean, now)
        assert torch.equal(run.module.first.weight, ema.averages["first.weight"])


def test_a_decay_that_grows_with_the_updates_weighs_all_of_them_equally():
    run = start()
    ema = EMA(run, decay=lambda updates: updates / (updates + 1))
    learn(run, ema, pairs(4))
    module, weights = normed(), []
    optimizer = torch.optim.SGD(module.parameters(), 0.3)
    for inputs, targets in pairs(4):
        optimizer.zero_grad()
        functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()
        weights.append(module.first.weight.detach().clone())
    torch.testing.assert_close(ema.averages["first.weight"], torch.stack(weights).mean(0))


def test_a_warm_up_keeps_less_at_first():
    run = start()
    ema = EMA(run, decay=0.22, warmup=True)
    decays = []
    for batch in pairs(4):
        decays.append(ema.decay_now())
        learn(run, ema, [batch])
    assert decays == [1 / 10, 2 / 11, 0.22, 0.22]


def test_weights_in_16_bits_are_averaged_in_float32_from_their_masters():
    run = start(llama(), "bf16-master", "adamw lr=1e-2")
    ema = EMA(run, decay=0.99)
    masters = {n: run.optimizer.state[p]["master"] for n, p in run.module.named_parameters()}
    means = {name: master.double() for name, master in masters.items()}
    for batch in TOKENS:
        learn(run, ema, [batch])
        means = {name: 0.99 * mean + 0.01 * masters[name] for name, mean in means.items()}
    before = bits(run)
    with ema.applied():
        for name, parameter in run.module.named_parameters():
            torch.testing.assert_close(ema.averages[name], means[name].float())
            assert torch.equal(parameter, ema.averages[name].bfloat16())
    assert all(torch.equal(a, b) for a, b in zip(before, bits(run), strict=True))


@pytest.mark.parametrize("plan", ["bf16-pure", "fp32 offload=optimizer"])
def test_weights_without_masters_and_on_the_host_are_averaged(plan):
    run = start(llama(), plan, "adamw lr=1e-2")
    ema = EMA(run, decay=0.99)
    means = {n: p.detach().double() for n, p in run.module.named_parameters()}
    for batch in TOKENS:
        learn(run, ema, [batch])
        named = run.module.named_parameters()
        means = {n: 0.99 * means[n] + 0.01 * p.detach().double() for n, p in named}
    before = bits(run)
    with ema.applied():
        for name, parameter in run.module.named_parameters():
            torch.testing.assert_close(ema.averages[name], means[name].float())
            assert torch.equal(parameter, ema.averages[name].to(parameter.dtype))
    assert all(torch.equal(a, b) for a, b in zip(before, bits(run), strict=True))


def test_statistics_of_a_bad_batch_do_not_reach_the_average():
    run = start(nonfinite="skip")
    ema = EMA(run, decay=DECAY)
    bad = pairs(1)[0]
    bad[0][0, 0] = float("nan")
    learn(run, ema, pairs(2))
    run.look_back()  # from here on these are the statistics that were last sound
    sound, mean = run.module.norm.running_mean.clone(), ema.buffers["norm.running_mean"].clone()
    for _ in range(2):
        learn(run, ema, [bad])
        assert run.module.norm.running_mean.isnan().all()
        assert torch.equal(ema.buffers["norm.running_mean"], mean)
        with ema.applied():
            run.evaluate(pairs(1))
            assert torch.equal(run.module.norm.running_mean, mean)
        assert torch.equal(run.module.norm.running_mean, sound)


class Pending(Copying):
    """A copy that is taken when somebody waits for it."""

    def hold(self) -> None:
        self.finish()


def test_what_a_save_still_copies_is_not_changed_before():
    run = start()
    ema = EMA(run, decay=0.5)
    run.step(pairs(1)[0])
    for tensor, change in (
        (ema.averages["first.weight"], ema.update),
        (run.module.first.weight, ema.applied().__enter__),
    ):
        there, before = torch.empty_like(tensor), tensor.detach().clone()
        run.copying = Pending(torch.device("cpu"), [(there, tensor.detach())])
        change()
        assert not torch.equal(tensor, before)
        assert torch.equal(there, before)


# A run that goes on.

LOCAL = "fp32 ddp batchnorm=local"  # ranks have statistics of their own


def train_on(plan: str, first: int, last: int, folder: str, build=normed) -> list[str]:
    """Go on from the folder's newest checkpoint, take these steps, save in the background."""
    run = climb(build(), loss="cross_entropy", optimizer="adamw lr=1e-2", plan=plan, device="cpu")
    ema = EMA(run, decay=DECAY, warmup=True)
    run.resume(folder)
    learn(run, ema, pairs(4, rows=12)[first:last])
    run.save(folder, wait=False)
    run.finish_saving()
    run.world.close()
    return run.events


def own_statistics(path: Path) -> dict[str, list[torch.Tensor]]:
    """What both ranks stored of averaged buffers of their own, by name."""
    prefix, found = "own/registered/ema/model/", {}
    with CheckpointReader(path, read_manifest(path)) as reader:
        for rank in range(2):
            file = reader.file(f"rank-{rank:05d}.safetensors")
            for name in file.names():
                if name.startswith(prefix):
                    found.setdefault(name.removeprefix(prefix), []).append(
                        file.tensor(name).clone()
                    )
    return found


@pytest.mark.parametrize("plan", [LOCAL, "fp32 zero3"])
def test_a_resumed_average_is_the_uninterrupted_one_to_the_bit(tmp_path, plan):
    build = normed if plan == LOCAL else net
    for folder, legs in (("whole", [(0, 4)]), ("resumed", [(0, 2), (2, 4)])):
        for first, last in legs:
            events = run_on_ranks(
                train_on, 2, plan, first, last, str(tmp_path / folder), build, init=False
            )
            assert events == [[], []]
    whole, resumed = (tmp_path / name / "step-000004" for name in ("whole", "resumed"))
    for file in ("registered-00000", "registered-00001", "model-00000"):
        one, other = (path / f"{file}.safetensors" for path in (whole, resumed))
        assert one.read_bytes() == other.read_bytes()
    averages, statistics = saved(whole, "registered/ema/model"), own_statistics(whole)
    assert len(averages) == (9 if plan == LOCAL else 4)
    assert len(statistics) == (2 if plan == LOCAL else 0)
    for name, ranks in statistics.items():
        torch.testing.assert_close(averages[name], torch.stack(ranks).mean(0))
        assert all(torch.equal(a, b) for a, b in zip(ranks, own_statistics(resumed)[name]))


@pytest.mark.parametrize(
    ("plan", "ranks", "then", "others"),
    soak_after(
        [("fp32 zero3", 2, "fp32", 1), (LOCAL, 2, "fp32", 1), ("fp32", 1, "fp32 zero1", 2)], gate=2
    ),
)
def test_another_layout_goes_on_with_the_same_average(tmp_path, plan, ranks, then, others):
    run_on_ranks(train_on, ranks, plan, 0, 2, str(tmp_path), init=False)
    first = {kind: saved(tmp_path / "step-000002", kind) for kind in ("registered", "model")}
    run_on_ranks(train_on, others, then, 2, 2, str(tmp_path), init=False)
    second = {kind: saved(tmp_path / "step-000002", kind) for kind in ("registered", "model")}
    assert len(first["registered"]) == 10  # six weights, three buffers and the number of updates
    for kind, tensors in first.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, second[kind][name]), name


def test_a_checkpoint_without_an_average_starts_it_from_the_weights_and_says_so(tmp_path):
    run = start()
    run.step(pairs(1)[0])
    run.save(tmp_path)
    other = start()
    ema = EMA(other)
    learn(other, ema, pairs(2))
    other.load(tmp_path)
    assert ema.updates == 0
    assert torch.equal(ema.averages["first.weight"], run.module.first.weight)
    assert torch.equal(ema.buffers["norm.running_mean"], run.module.norm.running_mean)
    (said,) = other.events
    assert said == (
        "step-000001 holds no 'ema' of 9 tensors, such as 'first.bias': there it starts from the "
        "weights"
    )


def test_a_run_without_an_average_says_that_the_checkpoint_has_one(tmp_path):
    run = start()
    EMA(run)
    run.save(tmp_path)
    other = start()
    other.load(tmp_path)
    left_out = "step-000000 holds the state of 'ema', which is not registered: left out"
    assert other.events == [left_out]
    with pytest.raises(PlanError, match="holds a 'ema' and was loaded before it was registered"):
        EMA(other)


def test_two_averages_of_a_run_have_names_of_their_own(tmp_path):
    run = start()
    slow, fast = EMA(run, decay=0.99), EMA(run, decay=0.5, name="fast")
    learn(run, slow, pairs(2))
    fast.update()
    run.save(tmp_path)
    other = start()
    averages = [EMA(other), EMA(other, name="fast")]
    other.load(tmp_path)
    for saved_one, loaded in zip((slow, fast), averages):
        assert loaded.updates == saved_one.updates
        assert torch.equal(loaded.averages["last.bias"], saved_one.averages["last.bias"])


# What is refused.


@pytest.mark.parametrize("decay", [1.5, -0.1, float("nan")])
def test_a_decay_that_is_no_share_is_refused(decay):
    said = "is not a share of the average to keep. Use a number between 0 and 1, such as 0.999."
    with pytest.raises(PlanError) as refused:
        EMA(start(), decay=decay)
    assert str(refused.value) == f"decay: {decay} {said}"
    ema = EMA(start(), decay=lambda updates: decay)
    with pytest.raises(PlanError, match="is not a share of the average"):
        ema.update()


def test_what_would_learn_from_averages_is_refused_inside_applied(tmp_path):
    run = start()
    ema, other = EMA(run), EMA(run, name="other")
    run.save(tmp_path)
    before = bits(run)
    with ema.applied():
        for call, given in ((ema.update, ()), (other.update, ()), (run.step, pairs(1)[:1]),
                            (run.load, (tmp_path,))):  # fmt: skip
            said = f"{call.__name__} was called inside applied(), where the weights are averages"
            with pytest.raises(TrainingError, match=re.escape(said)):
                call(*given)
        with pytest.raises(TrainingError, match="was called inside its own block"):
            ema.applied().__enter__()
    assert run.index == 0
    assert all(torch.equal(a, b) for a, b in zip(before, bits(run), strict=True))
    run.step(pairs(1)[0])


def test_weights_of_a_module_are_a_runs():
    with pytest.raises(PlanError, match="ema: was given a Net, and averages the weights of a run"):
        EMA(net())
    with pytest.raises(PlanError, match="decay: 'a' is not a share of the average to keep"):
        EMA(start(), decay="a")


def test_weights_come_back_where_the_block_fails():
    run = start()
    ema = EMA(run, decay=0.5)
    learn(run, ema, pairs(1))
    before = bits(run)
    with pytest.raises(ZeroDivisionError), ema.applied():
        1 / 0  # noqa: B018
    assert all(torch.equal(a, b) for a, b in zip(before, bits(run), strict=True))
    ema.update()
