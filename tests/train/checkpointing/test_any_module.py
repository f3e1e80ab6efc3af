"""Whatever tensors a module has, they come back from a checkpoint, on any number of ranks."""

from pathlib import Path

import pytest
import torch
from torch import nn

from stepladder.errors import ModelError, RecordError, StepladderError
from stepladder.rungs import local
from stepladder.train import climb
from tests.ranks import run
from tests.soak import soak_after

ROWS, WIDTH = 8, 16


class Odd(nn.Module):
    """Parameters with fewer rows than ranks, without any numbers, oddly named."""

    def __init__(self, rows: int = 0) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 1)
        self.last = nn.Linear(1, 3)
        self.empty = nn.Parameter(torch.zeros(rows, 4))
        self.register_parameter("__metadata__", nn.Parameter(torch.randn(3)))
        self.register_parameter("first/weight@0,0", nn.Parameter(torch.randn(3)))
        self.frozen = nn.Parameter(torch.randn(1, 5), requires_grad=False)

    def forward(self, x):
        made = self.last(torch.tanh(self.first(x))) + self.empty.sum()
        return made * self.__metadata__ + getattr(self, "first/weight@0,0")


class Piped(nn.Module):
    """Blocks between an embedding tied to the head, with state that belongs to no part."""

    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.embedding = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)
        )
        self.blocks[3][0].weight = self.blocks[0][0].weight
        self.head = nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.head.weight.requires_grad_(not frozen)
        self.blocks[0][0].weight.requires_grad_(not frozen)
        self.register_buffer("table", torch.randn(WIDTH))
        self.register_buffer("count", torch.tensor(7))

    def forward(self, tokens):
        hidden = self.embedding(tokens) * self.table * self.scale
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden * self.scale)


def make(kind: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    module = {
        "odd": Odd,
        "short": lambda: Odd(1),
        "piped": Piped,
        "frozen": lambda: Piped(frozen=True),
    }[kind]()
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.data = torch.randn_like(tensor) * 0.5
    return module


def batch_of(kind: str, step: int):
    draw = torch.Generator().manual_seed(step)
    if kind in ("odd", "short"):
        return torch.randn(ROWS, WIDTH, generator=draw), torch.randn(ROWS, 3, generator=draw)
    tokens = torch.randint(0, 11, (ROWS, 5), generator=draw)
    return tokens, tokens.roll(1, 1)


def plain(kind: str, optimizer: str, steps: int) -> dict[str, torch.Tensor]:
    """The same steps by torch alone, on the whole batch."""
    module = make(kind, 0)
    trained = [p for p in module.parameters() if p.requires_grad]
    rule = torch.optim.SGD(trained, 0.1)
    if optimizer == "adamw":
        rule = torch.optim.AdamW(trained, 1e-2, betas=(0.9, 0.95), eps=1e-3)
    for step in range(steps):
        inputs, targets = batch_of(kind, step)
        made = module(inputs)
        if kind in ("odd", "short"):
            loss = nn.functional.mse_loss(made, targets)
        else:
            loss = nn.functional.cross_entropy(made.flatten(0, 1), targets.flatten())
        rule.zero_grad()
        loss.backward()
        rule.step()
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def learn(kind: str, plan: str, optimizer: str, first: int, last: int, folder: str, wait: bool):
    text = "adamw lr=1e-2 wd=0.01 eps=1e-3" if optimizer == "adamw" else "sgd lr=0.1"
    loss = "squared_error" if kind in ("odd", "short") else "cross_entropy"
    taken = climb(
        make(kind, first), loss=loss, optimizer=text, plan=plan, device="cpu",
        sample=batch_of(kind, 0),
    )  # fmt: skip
    if first:
        assert taken.load(folder) is not None
    for step in range(first, last):
        taken.step(batch_of(kind, step), rows="global").read()
    taken.save(folder, wait=wait)
    taken.finish_saving()
    taken.world.close()


def read_back(kind: str, folder: Path) -> dict[str, torch.Tensor]:
    """What one process finds in the newest checkpoint."""
    taken = climb(make(kind, 77), loss="cross_entropy", optimizer="sgd lr=0.1", plan="fp32")
    taken.load(folder)
    return taken.module.state_dict()


PLANS = [
    ("odd", "fp32 zero1", 2, "adamw"),
    ("short", "fp32 zero3", 2, "adamw"),
    ("odd", "fp32 micro=4", 1, "adamw"),
    ("piped", "fp32 pipeline=2 shard=2 zero2 micro=2", 4, "sgd"),
    ("frozen", "fp32 pipeline=2 micro=4", 2, "sgd"),
    ("piped", "fp32 pipeline=2 micro=4", 2, "adamw"),
    ("short", "fp32 zero2", 2, "sgd"),
    ("odd", "fp32 ddp", 2, "adamw"),
]


@pytest.mark.parametrize(("kind", "plan", "ranks", "optimizer"), soak_after(PLANS, gate=5))
def test_a_run_goes_on_as_a_plain_loop_does(tmp_path, kind, plan, ranks, optimizer):
    for first, last, wait in ((0, 2, False), (2, 3, True)):
        run(learn, ranks, kind, plan, optimizer, first, last, str(tmp_path), wait, init=False)
    expected, found = plain(kind, optimizer, 3), read_back(kind, tmp_path)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)


