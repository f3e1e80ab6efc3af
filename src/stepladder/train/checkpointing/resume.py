"""Going on from a checkpoint: the newest whole one, on these ranks and in this layout.

The ranks share the reading of every byte and agree on what they found, so all go on from the same
checkpoint. Nothing of the run is touched before all of it was found good and of this model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stepladder.checkpoint import CheckpointReader, Manifest, find_checkpoints, read_manifest
from stepladder.checkpoint.groups import list_groups
from stepladder.checkpoint.integrity import check_files
from stepladder.errors import RecordError, StepladderError, Unproven
from stepladder.model.structure import compare_structures
from stepladder.plan import AXES
from stepladder.rungs.experts.expert_calls import remote_experts
from stepladder.rungs.parameter_shards import reshard
from stepladder.train.data_loader.loader_position import KEY
from stepladder.train.data_loader.stream_places import KEY as STREAM_KEY
from stepladder.train.engine import Engine
from stepladder.train.health.nonfinite import Resumed
from stepladder.train.optimizer.compact.compact_adam import CompactAdam
from stepladder.train.optimizer.compact.load_state import names_of_state, read_compact
from stepladder.train.optimizer.error_feedback import set_error_feedback
from stepladder.train.optimizer.group_settings import compare_settings, set_counted
from stepladder.train.optimizer.learning_rates import set_own_rates
from stepladder.train.optimizer.loose_state import set_loose_state
from stepladder.train.optimizer.master_weights import MASTER
from stepladder.train.optimizer.optimizer_state import (
    begin_anew,
    make_state,
    of_this_code,
    set_plain_state,
)

from .own_file import kept_by_rank, set_own_attributes, set_own_generators
from .rank_state import set_rank_state
from .registered_state import load_registered
from .sharded_state import StateShard, model_shapes, state_shards, stored_path

OFFER_SECONDS = 120.0  # for rank 0 to look into the folder


def load(run: Engine, folder: str | Path, *, strict: bool = True) -> Path:
    """Put the run where a checkpoint left off; of a run's folder, its newest that is whole."""
    run.check_weights("load")
    run.hold()
    reshard(run.module)  # else the next pass would use what a pass without a backward gathered
    path, manifest = choose(run, Path(folder))
    with refusing_together(run):
        check_same_model(path, manifest, run)
        check_slices(path, manifest, run)
        said = check_structure(path, manifest, run, strict)
    with CheckpointReader(path, manifest) as reader, refusing_together(run):
        here, taken = places(run, path, manifest)
        masters = begin_anew(run, taken)
        set_plain_state(run, manifest, reader)
        wanted = ((source_of(one, manifest), one.slice, one.tensor) for one in here)
        reader.read_all_into([*wanted, *masters])
        read_compact(run, manifest, reader, taken)
        set_own_generators(run, manifest, reader)
        set_error_feedback(run, manifest, reader)
        run.reading.restore(kept_by_rank(run, manifest, reader, (KEY, STREAM_KEY)))
        messages = set_rank_state(run.climbed, run.world, manifest, reader)
        messages += load_registered(run, manifest, reader)
        messages += set_own_attributes(run, manifest, reader)
    run.climbed.publish()  # a rank that updates slices read only those
    state, trained = manifest.state, run.index > 0
    asked, run.index, run.position = run.seed, state["step"], state["position"]
    if manifest.ranks:  # else no run wrote it, and nothing was drawn yet
        run.seed = state["seed"]
    run.scale.load_state_dict(state["loss_scale"])
    run.health.load_state_dict(state.get("health", {}))
    if run.scheduler is not None:
        run.scheduler.restart(run.index)
    else:
        set_own_rates(run.optimizer, state.get("own_rates", {}), trained=trained)
    if of_this_code(manifest, run):
        set_counted(run.optimizer, state.get("groups", {}))
        set_loose_state(run.optimizer, state.get("loose_state", {}))
    run.statistics = None  # those of before belong to another moment
    run.clock.restart(run.index)
    if run.world.is_rank_zero:
        run.events += [*changes(run, path, state), *said, *messages]
        run.health.resumed = Resumed(path.name, state.get("batch") or 0, run.events)
        if run.seed != asked:
            run.events.append(f"{path.name} was saved with seed {run.seed}, not {asked}: it stays")
        if manifest.names("optimizer") and not taken:
            run.events.append("what that optimizer remembered is of no use to this one: left out")
    return path


