"""A checkpoint is whole or absent, and a run resumed from it is the run that was not stopped."""

import random
import shutil
import threading

import numpy as np
import pytest
import torch

from stepladder.errors import RecordError
from stepladder.train import climb
from tests.train.toys import gpt, net, pairs, ragged, same_bits

PLANS = [
    ("fp32 micro=4", "adamw lr=0.01 wd=0.1 clip=1"),
    ("fp16 micro=4", "adamw lr=0.01"),
    ("bf16", "sgd lr=0.1 momentum=0.9"),
    ("bf16-pure", "adamw lr=0.01"),
    ("fp32", "adafactor lr=0.01"),
    ("fp32", "sgd lr=0.5"),
]


def start(plan, optimizer, module=None):
    module = gpt(dropout=0.3) if module is None else module
    return climb(
        module, loss="cross_entropy", optimizer=optimizer, plan=plan,
        rate="cosine warmup=2 steps=10",
    )  # fmt: skip


@pytest.mark.parametrize(("plan", "optimizer"), PLANS)
def test_a_resumed_run_is_bit_for_bit_the_run_that_never_stopped(tmp_path, plan, optimizer):
    batches = ragged(8)
    whole = start(plan, optimizer)
    straight = [whole.step(batch).loss for batch in batches]

    first = start(plan, optimizer)
    before = [first.step(batch).loss for batch in batches[:4]]
    saved = first.save(tmp_path)
    second = start(plan, optimizer, gpt(seed=9, dropout=0.3))
    assert second.load(tmp_path) == saved
    after = [second.step(batch).loss for batch in batches[4:]]

    assert before + after == straight
    assert same_bits(whole.module, second.module)
    assert (second.index, second.position) == (8, 8 * 12)


def test_the_data_goes_on_where_it_stopped(tmp_path):
    source = torch.arange(50)

    def seen(run, steps):
        with run.batches(list(source), size=8, seed=3) as feed:
            return [next(feed).inputs.tolist() for _ in range(steps)]

    run = start("fp32", "sgd lr=0.1", net())
    whole = seen(run, 9)
    run.position, run.index = 4 * 8, 4
    run.save(tmp_path)
    resumed = start("fp32", "sgd lr=0.1", net())
    resumed.load(tmp_path)
    assert seen(resumed, 5) == whole[4:]


def test_a_tied_matrix_is_stored_once_and_stays_tied(tmp_path):
    run = start("fp32", "sgd lr=0.1")
    run.step(ragged(1)[0])
    saved = run.save(tmp_path)
    from safetensors import safe_open

    with safe_open(saved / "model-00000.safetensors", "pt") as file:
        names = set(file.keys())
    assert "embedding.weight" in names and "head.weight" not in names
    other = start("fp32", "sgd lr=0.1", gpt(seed=9, dropout=0.3))
    other.load(tmp_path)
    assert other.module.head.weight is other.module.embedding.weight
    assert same_bits(run.module, other.module)


def test_the_newest_two_stay_and_latest_names_the_newest(tmp_path):
    run = start("fp32", "sgd lr=0.1", net())
    for batch in pairs(4):
        run.step(batch)
        run.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "latest", "step-000003", "step-000004"
    ]  # fmt: skip
    assert (tmp_path / "latest").read_text() == "step-000004\n"


def test_what_a_killed_save_left_is_neither_loaded_nor_in_the_way(tmp_path):
    run = start("fp32", "sgd lr=0.1", net())
    run.save(tmp_path)
    run.step(pairs(1)[0])
    torn = tmp_path / ".step-000001.partial"
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(b"half")
    other = start("fp32", "sgd lr=0.1", net())
    assert other.load(tmp_path).name == "step-000000"
    assert run.save(tmp_path).name == "step-000001"
    assert not torn.exists()


