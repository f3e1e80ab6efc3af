"""Only a complete, committed checkpoint counts, and a change to any byte is noticed."""

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from stepladder.checkpoint import (
    CheckpointReader,
    Manifest,
    TensorSlice,
    find_checkpoints,
    folder_locks,
    hash_bytes,
    list_checkpoints,
    read_manifest,
    verify_checkpoint,
)
from stepladder.checkpoint.commit import checkpoint_folder, commit, remove_partial
from stepladder.checkpoint.convert import HuggingfaceFolder
from stepladder.checkpoint.folder_locks import lock_folder, take_turn
from stepladder.checkpoint.hashing import SHA256
from stepladder.checkpoint.manifest import RankFiles, StoredSlice, TensorEntry, merge
from stepladder.checkpoint.safetensors_file import DTYPE_CODES
from stepladder.errors import RecordError
from stepladder.train import climb
from tests.checkpoint.files import write_tensors
from tests.ranks import run as on_ranks

WHOLE = torch.arange(24.0).reshape(4, 6)
STATE = {"step": 5, "position": 40, "seed": 0, "plan": "fp32", "loss_scale": {}, "versions": {}}


def write(root: Path, step: int = 5) -> Path:
    """A checkpoint of one tensor that two ranks own slices of."""
    partial, final = root / ".partial", checkpoint_folder(root, step)
    partial.mkdir(parents=True)
    parts = []
    for rank, rows in enumerate((slice(0, 1), slice(1, 4))):
        name, part = (
            f"model-{rank:05d}.safetensors",
            TensorSlice((rows.start, 0), (rows.stop - rows.start, 6)),
        )
        written = write_tensors(partial / name, {"w": WHOLE[rows]})
        entry = TensorEntry((4, 6), DTYPE_CODES[torch.float32], (StoredSlice(part, name, "w"),))
        parts.append(RankFiles({name: written}, {"model/w": entry}))
    commit(partial, final, merge(parts, {**STATE, "step": step}, 2))
    return final


def test_any_slice_is_assembled_from_the_slices_written(tmp_path):
    path = write(tmp_path)
    with CheckpointReader(path, verify_checkpoint(path)) as reader:
        assert torch.equal(reader.read("model/w"), WHOLE)
        part = torch.empty(3, 2, dtype=torch.float64)
        reader.read_into("model/w", TensorSlice((0, 3), (3, 2)), part)
        assert torch.equal(part, WHOLE[0:3, 3:5].double())


def test_a_tensor_that_is_only_partly_stored_is_refused(tmp_path):
    path = write(tmp_path)
    manifest = verify_checkpoint(path)
    entry = manifest.tensors["model/w"]
    less = Manifest(
        manifest.state,
        manifest.files,
        {"model/w": TensorEntry(entry.shape, "F32", entry.stored[:1])},
    )
    with (
        CheckpointReader(path, less) as reader,
        pytest.raises(RecordError, match="only part of 'model/w'"),
    ):
        reader.read("model/w")


def test_a_folder_counts_only_once_it_is_committed(tmp_path):
    first, second = write(tmp_path, 5), write(tmp_path, 10)
    assert list_checkpoints(tmp_path) == [second, first]
    (second / "committed").unlink()
    assert list_checkpoints(tmp_path) == [first]
    with pytest.raises(RecordError, match="is not a complete checkpoint"):
        read_manifest(second)


def test_a_run_killed_between_commit_and_renaming_lost_nothing(tmp_path):
    first, second = write(tmp_path, 5), write(tmp_path, 10)
    second.rename(tmp_path / ".step-000010.3f9a")  # as a kill leaves it: committed, not yet named
    newest, older = list_checkpoints(tmp_path)
    assert older == first and verify_checkpoint(newest).state["step"] == 10
    write(tmp_path, 15)
    assert [path.name for path in list_checkpoints(tmp_path)][:2] == ["step-000015", newest.name]
    assert first.exists()  # a folder without its name is not one of the two that stay


def test_two_that_look_complete_stay_and_what_is_newer_is_left_alone(tmp_path):
    for step in (5, 10):
        write(tmp_path, step)
    (checkpoint_folder(tmp_path, 10) / "model-00001.safetensors").write_bytes(b"")
    write(tmp_path, 15)
    names = [path.name for path in list_checkpoints(tmp_path)]
    assert names == ["step-000015", "step-000010", "step-000005"]
    write(tmp_path, 12)  # a run that went back
    names = [path.name for path in list_checkpoints(tmp_path)]
    assert names == ["step-000015", "step-000012", "step-000010", "step-000005"]
    write(tmp_path, 16)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-000016", "step-000015"]


def test_a_checkpoint_written_again_is_never_absent(tmp_path, monkeypatch):
    """Killed at any of the renames, the step is still there, old or new."""
    write(tmp_path, 5)
    renames = Path.rename
    seen = []

    def watched(path, target):
        seen.append(
            [verify_checkpoint(found).state["step"] for found in list_checkpoints(tmp_path)]
        )
        return renames(path, target)

    monkeypatch.setattr(Path, "rename", watched)
    write(tmp_path, 5)
    assert len(seen) == 4 and all(5 in steps for steps in seen)


def rewrite(path: Path, change) -> None:
    """A manifest as an attacker would write it, with the right hash."""
    found = json.loads((path / "manifest.json").read_text())
    change(found)
    text = json.dumps(found)
    (path / "manifest.json").write_text(text)
    (path / "committed").write_text(hash_bytes(text.encode(), SHA256) + "\n")


