"""What an optimizer remembers goes on with its own kind, and begins anew with any other."""

import json
import shutil

import pytest
import torch

from stepladder.checkpoint import TensorSource, hash_bytes, write_checkpoint
from stepladder.checkpoint.hashing import SHA256
from stepladder.errors import RecordError
from stepladder.train import climb

BATCH = torch.ones(4, 3), torch.ones(4, 2)
KINDS = ["sgd lr=0.1", "momentum lr=0.1", "adamw lr=0.1", "adafactor lr=0.1", "muon lr=0.1"]


def start(optimizer: str, seed: int = 0, plan: str = "fp32", width: int = 4):
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Linear(width, 2))
    return climb(module, loss="squared_error", optimizer=optimizer, plan=plan, device="cpu")


def numbers(run) -> list[list[float]]:
    return [parameter.detach().flatten().tolist() for parameter in run.module.parameters()]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    for kind in KINDS:
        run = start(kind)
        run.step(BATCH).read()
        run.save(root / kind.split()[0])
    return root


@pytest.mark.parametrize("now", KINDS)
@pytest.mark.parametrize("then", KINDS)
def test_any_optimizer_goes_on_from_any_other(saved, then, now):
    """As a fresh one would from the same numbers; only its own kind's memory is taken over."""
    run, fresh = start(now, 1), start(now, 1)
    run.load(saved / then.split()[0])
    with torch.no_grad():
        for mine, theirs in zip(fresh.module.parameters(), run.module.parameters()):
            mine.copy_(theirs)
    alone = numbers(fresh)
    for one in (run, fresh):
        one.step(BATCH).read()
    told = any("remembered is of no use to this one" in event for event in run.events)
    assert told == (then != now and not then.startswith("sgd"))
    if then != now or now.startswith("sgd"):
        assert numbers(run) == numbers(fresh) != alone
    else:
        assert numbers(run) != numbers(fresh)


@pytest.mark.parametrize("kind", [*KINDS[1:], "adamw lr=0.1 master"])
def test_a_resumed_run_saves_the_same_files_to_the_last_byte(tmp_path, kind):
    plan = "bf16-master" if kind.endswith("master") else "fp32"
    whole = start(kind.removesuffix(" master"), 0, plan)
    whole.step(BATCH).read()
    whole.save(tmp_path / "half")
    whole.step(BATCH).read()
    again = start(kind.removesuffix(" master"), 1, plan)
    again.load(tmp_path / "half")
    again.step(BATCH).read()
    ends = [run.save(tmp_path / name) for name, run in (("whole", whole), ("again", again))]
    for name in ("model-00000.safetensors", "optimizer-00000.safetensors"):
        assert (ends[0] / name).read_bytes() == (ends[1] / name).read_bytes(), name


def test_going_back_to_before_the_first_step_forgets_what_came_after(tmp_path):
    run = start("adamw lr=0.1")
    run.save(tmp_path)
    losses = []
    for _ in range(2):
        run.load(tmp_path)
        losses.append([run.step(BATCH).loss for _ in range(3)])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("with_state", [False, True])
def test_masters_begin_as_the_parameters_that_were_loaded(tmp_path, with_state):
    """The first step would else write the numbers of before the load over them."""
    source = start("adamw lr=1e-6", 3)
    if with_state:
        source.step(BATCH).read()
        source.save(tmp_path)
    else:
        state = {"step": 0, "position": 0, "seed": 0, "loss_scale": {}}
        tensors = [TensorSource.of(n, p.detach()) for n, p in source.module.named_parameters()]
        write_checkpoint(tensors, tmp_path, state, 2**30)
    run = start("adamw lr=1e-6", 4, "bf16-master")
    run.load(tmp_path)
    wanted = [parameter.detach().clone() for parameter in source.module.parameters()]
    masters = [run.optimizer.state[p]["master"] for p in run.module.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(masters, wanted)), "not the rounded ones"
    run.step(BATCH).read()
    moved = [(p.detach().float() - w).abs().max() for p, w in zip(run.module.parameters(), wanted)]
    assert max(moved) < 0.01


def tampered(root, folder, change):
    path = shutil.copytree(root, folder) / "step-000001"
    found = json.loads((path / "manifest.json").read_text())
    change(found["tensors"])
    text = json.dumps(found)
    (path / "manifest.json").write_text(text)
    (path / "committed").write_text(hash_bytes(text.encode(), SHA256) + "\n")
    return folder


def lose(tensors):
    del tensors["optimizer/0.weight/exp_avg_sq"]


def shrink(tensors):
    tensors["optimizer/0.weight/exp_avg"]["shape"] = [1, 1]
    tensors["optimizer/0.weight/exp_avg"]["stored"][0][1] = [1, 1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lose, "only part of what the optimizer knew of '0.weight': no exp_avg_sq"),
        (shrink, "'0.weight/exp_avg' is (1, 1) there and its parameter (4, 3) here"),
    ],
)
def test_a_memory_with_a_hole_or_of_another_shape_is_refused_and_nothing_touched(
    tmp_path, saved, change, said
):
    run = start("adamw lr=0.1", 1)
    run.step(BATCH).read()
    state = {p: dict(kept) for p, kept in run.optimizer.state.items()}
    before = numbers(run)
    with pytest.raises(RecordError) as raised:
        run.load(tampered(saved / "adamw", tmp_path / "bad", change))
    assert said in str(raised.value)
    assert numbers(run) == before
    assert {p: dict(kept) for p, kept in run.optimizer.state.items()} == state


def test_another_model_is_refused_and_nothing_touched(saved):
    run = start("adamw lr=0.1", 1, width=6)
    run.step(BATCH).read()
    kept = {p: state["exp_avg"].clone() for p, state in run.optimizer.state.items()}
    with pytest.raises(RecordError, match="is of another model: '0.bias' is "):
        run.load(saved / "adamw")
    now = run.optimizer.state
    assert now.keys() == kept.keys() and all(torch.equal(now[p]["exp_avg"], kept[p]) for p in kept)