@contextmanager
def refusing_together(run: Engine) -> Iterator[None]:
    """A block whose refusal by one rank is raised on every rank: else the others would wait."""
    problem: StepladderError | None = None
    try:
        yield
    except StepladderError as refused:
        problem = refused
    except Exception as failed:  # such as in a module's own set_extra_state
        why = f"it could not be loaded ({type(failed).__name__}: {failed})"
        problem = RecordError("checkpoint", why, "Mend that, or use an older checkpoint.")
        problem.__cause__ = failed
    rank_notes, rank = run.world.notes, run.world.place.rank
    note = f"refused/{rank_notes.store.add(f'loads/{rank}', 1)}"  # how often this rank has loaded
    if problem is not None:
        rank_notes.post_once(note, json.dumps([problem.field, problem.problem, problem.remedy]))
    bad = torch.tensor(float(problem is not None), device=run.world.device)
    if run.world.sum(bad, *AXES).item():
        raise problem or RecordError(*json.loads(rank_notes.read(note, OFFER_SECONDS)))


def places(run: Engine, path: Path, manifest: Manifest) -> tuple[list[StateShard], set[str]]:
    """Where all that is loaded goes, and what of it is the optimizer's."""
    all_here = partial(state_shards, run.climbed, run.optimizer, run.world)
    model = [shard for shard in all_here() if shard.name.startswith(("model/", "loss/"))]
    if isinstance(run.optimizer, CompactAdam):  # whose state is made from what is read
        return model, names_of_state(run, manifest, path)
    taken = make_state(run, manifest, path)
    return model + [shard for shard in all_here() if shard.name in taken], taken


def source_of(shard: StateShard, manifest: Manifest) -> str:
    """Where a tensor is read: a float32 parameter from its master, if one was saved."""
    kind, _, name = shard.name.partition("/")
    master = manifest.tensors.get(full := f"optimizer/{name}/{MASTER}")
    if kind != "model" or master is None or shard.tensor.dtype is not torch.float32:
        return shard.name
    return full if master.shape == manifest.tensors[shard.name].shape else shard.name


def check_slices(path: Path, manifest: Manifest, run: Engine) -> None:
    """Refuse to go on with another number of slices: the bits would not be that run's."""
    saved, here = manifest.state.get("exact", "none"), str(run.plan.exact)
    if saved != here and "none" not in (saved, here):
        problem = f"{path.name} was saved with exact={saved}, and this run has exact={here}"
        remedy = f"Use exact={saved}, or leave exact out to go on with other bits."
        raise RecordError("exact", problem, remedy)


def changes(run: Engine, path: Path, state: Mapping[str, Any]) -> list[str]:
    """How this run learns otherwise than the one that was saved: legal, and never unsaid.

    A warm-up or a decay that nobody named follows the number of steps, which a run is often given
    more of.
    """
    here = {
        "rate": str(run.scheduler or run.rate),
        "optimizer": str(run.plan.optimizer),
        "precision": str(run.plan.precision),
        "exact": str(run.plan.exact),
    }
    said = [
        f"the {what} was '{state[what]}' when {path.name} was saved and is '{now}' now"
        for what, now in here.items()
        if state.get(what, now) != now
    ]
    return said + compare_settings(run.optimizer, state.get("settings"))


def resume(run: Engine, folder: str | Path, *, strict: bool = True) -> Path | None:
    """Go on from a folder's latest checkpoint where it holds one; None where it is yet to begin."""
    return load(run, folder, strict=strict) if offered(run, Path(folder)) else None


def choose(run: Engine, folder: Path) -> tuple[Path, Manifest]:
    """The newest checkpoint that every rank finds whole; why newer ones are not, as events."""
    refused: RecordError | None = None
    offers = offered(run, folder)
    if not offers:
        raise RecordError(
            "checkpoint", f"{folder} holds none", "Name a folder that a run saved to."
        )
    for path in offers:
        manifest, problem = examine(run, path)
        if manifest is not None:
            if refused is not None:
                run.events.append(f"{refused} Going on from {path.name}.")
            return path, manifest
        refused = refused or problem
    assert refused is not None
    raise refused


