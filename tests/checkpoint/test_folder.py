"""A checkpoint is whole or it does not count; every change to any byte is noticed."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from stepladder.checkpoint import (
    CODES,
    Box,
    Manifest,
    Part,
    Reader,
    Stored,
    Tensors,
    checkpoints,
    commit,
    folder_of,
    hash_bytes,
    merge,
    read_manifest,
    verify,
    write_tensors,
)
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


def harm(path: Path, draw: random.Random) -> str:
    """Damage one file of a checkpoint in one way."""
    victim = draw.choice(sorted(path.iterdir()))
    data = bytearray(victim.read_bytes())
    match draw.choice(["flip", "truncate", "delete", "append", "zero", "swap"]):
        case "flip":
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        case "truncate":
            del data[draw.randrange(len(data)) :]
        case "append":
            data += bytes(draw.randrange(1, 9))
        case "zero":
            first = draw.randrange(len(data))
            data[first : first + 8] = bytes(x ^ 0x55 for x in data[first : first + 8])
        case "swap":
            data[:] = draw.randbytes(len(data))
        case "delete":
            victim.unlink()
            return f"{victim.name} deleted"
    victim.write_bytes(data)
    return f"{victim.name} changed"


@pytest.mark.parametrize("seed", range(100))
def test_every_corruption_is_detected(tmp_path, seed):
    path = write(tmp_path)
    verify(path)
    done = harm(path, random.Random(seed))
    try:
        verify(path)
    except RecordError as found:
        assert "\n" not in str(found)
    else:
        pytest.fail(f"{done}, and nobody noticed")


def rewrite(path: Path, change) -> None:
    """A manifest as an attacker would write it, with the right hash."""
    found = json.loads((path / "manifest.json").read_text())
    change(found)
    text = json.dumps(found)
    (path / "manifest.json").write_text(text)
    (path / "committed").write_text(hash_bytes(text.encode()))


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


def no_numbers(found):
    found["tensors"]["model/w"]["shape"] = ["4", None]


HARMFUL = [
    (escape, "leads out of the folder"),
    (elsewhere, "is not among its files"),
    (outside, "a box leaves its tensor"),
    (negative, "-1 is not a whole number"),
    (other_format, "format 99, this version reads 2"),
    (no_numbers, "is not a whole number"),
]


@pytest.mark.parametrize(("change", "said"), HARMFUL)
def test_a_manifest_made_to_harm_is_refused(tmp_path, change, said):
    path = write(tmp_path)
    rewrite(path, change)
    with pytest.raises(RecordError) as raised:
        verify(path)
    assert said in str(raised.value)


def test_a_checkpoint_can_be_copied_anywhere(tmp_path):
    path = shutil.copytree(write(tmp_path / "here"), tmp_path / "there" / "mine")
    assert verify(Path(path)).state["step"] == 5
