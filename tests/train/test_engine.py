"""One step: a plain loop's arithmetic, whatever the micro-batch and whatever goes wrong."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepladder.errors import NonFinite, OutOfMemory
from stepladder.train import climb

from .toys import distance, gpt, llama, net, pairs, ragged, same_bits


def plain_loop(module, batches, make, clip=None):
    """The loop everybody writes."""
    optimizer = make(module.parameters())
    losses = []
    for inputs, targets in batches:
        logits = module(inputs)
        loss = functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-100
        )
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


OPTIMIZERS = {
    "sgd lr=0.5": lambda p: torch.optim.SGD(p, lr=0.5),
    "sgd lr=0.1 momentum=0.9": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw lr=0.01 wd=0.1": lambda p: torch.optim.AdamW(
        p, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1
    ),
    "adam lr=0.01": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.9, 0.95)),
    "adafactor lr=0.01": lambda p: torch.optim.Adafactor(p, lr=0.01, weight_decay=0.0),
}


@pytest.mark.parametrize("text", OPTIMIZERS)
def test_a_step_is_the_plain_loops_step(text):
    ours, theirs = llama(), llama()
    batches = ragged(10)
    run = climb(ours, loss="cross_entropy", optimizer=text, plan="fp32", device="cpu")
    losses = [run.step(batch).loss for batch in batches]
    assert losses == pytest.approx(plain_loop(theirs, batches, OPTIMIZERS[text]), rel=1e-5)
    assert distance(ours, theirs) < 1e-5


@pytest.mark.parametrize(("plan", "rows"), [("accumulate=4", 2), ("accumulate=3", 3), ("", None)])
def test_passes_that_are_asked_for_are_taken_whatever_the_batch(plan, rows):
    """Without a micro-batch the plan's number of passes alone says how large a pass is."""
    ours, theirs = net(), net()
    batches = pairs(3)
    assert len(batches[0][0]) == 8
    run = climb(ours, loss="cross_entropy", optimizer="sgd lr=0.5", plan=f"fp32 {plan}")
    for batch in batches:
        run.step(batch)
    plain_loop(theirs, batches, lambda p: torch.optim.SGD(p, lr=0.5))
    assert run.micro == rows
    assert distance(ours, theirs) < 1e-5


def test_clipping_is_torchs_clipping():
    ours, theirs = net(), net()
    batches = pairs(10)
    run = climb(ours, loss="cross_entropy", optimizer="sgd lr=1 clip=0.3", plan="fp32")
    norms = [run.step(batch).grad_norm for batch in batches]
    plain_loop(theirs, batches, lambda p: torch.optim.SGD(p, lr=1), clip=0.3)
    assert max(norms) > 0.3, "a clip that never bites proves nothing"
    assert distance(ours, theirs) < 1e-5


def test_a_gradient_below_the_clip_is_left_alone():
    free, clipped = net(), net()
    one = climb(free, loss="cross_entropy", optimizer="sgd lr=0.5", plan="fp32")
    other = climb(clipped, loss="cross_entropy", optimizer="sgd lr=0.5 clip=100", plan="fp32")
    for batch in pairs(3):
        one.step(batch)
        assert 0 < other.step(batch).grad_norm < 100
    assert same_bits(free, clipped)


@pytest.mark.parametrize("micro", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("optimizer", ["sgd lr=0.5", "adamw lr=0.01 clip=1"])
def test_accumulation_is_exact_under_ragged_targets(micro, optimizer):
    whole, cut = llama(), llama()
    batches = ragged(4)
    one = climb(whole, loss="cross_entropy", optimizer=optimizer, plan="fp32")
    many = climb(cut, loss="cross_entropy", optimizer=optimizer, plan="fp32")
    many.climbed.forward_backward.micro = micro
    for batch in batches:
        assert many.step(batch).loss == pytest.approx(one.step(batch).loss, rel=1e-6)
    # Adam divides by a gradient's own size, which magnifies the last bit of the smallest ones.
    assert distance(cut, whole) < (1e-6 if optimizer.startswith("sgd") else 1e-4)


def test_a_users_mean_loss_is_weighed_by_its_targets():
    def loss(logits, targets):
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)

    ours, theirs = llama(), llama()
    batches = ragged(10)
    run = climb(ours, loss=loss, optimizer="sgd lr=0.5", plan="fp32 micro=5")
    losses = [run.step(batch).loss for batch in batches]
    assert losses == pytest.approx(plain_loop(theirs, batches, OPTIMIZERS["sgd lr=0.5"]), rel=1e-5)


def test_a_batch_without_valid_targets_changes_nothing():
    module, before = gpt(), gpt()
    run = climb(module, loss="cross_entropy", optimizer="sgd lr=1", plan="fp32 micro=2")
    tokens, targets = ragged(1)[0]
    report = run.step((tokens, torch.full_like(targets, -100)))
    assert (report.loss, report.grad_norm, report.tokens) == (0.0, 0.0, 0)
    assert same_bits(module, before)