def offered(run: Engine, folder: Path) -> list[Path]:
    """The checkpoints that rank 0 sees, newest first; none where it sees none.

    One rank looks for all: another machine may see a shared folder as it was a moment ago.
    """
    rank_notes, rank = run.world.notes, run.world.place.rank
    note = f"offered/{rank_notes.store.add(f'offers/{rank}', 1)}"  # how often this rank has asked
    if run.world.is_rank_zero:
        found: dict[str, list[str]] = {"names": []}
        try:
            found["names"] = [str(path.relative_to(folder)) for path in find_checkpoints(folder)]
        except Unproven as unseen:  # what may not be looked at is not nothing: nobody begins anew
            found["refused"] = [unseen.field, unseen.problem, unseen.remedy]
        except RecordError:
            pass
        if folder.is_file():
            found["refused"] = ["checkpoint", f"{folder} is a file", "Name a folder."]
        elif not found["names"] and list_groups(folder):
            problem = f"{folder} holds runs that were saved together"
            found["refused"] = ["checkpoint", problem, "Use resume_together."]
        rank_notes.post(note, json.dumps(found))
    found = json.loads(rank_notes.read(note, OFFER_SECONDS))
    if "refused" in found:
        raise Unproven(*found["refused"])
    return [folder / name for name in found["names"]]


def examine(run: Engine, path: Path) -> tuple[Manifest | None, RecordError]:
    """The manifest, if no rank found anything wrong with its share of the files.

    What a rank has no means to prove is no damage: taking an older one would lose steps.
    """
    problem = RecordError("checkpoint", f"{path} is damaged, as another rank found", "See its log.")
    manifest, bad = None, [0.0, 0.0]  # damaged, unproven
    try:
        manifest = read_manifest(path)
        place = run.world.place
        share = sorted(manifest.files)[place.rank :: place.num_ranks]
        check_files(path, {name: manifest.files[name] for name in share})
    except Unproven as found:
        problem, bad = found, [0.0, 1.0]
    except RecordError as found:
        problem, bad = found, [1.0, 0.0]
    damaged, unproven = run.world.sum(torch.tensor(bad, device=run.world.device), *AXES).tolist()
    if unproven:
        if not isinstance(problem, Unproven):
            what = f"{path} cannot be proven by another rank"
            problem = Unproven("checkpoint", what, "Its log says what it lacks.")
        raise problem
    return (None if damaged else manifest), problem


def check_same_model(path: Path, manifest: Manifest, run: Engine) -> None:
    """Refuse another model's checkpoint before any of it is copied."""
    saved: dict[str, Any] = {name: entry.shape for name, entry in manifest.tensors.items()}
    names = set(expected := model_shapes(run.climbed))
    if run.world.layout.pipeline == 1:  # a stage needs only its own
        apart = remote_experts(run.module)  # as a rank does only its own experts
        elsewhere = tuple([f"{stored_path(name, run.climbed)}." for name in apart])
        names |= {n for n in saved if n.startswith("model/") and not n.startswith(elsewhere)}
    for name in sorted(names):
        if (there := saved.get(name, "absent")) != (wanted := expected.get(name, "absent")):
            shown = name.removeprefix("model/").replace("/", ".")
            problem = f"{path} is of another model: '{shown}' is {there} there and {wanted} here"
            raise RecordError("checkpoint", problem, "Build the same model.")


def check_structure(path: Path, manifest: Manifest, run: Engine, strict: bool) -> list[str]:
    """Refuse a model of the same shapes that computes something else; what else is set otherwise.

    Not strict: all that differs is only reported.
    """
    saved = manifest.state.get("structure")
    if not saved:  # of before it was stored, or converted from a model alone
        return []
    other, said = compare_structures(saved, run.climbed.structure)
    if other and strict:
        raise RecordError(
            "checkpoint",
            f"{path} is of another model: {other[0]}",
            "Build the same model; if it is another on purpose, load it with strict=False.",
        )
    differing = [*other, *said]
    more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
    return [f"settings differ from {path.name}: {differing[0]}{more}"] if differing else []
