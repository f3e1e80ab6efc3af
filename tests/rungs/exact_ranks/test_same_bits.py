"""`exact=ranks`: one set of bits on 1, 2 and 4 ranks in every layout, and those of a plain loop."""

import hashlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils.data import TensorDataset

from stepladder.errors import OutOfMemory, PlanErrors, StepladderError
from stepladder.train import climb
from tests.ranks import run
from tests.rungs.rank_toys import VOCAB, odd
from tests.soak import soak_after

ROWS, STEPS = 16, 3
ADAMW, SGD = "adamw lr=1e-2 clip=0.5", "sgd lr=0.05 momentum=0.9"


class Drawing(nn.Module):
    """The odd module, which not every slice uses all of, with dropout and a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.odd = odd()
        self.drop = nn.Dropout(0.2)
        self.scale = nn.Parameter(torch.tensor(1.1))  # FSDP2 cannot shard it
        self.register_buffer("mean", torch.zeros(VOCAB))

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.drop(self.odd(tokens)) * self.scale
        with torch.no_grad():
            self.mean.lerp_(logits.float().mean((0, 1)), 0.1)
        return logits


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.cut = nn.Conv2d(3, 7, 3)
        self.norm = nn.BatchNorm2d(7)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(7 * 16, VOCAB)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.cut(images)))).flatten(1))


def batches(images: bool = False) -> list[tuple[Tensor, Tensor]]:
    """Rows with unequal numbers of valid targets; token 0, in some slices only."""
    draw = torch.Generator().manual_seed(5)
    made = []
    for _ in range(STEPS):
        targets = torch.randint(0, VOCAB, (ROWS, 5), generator=draw)
        targets[torch.rand(ROWS, 5, generator=draw) < 0.3] = -100
        if images:
            made.append((torch.randn(ROWS, 3, 6, 6, generator=draw), targets[:, 0].clamp(min=0)))
            continue
        inputs = torch.randint(1, VOCAB, (ROWS, 5), generator=draw)
        inputs[3] = 0
        made.append((inputs, targets))
    return made


def start(plan: str, optimizer: str = ADAMW, make: type[nn.Module] = Drawing, **options):
    torch.manual_seed(0)
    return climb(
        make(), loss="cross_entropy", plan=plan, optimizer=optimizer, device="cpu", **options
    )


def digest(module: nn.Module) -> str:
    """A hash of every bit of every parameter and buffer, whoever holds it."""
    found = hashlib.sha256()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        found.update(name.encode() + whole.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def learn(plan: str, optimizer: str = ADAMW, make: type[nn.Module] = Drawing):
    taken = start(plan, optimizer, make)
    given = batches(images=make is Images)
    reports = [taken.step(batch, rows="global").read() for batch in given]
    return digest(taken.module), [(one.loss, one.grad_norm, one.tokens) for one in reports]


def learn_each(cases):
    return [learn(*case) for case in cases]


CASES = [("fp32 {} exact=ranks", ADAMW), ("bf16 {} exact=ranks", SGD),
         ("fp16 {} exact=ranks", ADAMW), ("fp32 {} exact=ranks", SGD, Images)]  # fmt: skip


@pytest.fixture(scope="module")
def on_one_rank():
    found = [learn(plan.format(""), *how) for plan, *how in CASES]
    assert len({one for one, _ in found}) == len(CASES)
    return found


@pytest.mark.parametrize(
    ("ranks", "layout"),
    soak_after([(2, "ddp"), (4, "zero3"), (4, "zero1"), (2, "zero3"), (4, "zero2")], gate=2),
)
def test_any_layout_and_number_of_ranks_gives_the_same_bits(ranks, layout, on_one_rank):
    """Parameters, buffers, losses, norms; dropout and clipping on; fp32, bf16, fp16's scale."""
    asked = [(plan.format(layout), *how) for plan, *how in CASES]
    for found in run(learn_each, ranks, asked, init=False):
        assert found == on_one_rank