class Hungry(nn.Module):
    """Fails as a full device does when a pass has more rows than it can hold."""

    def __init__(self, inner: nn.Module, rows: int) -> None:
        super().__init__()
        self.inner, self.rows, self.passes = inner, rows, []

    def forward(self, x):
        self.passes.append(len(x))
        answer = self.inner(x)
        if len(x) > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return answer


def test_a_step_that_runs_out_of_memory_is_taken_again_with_smaller_micro_batches():
    plenty, tight = net(dropout=0.5), net(dropout=0.5)
    one = climb(plenty, loss="cross_entropy", optimizer="sgd lr=0.5", plan="fp32 micro=2")
    hungry = Hungry(tight, rows=2)
    other = climb(hungry, loss="cross_entropy", optimizer="sgd lr=0.5", plan="fp32")
    for batch in pairs(3):
        assert other.step(batch).loss == one.step(batch).loss
    assert same_bits(plenty, tight), "no sample lost or counted twice, the same dropout"
    assert hungry.passes[:6] == [8, 4, 2, 2, 2, 2]
    assert other.events == [
        "step 0: out of memory with micro-batches of 8; going on with 4",
        "step 0: out of memory with micro-batches of 4; going on with 2",
    ]


class Tired(nn.Module):
    """Runs out of memory once, in the second pass, when the first has left its gradients."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.passes = inner, []  # no number: counters advance once a batch

    def forward(self, x):
        self.passes.append(len(x))
        if len(self.passes) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self.inner(x)


def test_gradients_of_the_failed_try_are_dropped():
    plenty, tight = net(), net()
    one = climb(plenty, loss="cross_entropy", optimizer="sgd lr=0.5", plan="fp32 micro=2")
    other = climb(Tired(tight), loss="cross_entropy", optimizer="sgd lr=0.5", plan="fp32 micro=4")
    batch = pairs(1)[0]
    assert other.step(batch).grad_norm == one.step(batch).grad_norm
    assert same_bits(plenty, tight)


def test_one_row_that_does_not_fit_names_the_owners_and_the_ways_down():
    run = climb(Hungry(net(), rows=0), loss="cross_entropy", plan="fp32 memory=12GiB")
    with pytest.raises(OutOfMemory) as raised:
        run.step(pairs(1)[0])
    assert "12.0" in str(raised.value) or "12.00" in str(raised.value)
    assert "Largest owner" in str(raised.value)
    assert "recompute" in str(raised.value)
    assert "micro=" not in str(raised.value), "one row at a time has just failed"


def test_another_error_is_not_taken_for_a_full_memory():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            raise RuntimeError("shape mismatch")

    run = climb(Broken(), loss="cross_entropy", plan="fp32")
    with pytest.raises(RuntimeError, match="shape mismatch"):
        run.step(pairs(1)[0])
    assert run.events == []


def test_a_parameter_on_another_device_is_named():
    from stepladder.errors import ModelError

    module = net()
    run = climb(module, loss="cross_entropy", plan="fp32", device="cpu")
    module.last.to("meta")
    with pytest.raises(ModelError) as raised:
        run.step(pairs(1)[0])
    assert "last.weight" in str(raised.value) and "meta" in str(raised.value)


def poisoned():
    """A batch whose third sample makes the gradients of both layers infinite."""
    inputs, targets = pairs(1)[0]
    inputs[2] = float("nan")
    return inputs, targets


def test_a_loss_that_is_not_a_number_stops_with_step_layer_and_samples_named():
    module, before = net(), net()
    run = climb(module, loss="cross_entropy", optimizer="adamw lr=0.1", plan="fp32")
    for batch in pairs(3):
        run.step(batch)
        plain = [p.detach().clone() for p in module.parameters()]
    report = run.step(poisoned())
    with pytest.raises(NonFinite) as raised:
        report.read()
    message = str(raised.value)
    assert message.startswith(
        "step 3: loss nan: rank 0 in sample 26, first in module 'first', gradient of "
        "'first.weight' not finite; the update was left out and parameters are as before."
    )
    assert "nonfinite='skip' or 'backoff'" in message
    assert all(torch.equal(a, b) for a, b in zip(plain, module.parameters()))
    assert not same_bits(module, before)


@pytest.mark.parametrize("optimizer", ["adamw lr=0.1", "sgd lr=0.1 momentum=0.9", "adafactor"])
def test_skipping_goes_on_as_if_the_bad_batch_had_never_been(optimizer):
    module, other = net(), net()
    with_bad = climb(
        module, loss="cross_entropy", optimizer=optimizer, plan="fp32", nonfinite="skip"
    )
    without = climb(other, loss="cross_entropy", optimizer=optimizer, plan="fp32")
    assert with_bad.step(poisoned()).skipped  # the very first step: no momentum exists yet
    for batch in pairs(4):
        assert not with_bad.step(batch).skipped
        without.step(batch)
    assert same_bits(module, other)


def test_fp16_halves_its_scale_on_overflow_and_leaves_the_parameters():
    module, before = net(), net()
    run = climb(module, loss="cross_entropy", optimizer="sgd lr=0.1", plan="fp16")
    run.scale.scale.fill_(2.0**40)
    report = run.step(pairs(1)[0])
    assert report.skipped and report.loss_scale == 2.0**40
    assert run.scale.value.item() == 2.0**39
    assert same_bits(module, before)


@pytest.mark.parametrize(
    ("plan", "tolerance"), [("bf16", 2e-2), ("fp16", 4e-3), ("bf16-pure", 5e-2)]
)
def test_fewer_bits_stay_near_fp32(plan, tolerance):
    batches = ragged(10)
    exact = climb(gpt(), loss="cross_entropy", optimizer="sgd lr=0.1", plan="fp32")
    fewer = climb(gpt(), loss="cross_entropy", optimizer="sgd lr=0.1", plan=plan)
    for batch in batches:
        a, b = exact.step(batch), fewer.step(batch)
        assert b.loss == pytest.approx(a.loss, rel=tolerance)
        assert b.grad_norm == pytest.approx(a.grad_norm, rel=5 * tolerance)


def test_pictures_reach_a_module_stored_in_fewer_bits():
    from stepladder.model import build

    run = climb(build("resnet-tiny"), loss="cross_entropy", plan="bf16-pure")
    pictures, classes = torch.randn(4, 1, 8, 8), torch.arange(4)
    assert run.step((pictures, classes)).loss == pytest.approx(2.3, abs=1.0)


def test_the_loss_scale_does_not_reach_the_reported_norm():
    exact = climb(net(), loss="cross_entropy", optimizer="sgd lr=0.1 clip=1", plan="fp32")
    scaled = climb(net(), loss="cross_entropy", optimizer="sgd lr=0.1 clip=1", plan="fp16")
    batch = pairs(1)[0]
    assert scaled.step(batch).grad_norm == pytest.approx(exact.step(batch).grad_norm, rel=1e-2)


def test_backward_stays_on_the_thread_of_the_step():
    """Where a device would have one of its own; afterwards all is as it was."""
    run, told = climb(net(), loss="cross_entropy", plan="fp32"), []
    next(run.module.parameters()).register_hook(
        lambda _: told.append(torch._C._is_multithreading_enabled())
    )
    run.step(pairs(1)[0]).read()
    assert told == [False]
    assert torch._C._is_multithreading_enabled()


def test_a_report_is_read_once_and_knows_its_step_before():
    run = climb(net(), loss="cross_entropy", plan="fp32")
    first, second = run.step(pairs(1)[0]), run.step(pairs(1)[0])
    assert (first.step, second.step) == (0, 1)
    assert first._report is None, "nobody has asked yet"
    assert second.read() is second.read()
    assert second.tokens == 8 and second.tokens_per_second > 0


def test_the_rate_moves_with_the_step():
    run = climb(
        net(), loss="cross_entropy", optimizer="sgd lr=1", plan="fp32",
        rate="linear warmup=2 steps=6",
    )  # fmt: skip
    rates = [run.step(batch).lr for batch in pairs(6)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25])


def test_dropout_draws_by_step_and_not_by_history():
    def losses(skip):
        run = climb(net(dropout=0.5), loss="cross_entropy", optimizer="sgd lr=0", plan="fp32")
        torch.rand(skip)  # somebody else's draws
        return [run.step(pairs(1)[0]).loss for _ in range(3)]

    assert losses(0) == losses(1000)
    assert len(set(losses(0))) == 3


def test_gradients_can_be_looked_at_between_backward_and_update():
    module = net()
    run = climb(module, loss="cross_entropy", optimizer="sgd lr=0.1", plan="fp32")
    from stepladder.train import as_batch

    batch = as_batch(pairs(1)[0], 0)
    loss = run.gradients(batch)
    assert module.first.weight.grad.abs().sum() > 0
    report = run.update(batch, loss)
    assert module.first.weight.grad is None
    assert report.grad_norm > 0


def test_frozen_parameters_stay():
    module, before = net(), net()
    module.first.requires_grad_(False)
    run = climb(module, loss="cross_entropy", optimizer="adamw lr=0.1", plan="fp32")
    run.step(pairs(1)[0])
    assert torch.equal(module.first.weight, before.first.weight)
    assert not torch.equal(module.last.weight, before.last.weight)
