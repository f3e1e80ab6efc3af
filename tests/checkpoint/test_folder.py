"""A checkpoint is whole or it does not count; every change to any byte is noticed."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from stepladder.checkpoint import (
    Box,
    Manifest,
    Reader,
    candidates,
    checkpoints,
    hash_bytes,
    read_manifest,
    verify,
)
from stepladder.checkpoint.convert import Huggingface
from stepladder.checkpoint.folder import commit, folder_of
from stepladder.checkpoint.hashing import SHA256
from stepladder.checkpoint.manifest import Part, Stored, Tensors, merge
from stepladder.checkpoint.safetensors_file import CODES, write_tensors
from stepladder.errors import RecordError

WHOLE = torch.arange(24.0).reshape(4, 6)
STATE = {"step": 5, "position": 40, "seed": 0, "plan": "fp32", "loss_scale": {}, "versions": {}}


def write(root: Path, step: int = 5) -> Path:
    """A checkpoint of one tensor that two ranks held."""
    partial, final = root / ".partial", folder_of(root, step)
    partial.mkdir(parents=True)
    parts = []
    for rank, rows in enumerate((slice(0, 1), slice(1, 4))):
        name, box = (
            f"model-{rank:05d}.safetensors",
            Box((rows.start, 0), (rows.stop - rows.start, 6)),
        )
        written = write_tensors(partial / name, {"w": WHOLE[rows]})
        entry = Tensors((4, 6), CODES[torch.float32], (Stored(box, name, "w"),))
        parts.append(Part({name: written}, {"model/w": entry}))
    commit(partial, final, merge(parts, {**STATE, "step": step}, 2))
    return final


def test_any_box_is_put_together_from_what_was_kept(tmp_path):
    path = write(tmp_path)
    with Reader(path, verify(path)) as reader:
        assert torch.equal(reader.whole("model/w"), WHOLE)
        part = torch.empty(3, 2, dtype=torch.float64)
        reader.fill("model/w", Box((0, 3), (3, 2)), part)
        assert torch.equal(part, WHOLE[0:3, 3:5].double())


def test_numbers_that_nobody_kept_are_missed(tmp_path):
    path = write(tmp_path)
    manifest = verify(path)
    entry = manifest.tensors["model/w"]
    less = Manifest(
        manifest.state, manifest.files, {"model/w": Tensors(entry.shape, "F32", entry.stored[:1])}
    )
    with Reader(path, less) as reader, pytest.raises(RecordError, match="only part of 'model/w'"):
        reader.whole("model/w")


def test_a_folder_counts_only_once_it_is_committed(tmp_path):
    first, second = write(tmp_path, 5), write(tmp_path, 10)
    assert checkpoints(tmp_path) == [second, first]
    (second / "committed").unlink()
    assert checkpoints(tmp_path) == [first]
    with pytest.raises(RecordError, match="is not a whole checkpoint"):
        read_manifest(second)


def test_a_run_killed_between_commit_and_renaming_lost_nothing(tmp_path):
    first, second = write(tmp_path, 5), write(tmp_path, 10)
    second.rename(tmp_path / ".step-000010.3f9a")  # as a kill leaves it: committed, not yet named
    newest, older = checkpoints(tmp_path)
    assert older == first and verify(newest).state["step"] == 10
    write(tmp_path, 15)
    assert [path.name for path in checkpoints(tmp_path)][:2] == ["step-000015", newest.name]
    assert first.exists()  # a folder without its name is not one of the two that stay


def test_two_that_look_whole_stay_and_what_is_newer_is_left_alone(tmp_path):
    for step in (5, 10):
        write(tmp_path, step)
    (folder_of(tmp_path, 10) / "model-00001.safetensors").write_bytes(b"")
    write(tmp_path, 15)
    names = [path.name for path in checkpoints(tmp_path)]
    assert names == ["step-000015", "step-000010", "step-000005"]
    write(tmp_path, 12)  # a run that went back
    names = [path.name for path in checkpoints(tmp_path)]
    assert names == ["step-000015", "step-000012", "step-000010", "step-000005"]
    write(tmp_path, 16)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000016", "step-000015"]


def test_a_checkpoint_written_again_is_never_absent(tmp_path, monkeypatch):
    """Killed at any of the renames, the step is still there, old or new."""
    write(tmp_path, 5)
    renames = Path.rename
    seen = []

    def watched(path, target):
        seen.append([verify(found).state["step"] for found in checkpoints(tmp_path)])
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
    (outside, "a box leaves its tensor"),
    (negative, "-1 is not a whole number"),
    (other_format, "is of format 99, this version reads 2 to 3. Install the stepladder that"),
    (older_format, "format 1, this version reads 2 to 3"),
    (other_hash, "'crc32' is not a hash; known are blake3, sha256"),
    (hash_of_another_kind, "model-00000.safetensors is not what was written"),
    (no_text, "[3] is not a hash"),
    (no_numbers, "is not a whole number"),
]


@pytest.mark.parametrize(("change", "said"), HARMFUL)
def test_a_manifest_made_to_harm_is_refused(tmp_path, change, said):
    path = write(tmp_path)
    rewrite(path, change)
    with pytest.raises(RecordError) as raised:
        verify(path)
    assert said in str(raised.value)


@pytest.mark.parametrize("name", ["manifest.json", "committed", "model-00000.safetensors"])
def test_a_pipe_in_a_files_place_is_named_and_not_waited_for(tmp_path, name):
    path = write(tmp_path)
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(RecordError, match=f"{name} is not a file"):
        verify(path)


def test_a_checkpoint_can_be_copied_anywhere(tmp_path):
    path = shutil.copytree(write(tmp_path / "here"), tmp_path / "there" / "mine")
    assert verify(Path(path)).state["step"] == 5


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin", "__0_0.distcp", ".metadata"])
def test_a_pickle_is_refused_by_name_and_never_opened(tmp_path, name):
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    for read in (lambda: list(candidates(tmp_path)), lambda: Huggingface(tmp_path)):
        with pytest.raises(RecordError) as raised:
            read()
        assert f"{tmp_path / name} is of a kind that is pickled" in str(raised.value)
    with pytest.raises(RecordError, match="is of a kind that is pickled"):
        list(candidates(tmp_path / name))