class Certain(Drawing):
    """The same without dropout, whose every slice uses all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.odd.skips, self.drop.p = False, 0.0


def plainly(optimizer: str) -> dict[str, Tensor]:
    """The whole batch at once in a plain torch loop; nothing here is stepladder's."""
    torch.manual_seed(0)
    module = Certain()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    made = torch.optim.SGD(trained, lr=0.05, momentum=0.9)
    if optimizer == ADAMW:
        made = torch.optim.AdamW(trained, 1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for inputs, targets in batches():
        made.zero_grad()
        functional.cross_entropy(module(inputs).flatten(0, 1), targets.flatten()).backward()
        if optimizer == ADAMW:
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        made.step()
    return module.state_dict()


@pytest.mark.parametrize("optimizer", [SGD, f"{ADAMW} wd=0.1"])
def test_what_they_agree_on_is_what_a_plain_loop_over_whole_batches_learns(optimizer):
    taken = start("fp32 exact=ranks", optimizer, Certain)
    for batch in batches():
        taken.step(batch)
    wanted = plainly(optimizer.removesuffix(" wd=0.1"))
    for name, value in taken.module.state_dict().items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-5, atol=1e-5, msg=name)


def go_on(plan: str, folder: str, until: int):
    """Resume, take the steps up to `until` in the run's own order of samples, and save."""
    taken = start(plan)
    taken.resume(folder)
    samples = TensorDataset(*(torch.cat(parts) for parts in zip(*batches())))
    with taken.batches(samples, size=ROWS, seed=3) as feed:
        while taken.index < until:
            taken.step(next(feed))
    taken.save(folder)
    return digest(taken.module)


def test_a_run_that_shrinks_and_grows_again_is_the_one_that_never_did(tmp_path: Path):
    folder, apart = str(tmp_path / "moved"), str(tmp_path / "stayed")
    run(go_on, 4, "fp32 zero3 exact=ranks", folder, 1, init=False)
    run(go_on, 2, "fp32 ddp exact=ranks", folder, 2, init=False)
    ends = run(go_on, 4, "fp32 zero2 exact=ranks", folder, 3, init=False)
    assert set(ends) == {go_on("fp32 exact=ranks", apart, 3)}
    with pytest.raises(StepladderError) as caught:
        start("fp32 exact=ranks:4").resume(folder)
    assert "was saved with exact=ranks:8, and this run has exact=ranks:4. Use exact=ranks:8" in str(
        caught.value
    )


def test_the_threads_of_a_processor_change_no_bit():
    """A rank has fewer threads than a process alone, and kernels split their sums by them."""
    before = torch.get_num_threads()
    try:
        found = set()
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.add(learn_wide())
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def learn_wide() -> str:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(9, 256), nn.LayerNorm(256), nn.Linear(256, 9))
    taken = climb(module, loss=flat_loss, plan="fp32 exact=ranks:1", optimizer=SGD, device="cpu")
    tokens = torch.randint(0, 9, (32, 64), generator=torch.Generator().manual_seed(0))
    taken.step((tokens, tokens))
    return digest(module)


def flat_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def test_the_number_of_slices_is_part_of_the_run():
    assert learn("fp32 exact=ranks:4")[0] != learn("fp32 exact=ranks:8")[0]


def test_batch_norm_says_that_it_sees_a_slice_at_a_time():
    said = start("fp32 exact=ranks", make=Images).because
    assert said.endswith("on the number of slices, though not on that of ranks")


def test_a_batch_that_does_not_divide_names_the_nearest_sizes():
    taken, (tokens, targets) = start("fp32 exact=ranks"), batches()[0]
    with pytest.raises(StepladderError) as caught:
        taken.step((tokens[:12], targets[:12]))
    assert str(caught.value) == (
        "batch: 12 rows do not divide into the 8 slices of exact=ranks. Nearest that do: 8 or 16."
    )


def unequal(plan: str) -> str:
    taken, (tokens, targets) = start(plan), batches()[0]
    mine = slice(0, 10) if taken.world.data_index else slice(10, 16)
    try:
        taken.step((tokens[mine], targets[mine]), rows="rank")
    except StepladderError as refused:
        return str(refused)
    return ""


def test_ranks_with_unequal_rows_are_told_how_many_each_needs():
    assert run(unequal, 2, "fp32 ddp exact=ranks", init=False) == 2 * [
        "batch: of 16 rows one rank has 10, and each of the 2 ranks computes as many slices. "
        "Give every rank 8 rows."
    ]