@pytest.mark.parametrize("name", ["model-00000.safetensors", "optimizer-00000.safetensors"])
@pytest.mark.parametrize("harm", ["flip", "truncate", "delete"])
def test_a_damaged_file_is_named_and_nothing_is_loaded(tmp_path, name, harm):
    run = start("fp32", "adamw lr=0.1", net())
    run.step(pairs(1)[0])
    path = run.save(tmp_path) / name
    data = bytearray(path.read_bytes())
    if harm == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif harm == "truncate":
        path.write_bytes(data[:-1])
    else:
        path.unlink()
    module, before = net(seed=5), net(seed=5)
    other = start("fp32", "adamw lr=0.1", module)
    with pytest.raises(RecordError) as raised:
        other.load(tmp_path)
    assert name in str(raised.value) and "Use an older checkpoint." in str(raised.value)
    said = {
        "flip": "is not what was written",
        "truncate": "were written",
        "delete": "cannot be read (No such file or directory)",
    }
    assert said[harm] in str(raised.value)
    assert same_bits(module, before)


def test_a_foreign_checkpoint_names_what_differs(tmp_path):
    start("fp32", "sgd lr=0.1", net()).save(tmp_path)
    with pytest.raises(
        RecordError, match="is of another model: '.*' is absent there and .* here. Build"
    ):
        start("fp32", "sgd lr=0.1").load(tmp_path)
    with pytest.raises(RecordError, match="'first.bias' is .32,. there and .64,. here"):
        start("fp32", "sgd lr=0.1", net(width=32)).load(tmp_path)


def test_a_folder_without_a_checkpoint_says_so(tmp_path):
    with pytest.raises(RecordError, match="holds none. Name a folder that a run saved to."):
        start("fp32", "sgd lr=0.1", net()).load(tmp_path)


def test_a_folder_that_cannot_be_written_says_so_and_keeps_the_older(tmp_path):
    run = start("fp32", "sgd lr=0.1", net())
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RecordError) as raised:
        run.save(tmp_path / "file" / "run")
    assert "cannot be written (Not a directory)" in str(raised.value)
    assert "older checkpoints are untouched" in str(raised.value)


def test_the_last_good_one_is_used_where_the_newest_is_damaged_and_the_run_says_so(tmp_path):
    run = start("fp32", "adamw lr=0.1", net())
    batches = pairs(4)
    straight = [run.step(batch).loss for batch in batches[:2]]
    run.save(tmp_path)
    straight += [run.step(batch).loss for batch in batches[2:]]
    newest = run.save(tmp_path)
    (newest / "model-00000.safetensors").write_bytes(b"")
    other = start("fp32", "adamw lr=0.1", net(seed=5))
    assert other.load(tmp_path).name == "step-000002"
    (event,) = other.events
    assert "step-000004/model-00000.safetensors has 0 bytes" in event
    assert event.endswith("Going on from step-000002.")
    assert [other.step(batch).loss for batch in batches[2:]] == straight[2:]


def test_a_save_in_the_background_holds_the_moment_it_was_asked_for(tmp_path):
    run = start("fp32", "adamw lr=0.1", net())
    batches = pairs(12)
    losses = []
    for step, batch in enumerate(batches):
        losses.append(run.step(batch).loss)
        if step in (3, 7):
            run.save(tmp_path, wait=False)
    run.finish_saving()
    for name, step in (("step-000004", 4), ("step-000008", 8)):
        other = start("fp32", "adamw lr=0.1", net(seed=5))
        other.load(tmp_path / name)
        assert [other.step(batch).loss for batch in batches[step:]] == losses[step:]


def test_an_update_waits_for_what_a_save_has_not_copied_yet(tmp_path, monkeypatch):
    """The copy is kept from starting until the update has been waiting for it."""
    from stepladder.train.checkpointing.async_copy import Copying

    finish, hold, waiting = Copying.finish, Copying.hold, threading.Event()

    def late(copying):
        assert waiting.wait(100)
        finish(copying)

    def noticed(copying):
        waiting.set()
        hold(copying)

    monkeypatch.setattr(Copying, "finish", late)
    monkeypatch.setattr(Copying, "hold", noticed)
    run = start("fp32", "adamw lr=0.1", net())
    batches = pairs(6)
    losses = [run.step(batch).loss for batch in batches[:3]]
    run.save(tmp_path, wait=False)
    losses += [run.step(batch).loss for batch in batches[3:]]
    run.finish_saving()
    other = start("fp32", "adamw lr=0.1", net(seed=5))
    other.load(tmp_path)
    assert [other.step(batch).loss for batch in batches[3:]] == losses[3:]


