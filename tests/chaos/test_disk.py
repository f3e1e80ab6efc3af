"""Disks that fill, refuse or vanish under a save: said, survived, and nothing older is lost."""

import shutil
import subprocess

import pytest

from stepladder.checkpoint import list_checkpoints, verify_checkpoint
from stepladder.errors import RecordError
from stepladder.train import climb
from stepladder.train.checkpointing.async_copy import Copying
from tests.ranks import run as on_ranks
from tests.train.toys import net, pairs


@pytest.fixture
def disk(tmp_path):
    """A real file system of its own, made and changed with `disk("size=2m")`."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options: str) -> None:
        again = "remount," if folder.is_mount() else ""
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", again + options, "tmpfs", str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")

    mount.folder = folder
    yield mount
    if folder.is_mount():
        subprocess.run(["umount", "-l", str(folder)], check=True)


def start(width: int = 16):
    return climb(
        net(width=width), loss="cross_entropy", optimizer="adamw lr=0.1", plan="fp32", device="cpu"
    )


def fails_and_goes_on(run, root, said: str, cause) -> None:
    """A good save, then a cause, a save that fails in the background, and steps that go on."""
    batches = pairs(4, width=run.module.first.in_features)
    run.step(batches[0]).read()
    good = run.save(root)
    run.step(batches[1]).read()
    cause()
    run.save(root, wait=False)
    losses = [run.step(batch).loss for batch in batches[2:]]
    assert all(loss == loss for loss in losses)
    with pytest.raises(RecordError, match=said) as raised:
        run.finish_saving()
    assert "\n" not in str(raised.value) and "older checkpoints are untouched" in str(raised.value)
    assert list_checkpoints(root) == [good] and verify_checkpoint(good).state["step"] == 1
    other = start(run.module.first.in_features)
    assert other.load(root) == good


def test_a_disk_without_room_is_seen_before_anything_is_written(disk):
    disk("size=100k")
    run = start(width=48)  # its state takes more than half of that
    fails_and_goes_on(run, disk.folder / "run", "KiB free and this rank writes|MiB free", int)
    assert not list((disk.folder / "run").glob(".step-*"))  # the torn one is gone


def test_a_disk_that_fills_while_a_save_writes(disk):
    disk("size=8m,nr_inodes=16")
    run, root = start(), disk.folder / "run"

    def fill():
        for number in range(4):  # room for bytes there is, and for hardly another file
            (disk.folder / f"other-{number}").touch()

    fails_and_goes_on(run, root, "cannot be written .No space left on device", fill)
    assert not list(root.glob(".step-*"))
    for path in disk.folder.glob("other-*"):
        path.unlink()
    assert run.save(root).name == "step-000004"  # and once there is room, saves succeed again


def test_a_folder_that_becomes_read_only(disk):
    disk("size=8m")
    said = "cannot be written .Read-only file system"
    fails_and_goes_on(start(), disk.folder / "run", said, lambda: disk("ro,size=8m"))


def test_a_path_that_cannot_be_reached(tmp_path):
    run = start()
    (tmp_path / "file").write_text("in the way")
    run.save(tmp_path / "file" / "run", wait=False)
    with pytest.raises(RecordError, match="cannot be written .Not a directory"):
        run.finish_saving()
    with pytest.raises(RecordError, match="cannot be written .File name too long"):
        run.save(tmp_path / ("x" * 300))


def test_a_folder_removed_while_it_is_written(tmp_path, monkeypatch):
    """The half-written folder goes between two of its files; the run's older ones stay."""
    import stepladder.train.checkpointing.save as saving

    write = saving.write_files

    def robbed(files):
        written = write(files)
        shutil.rmtree(next(iter(files)).parent)
        return written

    def rob():
        monkeypatch.setattr(saving, "write_files", robbed)

    fails_and_goes_on(start(), tmp_path, "cannot be written .No such file or directory", rob)


def test_an_older_save_is_never_overtaken(tmp_path, monkeypatch):
    """The second save waits for the first, however late that is; both are whole and in order."""
    finish, begun = Copying.finish, []

    def noted(copying):
        begun.append(sorted(path.name for path in tmp_path.glob("step-*")))
        finish(copying)

    monkeypatch.setattr(Copying, "finish", noted)
    run = start()
    for batch in pairs(3):
        run.step(batch)
        run.save(tmp_path, wait=False)
    run.finish_saving()
    assert begun == [[], ["step-000001"], ["step-000001", "step-000002"]]


def one_disk_full(folders: list[str]):
    """Two ranks, each with a folder of its own; the second's has no room for another file."""
    taken = climb(
        net(), loss="cross_entropy", optimizer="adamw lr=0.1", plan="fp32 zero3", device="cpu"
    )
    rank = taken.world.place.rank
    batches = [(x[rank::2], y[rank::2]) for x, y in pairs(3)]
    taken.step(batches[0], rows="rank").read()
    taken.save(folders[0])
    taken.step(batches[1], rows="rank").read()
    taken.save(folders[rank], wait=False)
    loss = taken.step(batches[2], rows="rank").loss
    taken.saver.finish(taken.events)
    taken.world.close()
    return loss, taken.events


def test_one_rank_that_cannot_write_costs_all_this_save_and_nothing_else(disk, tmp_path):
    disk("size=4m,nr_inodes=2")
    root = tmp_path / "run"
    found = on_ranks(one_disk_full, 2, [str(root), str(disk.folder / "run")])
    assert found[0][0] == found[1][0]
    for _, events in found:
        (said,) = events
        assert said.startswith("save failed: ") and "No space left on device" in said
    (kept,) = list_checkpoints(root)
    assert verify_checkpoint(kept).state["step"] == 1
