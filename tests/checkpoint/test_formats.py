"""Checkpoints of other installations: read where they can be proven, else refused in a line."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from stepladder.checkpoint import hash_bytes, read_manifest, verify_checkpoint
from stepladder.checkpoint import hashing as digest
from stepladder.checkpoint.hashing import BLAKE3, SHA256
from stepladder.cli.main import main
from stepladder.errors import RecordError, Unproven
from stepladder.train import climb
from tests.ranks import run as on_ranks

OLD = Path(__file__).parent / "format-2"  # written by the version before BLAKE3
STEP = "step-000002"


def start(plan: str = "fp32"):
    torch.manual_seed(3)
    module = torch.nn.Linear(3, 2)
    return climb(module, loss="squared_error", optimizer="adamw lr=0.1", plan=plan, device="cpu")


@pytest.fixture
def without_blake3(monkeypatch):
    monkeypatch.setattr(digest, "blake3", None)


def hashes_of(path: Path) -> set[str]:
    return {written.hash for written in read_manifest(path).files.values()}


def test_a_checkpoint_of_before_blake3_is_proven_and_loaded(tmp_path):
    folder = shutil.copytree(OLD, tmp_path / "run")
    assert hashes_of(folder / STEP) == {SHA256}
    verify_checkpoint(folder / STEP)
    run = start()
    run.load(folder)
    assert run.index == 2 and run.position == 8
    assert run.module.bias.tolist() == pytest.approx([-0.1172, 0.2578], abs=1e-4)
    run.save(folder)  # and goes on with what is best here
    assert hashes_of(folder / STEP) == {BLAKE3}
    victim = shutil.copytree(OLD, tmp_path / "other") / STEP / "model-00000.safetensors"
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    with pytest.raises(RecordError, match="model-00000.safetensors is not what was written"):
        verify_checkpoint(tmp_path / "other" / STEP)


def test_without_the_package_sha256_is_written_and_read(tmp_path, without_blake3):
    run = start()
    saved = run.save(tmp_path)
    assert hashes_of(saved) == {SHA256}
    verify_checkpoint(saved)
    assert start().load(tmp_path) == saved


def test_without_the_package_a_blake3_checkpoint_is_refused_and_no_older_one_taken(
    tmp_path, monkeypatch, capsys
):
    folder = shutil.copytree(OLD, tmp_path / "run")
    run = start()
    run.load(folder)
    run.step((torch.ones(4, 3), torch.ones(4, 2))).read()
    saved = run.save(folder)
    monkeypatch.setattr(digest, "blake3", None)
    other = start()
    before = other.module.weight.tolist()
    with pytest.raises(Unproven) as raised:
        other.load(folder)
    said = str(raised.value)
    assert "step-000003/model-00000.safetensors was hashed by blake3" in said
    assert "which is not installed here, so nobody can tell whether it is as written" in said
    assert said.endswith("Install it: pip install blake3.") and "\n" not in said
    assert other.module.weight.tolist() == before
    assert main(["checkpoint", "verify", str(saved), "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)["checkpoints"]
    assert not row["whole"] and "pip install blake3" in row["found"]
    assert main(["checkpoint", "convert", str(saved), str(tmp_path / "out")]) == 2
    assert "pip install blake3" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main(["checkpoint", "inspect", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hash"] == "blake3"


def one_rank_lacks_it(folder: str) -> str:
    """Rank 1 cannot prove its share; both must end with a line, and neither wait."""
    run = start("fp32 ddp replicate=2 micro=2")
    kept = digest.blake3
    if run.world.place.rank == 1:
        digest.blake3 = None
    try:
        run.load(folder)
    except Unproven as refused:
        return str(refused)
    finally:
        digest.blake3 = kept
        run.world.close()
    return "loaded"


def test_ranks_agree_where_one_of_them_lacks_the_package(tmp_path):
    start().save(tmp_path)
    said = on_ranks(one_rank_lacks_it, 2, str(tmp_path))
    assert "cannot be proven by another rank" in said[0] and "pip install blake3" in said[1]


def test_a_newer_format_is_no_damage(tmp_path):
    """What an older version than the writer's says; nothing older is taken in its place."""
    folder = shutil.copytree(OLD, tmp_path / "run")
    newer = shutil.copytree(folder / STEP, folder / "step-000009")
    found = json.loads((newer / "manifest.json").read_text()) | {"format": 4}
    text = json.dumps(found)
    (newer / "manifest.json").write_text(text)
    (newer / "committed").write_text(hash_bytes(text.encode(), SHA256) + "\n")
    with pytest.raises(Unproven, match="is of format 4, this version reads 2 to 3"):
        start().load(folder)