class Refused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.long = nn.Embedding(4, 3, max_norm=1.0)
        self.norm = nn.BatchNorm1d(3, momentum=None)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(self.long(tokens))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.mse_loss(outputs * self.scale, targets)


def test_what_no_slice_can_repeat_is_refused_by_name():
    with pytest.raises(PlanErrors) as caught:
        climb(Refused(), loss=Scaled(), plan="fp32 exact=ranks", optimizer=SGD, device="cpu")
    for sentence in (
        "'long': shortens the rows it looks up (max_norm=1.0) for the slices that come after, "
        "which depends on the ranks. Leave max_norm out, or leave exact=ranks out.",
        "'norm': has momentum=None, a mean over its calls, and ranks call it unequally often",
        "loss: has 1 trained parameters, whose gradients ranks average",
    ):
        assert sentence in str(caught.value)


class Counting(nn.Module):
    """Counts tokens, in whole numbers, which have no mean."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, VOCAB)
        self.register_buffer("seen", torch.zeros(VOCAB, dtype=torch.int64))

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen += tokens.flatten().bincount(minlength=VOCAB)
        return self.table(tokens)


def count(plan: str) -> str:
    taken = climb(Counting(), loss=flat_loss, plan=plan, optimizer=SGD, device="cpu")
    try:
        taken.step(batches()[0], rows="global")
    except StepladderError as refused:
        return str(refused)
    return ""


PARTED = (
    "buffer 'seen': is written in forward and has no mean over slices, so ranks differ in it. "
    "Keep it in floating point and in one shape, or leave exact=ranks out."
)


def test_a_buffer_in_which_ranks_part_is_refused():
    assert run(count, 2, "fp32 ddp exact=ranks", init=False) == 2 * [PARTED]


def test_a_buffer_in_which_ranks_would_part_is_refused_on_one():
    """Such a run could never move to several."""
    assert count("fp32 exact=ranks") == PARTED


class Flagged(nn.Module):
    """Marks that it was called, and how often: both the same whatever slices a rank computes."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(VOCAB, VOCAB), nn.BatchNorm1d(VOCAB)
        self.register_buffer("called", torch.zeros(2, dtype=torch.bool))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: Tensor) -> Tensor:
        self.called[0] = True
        self.calls += 1
        return self.norm(self.table(tokens).transpose(1, 2)).transpose(1, 2)


def test_flags_and_counters_of_batches_are_not_refused():
    module = Flagged()
    taken = climb(module, loss=flat_loss, plan="fp32 exact=ranks", optimizer=SGD, device="cpu")
    for batch in batches()[:2]:
        taken.step(batch)
    assert module.called.tolist() == [True, False]
    assert module.calls == module.norm.num_batches_tracked == 2


def test_a_fused_optimizer_of_the_users_is_refused():
    module = Images()
    fused = torch.optim.AdamW(module.parameters(), fused=True)
    with pytest.raises(StepladderError) as caught:
        climb(module, loss="cross_entropy", plan="fp32 exact=ranks", optimizer=fused, device="cpu")
    assert str(caught.value) == (
        "optimizer: AdamW is fused, and its kernel rounds a shard otherwise than the whole. "
        "Leave fused=True or exact=ranks out."
    )


class Hungry(Images):
    def forward(self, images: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_slice_that_does_not_fit_is_not_cut():
    """Half a slice would have other bits."""
    taken = start("fp32 exact=ranks batch=16", make=Hungry)
    with pytest.raises(OutOfMemory):
        taken.step(batches(images=True)[0])
    assert taken.micro == 2 and taken.events == []


def by_class(outputs: Tensor, targets: Tensor) -> Tensor:
    weights = (1 + torch.arange(VOCAB) / 7)[targets]
    return (functional.cross_entropy(outputs, targets, reduction="none") * weights).mean() / (
        weights.mean()
    )


def test_a_loss_whose_weights_had_to_be_measured_is_refused():
    taken = climb(Images(), loss=by_class, plan="fp32 exact=ranks", optimizer=SGD, device="cpu")
    with pytest.raises(StepladderError) as caught:
        taken.step(batches(images=True)[0])
    assert str(caught.value) == (
        "loss: weighs targets by class, and what each weighs had to be measured, which rounds "
        "otherwise on other ranks. Use torch.nn.CrossEntropyLoss(weight=...), or leave "
        "exact=ranks out."
    )