def escape(found):
    found["files"]["../../secret"] = found["files"].pop("model-00000.safetensors")


def elsewhere(found):
    found["tensors"]["model/w"]["stored"][0][2] = "/etc/passwd"


def outside(found):
    found["tensors"]["model/w"]["stored"][0][0] = [2, 0]
    found["tensors"]["model/w"]["stored"][0][1] = [9, 6]


def negative(found):
    found["state"]["position"] = -1


def other_format(found):
    found["format"] = 99


def older_format(found):
    found["format"] = 1


def other_hash(found):
    found["files"]["model-00000.safetensors"]["hash"] = "crc32"


def hash_of_another_kind(found):
    found["files"]["model-00000.safetensors"]["hash"] = SHA256


def no_text(found):
    found["files"]["model-00000.safetensors"]["hash"] = [3]


def no_numbers(found):
    found["tensors"]["model/w"]["shape"] = ["4", None]


HARMFUL = [
    (escape, "leads out of the folder"),
    (elsewhere, "is not among its files"),
    (outside, "a slice exceeds its tensor"),
    (negative, "-1 is not a whole number"),
    (other_format, "is of format 99, this version reads 2 to 3. Install the stepladder that"),
    (older_format, "format 1, this version reads 2 to 3"),
    (other_hash, "'crc32' is not a hash; known are blake3, sha256"),
    (hash_of_another_kind, "model-00000.safetensors is not what was written"),
    (no_text, "[3] is not a hash"),
    (no_numbers, "is not a whole number"),
]


@pytest.mark.parametrize(("change", "message"), HARMFUL)
def test_a_malicious_manifest_is_refused(tmp_path, change, message):
    path = write(tmp_path)
    rewrite(path, change)
    with pytest.raises(RecordError) as raised:
        verify_checkpoint(path)
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["manifest.json", "committed", "model-00000.safetensors"])
def test_a_pipe_in_a_files_place_is_named_and_not_waited_for(tmp_path, name):
    path = write(tmp_path)
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(RecordError, match=f"{name} is not a file"):
        verify_checkpoint(path)


def test_a_checkpoint_can_be_copied_anywhere(tmp_path):
    path = shutil.copytree(write(tmp_path / "here"), tmp_path / "there" / "mine")
    assert verify_checkpoint(Path(path)).state["step"] == 5


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin", "__0_0.distcp", ".metadata"])
def test_a_pickle_is_refused_by_name_and_never_opened(tmp_path, name):
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    for read in (lambda: list(find_checkpoints(tmp_path)), lambda: HuggingfaceFolder(tmp_path)):
        with pytest.raises(RecordError) as raised:
            read()
        assert f"{tmp_path / name} is a pickle" in str(raised.value)
    with pytest.raises(RecordError, match="is a pickle"):
        list(find_checkpoints(tmp_path / name))


def save_often(folder):
    """Twelve saves of a run that knows of no other rank; what went wrong with them."""
    rank = os.environ["RANK"]
    for word in [word for word in os.environ if word.startswith(("MASTER_", "RANK", "LOCAL_R"))]:
        del os.environ[word]
    del os.environ["WORLD_SIZE"]
    torch.manual_seed(int(rank))
    run = climb(torch.nn.Linear(4, 2), loss="squared_error", plan="fp32", device="cpu")
    for index in range(12):
        run.index = index
        run.save(folder, wait=bool(index % 2))
    run.saver.finish(run.events)
    return run.events


def test_two_processes_that_save_into_one_folder_take_turns(tmp_path):
    for events in on_ranks(save_often, 2, str(tmp_path), init=False):
        assert len(events) <= 1 and all("another run saves into" in event for event in events)
    kept = list_checkpoints(tmp_path)
    assert [path.name for path in kept] == ["step-000011", "step-000010"]
    for path in kept:
        verify_checkpoint(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-000010", "step-000011"]


def test_what_another_process_is_writing_is_not_abandoned(tmp_path):
    for name in (".step-000001.mine", ".step-000002.left"):
        (tmp_path / name).mkdir()
    with lock_folder(tmp_path / ".step-000001.mine", shared=True):
        remove_partial(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [".step-000001.mine"]
    remove_partial(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("moment", ["before it is opened", "before it is locked"])
def test_a_folder_deleted_before_it_is_locked_is_made_again(tmp_path, monkeypatch, moment):
    folder, take_lock, left = tmp_path / ".step-000001.mine", folder_locks.take_lock, [1]

    def delete_once():
        if left:
            left.pop()
            folder.rmdir()

    @contextmanager
    def lock_after_another(path, **how):
        if moment == "before it is opened":
            delete_once()
        with lock_folder(path, **how) as taken:
            yield taken

    def take_after_another(*how):
        delete_once()
        return take_lock(*how)

    monkeypatch.setattr(folder_locks, "lock_folder", lock_after_another)
    if moment == "before it is locked":
        monkeypatch.setattr(folder_locks, "take_lock", take_after_another)
    with folder_locks.make_folder_locked(folder):
        assert not left and folder.is_dir()
        with lock_folder(folder, wait_seconds=0) as taken:
            assert not taken


def test_a_folder_that_stays_locked_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_locks, "WAIT_SECONDS", 0.0)
    with lock_folder(tmp_path), pytest.raises(RecordError) as raised:
        with folder_locks.lock_folder(tmp_path, wait_seconds=0) as taken:
            assert not taken
        with take_turn(tmp_path):
            raise AssertionError
    assert str(raised.value) == (
        f"run folder: {tmp_path} has been locked by another process for "
        "0 s. Save each run into a folder of its own."
    )