class Keeping(nn.Module):
    """State that every rank changes by itself, of every type."""

    def __init__(self, *, dense: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 3)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("third", torch.tensor(1 / 3, dtype=torch.float64))
        narrow, wide = torch.complex64, torch.complex128
        self.register_buffer("turns", torch.ones(2, dtype=torch.float32 if dense else narrow))
        self.register_buffer("wide", torch.ones(2, dtype=torch.float64 if dense else wide))
        self.register_buffer("small", torch.zeros(2, dtype=torch.int32 if dense else torch.uint16))
        self.register_buffer("flag", torch.zeros(2, dtype=torch.bool))
        self.register_buffer("nothing", torch.zeros(0))
        self.register_buffer("graph", torch.eye(3) if dense else torch.eye(3).to_sparse())
        self.log: list = []

    def get_extra_state(self):
        return {"log": list(self.log), ("a", 1): torch.tensor([float("nan"), 1.0]), "b": {2, 3}}

    def set_extra_state(self, state):
        assert state["b"] == {2, 3} and state["a", 1][1] == 1
        self.log = list(state["log"])

    def forward(self, x):
        with torch.no_grad():
            self.seen += torch.bincount(x.argmax(1) % 3, minlength=3)
            self.mean.lerp_(x.mean(0), 0.5)
            self.turns *= torch.polar(x[0, :2].abs(), x[0, :2]).to(self.turns.dtype)
            self.wide *= torch.polar(x[0, :2].abs(), x[0, :2]).to(self.wide.dtype)
            self.flag |= x[0, :2] > 0
            self.graph = self.graph * (1 + x[0, 0])
        self.log.append(float(x.sum()))
        return self.linear(x + self.mean)


def state_of(module: nn.Module) -> dict:
    state = {**module.state_dict(), "log": list(module.log)}
    del state["_extra_state"]
    state = {n: local(t) if torch.is_tensor(t) else t for n, t in state.items()}
    state["small"] = state["small"].int()  # other processes are sent no uint16
    return {n: t.to_dense().clone() if torch.is_tensor(t) else t for n, t in state.items()}


def keep(plan: str, first: int, last: int, folder: str, save_each: bool):
    torch.manual_seed(first)
    taken = climb(
        Keeping(dense=False), loss="squared_error", optimizer="sgd lr=0.1", plan=plan,
        device="cpu",
    )  # fmt: skip
    taken.module.small.fill_(taken.world.place.rank + 4)
    if first:
        taken.load(folder)
    for step in range(first, last):
        draw = torch.Generator().manual_seed(step)
        batch = torch.randn(ROWS, WIDTH, generator=draw), torch.randn(ROWS, 3, generator=draw)
        taken.step(batch, rows="global").read()
        if save_each:
            taken.save(folder, wait=bool(step % 2))
    taken.finish_saving()
    state, events = state_of(taken.module), list(taken.events)
    taken.world.close()
    return state, events


def unexpected(events: list[str]) -> list[str]:
    """Without the one that names a buffer of Keeping, which its forward writes."""
    return [event for event in events if not event.startswith("buffer 'mean' is written")]


def differing(one: dict, other: dict) -> list[str]:
    """The names of what is not the same in both, to the bit."""
    assert one.keys() == other.keys()
    return [
        name
        for name, value in one.items()
        if not (
            torch.equal(value, other[name]) and value.dtype == other[name].dtype
            if torch.is_tensor(value)
            else value == other[name]
        )
    ]


@pytest.mark.parametrize(("plan", "ranks"), [("fp32 ddp", 2), ("fp32 zero3", 2), ("fp32", 1)])
def test_ranks_keep_their_own_buffers_and_extra_state_whether_or_not_they_save(
    tmp_path, plan, ranks
):
    folder = str(tmp_path)
    never = run(keep, ranks, plan, 0, 4, folder, False, init=False)
    run(keep, ranks, plan, 0, 2, folder, True, init=False)
    resumed = run(keep, ranks, plan, 2, 4, folder, True, init=False)
    for (one, _), (other, events) in zip(never, resumed):
        assert differing(one, other) == []
        assert unexpected(events) == []
    assert ranks == 1 or "seen" in differing(never[0][0], never[1][0])