def test_buffers_are_kept_as_they_were_when_asked_though_passes_change_them(tmp_path, monkeypatch):
    from stepladder.train.checkpointing.async_copy import Copying

    finish, passed = Copying.finish, threading.Event()

    def late(copying):
        assert passed.wait(100)
        finish(copying)

    monkeypatch.setattr(Copying, "finish", late)
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 5))
    run = start("fp32", "sgd lr=0.1", module)
    inputs, targets = pairs(1)[0]
    run.step((inputs, targets))
    before = module[0].running_mean.clone()
    run.save(tmp_path, wait=False)
    module(inputs)  # a pass, and no update
    passed.set()
    run.finish_saving()
    assert not torch.equal(before, module[0].running_mean)
    run.load(tmp_path)
    assert torch.equal(before, module[0].running_mean)


def test_a_save_in_the_background_that_fails_is_an_event_and_training_goes_on(tmp_path):
    run = start("fp32", "sgd lr=0.1", net())
    good = run.save(tmp_path)
    (tmp_path / "file").write_text("in the way")
    run.step(pairs(1)[0])
    run.save(tmp_path / "file" / "run", wait=False)
    run.step(pairs(1)[0]).read()
    run.save(tmp_path, wait=False)
    run.finish_saving()
    (event,) = run.events
    assert event.startswith("save failed: checkpoint: ") and "Not a directory" in event
    assert good.exists() and (tmp_path / "step-000002" / "committed").exists()


def test_no_memory_for_the_copy_costs_that_checkpoint_only(tmp_path, monkeypatch):
    import stepladder.train.checkpointing.snapshot as snapshot

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore.")

    run = start("fp32", "sgd lr=0.1", net())
    monkeypatch.setattr(snapshot, "place_for", full)
    run.save(tmp_path, wait=False)
    run.step(pairs(1)[0]).read()
    monkeypatch.undo()
    run.save(tmp_path, wait=False)
    run.finish_saving()
    (event,) = run.events
    assert (
        "step-000000 cannot be written (CUDA out of memory. Tried to allocate 2.00 GiB.)" in event
    )
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-000001"]


def test_generators_of_python_and_numpy_go_on_too(tmp_path):
    run = start("fp32", "sgd lr=0.1", net())
    random.random(), np.random.rand()
    run.save(tmp_path)
    expected = random.random(), np.random.rand()
    random.seed(5), np.random.seed(5)
    start("fp32", "sgd lr=0.1", net()).load(tmp_path)
    assert (random.random(), np.random.rand()) == expected


def test_latest_is_for_people_and_cannot_lead_out_of_the_folder(tmp_path):
    run = start("fp32", "sgd lr=0.1", net())
    elsewhere = run.save(tmp_path / "elsewhere")
    inside = tmp_path / "run"
    shutil.copytree(elsewhere, inside / "step-000000")
    (inside / "latest").write_text("../elsewhere/step-000000")
    assert run.load(inside) == inside / "step-000000"


@pytest.mark.parametrize("given", [None, 3, ""])
def test_what_is_no_path_is_refused(given):
    run = climb(net(), loss="cross_entropy", plan="fp32", device="cpu")
    open_journal = lambda folder: run.open_journal(folder).__enter__()  # noqa: E731
    for act in (run.save, run.load, run.resume, open_journal):
        with pytest.raises(RecordError, match="folder: .* is no path. Name a folder, such as"):
            act(given)


def test_a_file_is_nothing_to_resume_from(tmp_path):
    (tmp_path / "file").write_text("")
    run = climb(net(), loss="cross_entropy", plan="fp32", device="cpu")
    for act in (run.load, run.resume):
        with pytest.raises(RecordError, match="checkpoint: .*file is a file. Name a folder."):
            act(tmp_path / "file")