def test_another_number_of_ranks_takes_one_value_and_says_so(tmp_path):
    saved = [state for state, _ in run(keep, 2, "fp32 ddp", 0, 2, str(tmp_path), True, init=False)]
    ((one, events),) = run(keep, 1, "fp32 micro=8", 2, 2, str(tmp_path), False, init=False)
    torch.testing.assert_close(one["mean"], (saved[0]["mean"] + saved[1]["mean"]) / 2)
    torch.testing.assert_close(one["wide"], (saved[0]["wide"] + saved[1]["wide"]) / 2)
    assert torch.equal(one["seen"], saved[0]["seen"]) or torch.equal(one["seen"], saved[1]["seen"])
    (said,) = events
    assert "differed between the ranks that saved them" in said


class Unstorable(nn.Linear):
    def get_extra_state(self):
        return lambda: None

    def set_extra_state(self, state):
        pass


class Forgetful(nn.Linear):
    def get_extra_state(self):
        return 1


def test_state_that_no_checkpoint_can_hold_is_refused_before_the_first_step():
    for module, said in (
        (
            Unstorable(2, 2),
            "cannot hold its state '_extra_state': a builtins.function",
        ),
        (Forgetful(2, 2), "set_extra_state is not, so it cannot be resumed. Define set_extra"),
    ):
        with pytest.raises(ModelError, match=said):
            climb(module, loss="squared_error", plan="fp32", device="cpu")


def save_two(folder: str):
    """Two runs of one world, each into a folder of its own."""
    made = []
    for seed, name in ((0, "one"), (1, "two")):
        torch.manual_seed(seed)
        taken = climb(nn.Linear(4, 3), loss="squared_error", plan="fp32 ddp", device="cpu")
        taken.save(Path(folder) / name, wait=False)
        made.append(taken)
    for taken in made:
        taken.finish_saving()
    kept = [taken.module.weight.detach().clone() for taken in made]
    for taken, name in zip(made, ("one", "two")):
        taken.module.weight.data.zero_()
        taken.load(Path(folder) / name)
    same = [torch.equal(t.module.weight, weight) for t, weight in zip(made, kept)]
    return same, [taken.saver.token for taken in made]


def test_two_runs_of_one_world_save_apart(tmp_path):
    for same, (one, two) in run(save_two, 2, str(tmp_path), init=False):
        assert same == [True, True] and one != two


def save_what_one_rank_cannot(folder: str):
    torch.manual_seed(0)
    taken = climb(
        Keeping(dense=False), loss="squared_error", optimizer="sgd lr=0.1", plan="fp32 ddp",
        device="cpu",
    )  # fmt: skip
    taken.save(folder, wait=False)
    taken.finish_saving()
    taken.step((torch.randn(ROWS, WIDTH), torch.randn(ROWS, 3)), rows="global").read()
    if taken.world.place.rank == 1:
        taken.module.log.append(object())
    taken.save(folder, wait=False)
    taken.saver.finish(taken.events)
    try:
        taken.save(folder)
    except StepladderError as refused:
        return taken.events, str(refused), sorted(p.name for p in Path(folder).iterdir())
    return taken.events, "", []


def test_a_save_that_one_rank_cannot_make_is_an_event_on_all_at_once(tmp_path):
    found = run(save_what_one_rank_cannot, 2, str(tmp_path), init=False, timeout_seconds=60)
    for events, refused, left in found:
        (event,) = unexpected(events)
        assert event.startswith("save failed: ")
        assert "a checkpoint cannot hold its state '_extra_state': a builtins.object" in refused
        assert left == ["latest", "step-000000"]


class Choosy(nn.Linear):
    def get_extra_state(self):
        return {"scale": 1.0}

    def set_extra_state(self, state):
        state["shift"]


def test_extra_state_that_the_module_does_not_take_is_an_error_of_one_line(tmp_path):
    taken = climb(Choosy(2, 2), loss="squared_error", plan="fp32", device="cpu")
    taken.save(tmp_path)
    with pytest.raises(RecordError) as raised:
        taken.load(tmp_path)
    assert str(raised.value) == (
        "checkpoint: it could not be loaded (KeyError: 'shift'). "
        "Mend that, or use an older checkpoint."
    )


def test_a_quantised_buffer_is_refused_before_the_first_step():
    module = nn.Linear(2, 2)
    module.register_buffer("codes", torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))
    with pytest.raises(ModelError, match="cannot hold its state 'codes': a tensor of torch.qint8"):
        climb(module, loss="squared_error", plan="fp32", device="cpu")
