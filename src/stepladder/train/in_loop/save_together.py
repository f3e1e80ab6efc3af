"""Several runs in one checkpoint, such as a generator's and its critic's: all of them, or none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from stepladder.checkpoint.find import list_checkpoints
from stepladder.checkpoint.folder_locks import lock_folder
from stepladder.checkpoint.groups import begin_group, commit_group, list_groups, read_members
from stepladder.errors import PlanError, RecordError, StepladderError, Unproven
from stepladder.train.checkpointing.resume import check_same_model, examine, refusing_together
from stepladder.train.run import Run

WAIT_SECONDS = 1800.0  # for rank 0 to have looked, or to have committed


def save_together(folder: str | Path, /, **runs: Run) -> Path:
    """Save several runs as one checkpoint, `folder/together-NNNNNN`; every rank calls it.

    A process that is killed while it saves leaves the checkpoint before as it was: no run is ever
    newer than the others. The newest two are kept. Each run's part is a checkpoint as any other.

    Args:
        runs: what `climb` returned, each by a name that it keeps: `generator=run, critic=other`.

    >>> import tempfile, torch, stepladder as sl
    >>> from stepladder.train import resume_together, save_together
    >>> how = {"loss": "squared_error", "plan": "fp32", "device": "cpu"}
    >>> actor, critic = (sl.climb(torch.nn.Linear(4, 1), **how) for _ in range(2))
    >>> report = critic.step((torch.randn(8, 4), torch.randn(8)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = save_together(folder, actor=actor, critic=critic)
    ...     resumed = resume_together(folder, actor=actor, critic=critic)
    >>> saved.name, resumed == saved
    ('together-000001', True)
    """
    first, root = check_runs(runs), Path(folder)
    partial = Path(on_rank_zero(first, root, lambda: str(begin_group(root))))
    with ExitStack() as writing:
        # Until the end: another process takes it for abandoned otherwise.
        writing.enter_context(lock_folder(partial, shared=True))
        try:
            members = {name: run.save(partial / name).name for name, run in runs.items()}
        except Exception:
            if first.world.is_rank_zero:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        return Path(on_rank_zero(first, root, lambda: str(commit_group(partial, members))))


def resume_together(folder: str | Path, /, **runs: Run) -> Path | None:
    """Go on from the newest whole checkpoint of `save_together`; where there is none, begin: None.

    Every rank calls it. No run is changed before all of them were found good and of these models.

    Args:
        runs: by the names they were saved with.

    >>> import tempfile, torch, stepladder as sl
    >>> from stepladder.train import resume_together
    >>> run = sl.climb(torch.nn.Linear(4, 1), loss="squared_error", plan="fp32", device="cpu")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(resume_together(folder, actor=run))
    None
    """
    first, root = check_runs(runs), Path(folder)
    groups = json.loads(on_rank_zero(first, root, lambda: json.dumps(names_of(root))))
    refused: RecordError | None = None
    for name in groups:
        try:
            parts = find_parts(first, root / name, runs)
        except Unproven:  # no damage: taking an older one would lose steps
            raise
        except RecordError as damaged:
            refused = refused or damaged
            continue
        if refused is not None:
            first.events.append(f"{refused} Going on from {name}.")
        for run, path in parts:
            run.load(path)
        return root / name
    if refused is not None:
        raise refused
    return None


def names_of(root: Path) -> list[str]:
    groups = [path.name for path in list_groups(root)]
    if not groups and list_checkpoints(root):
        problem = f"{root} holds checkpoints of one run"
        raise RecordError("checkpoint", problem, "Use its resume, or name another folder.")
    return groups


def find_parts(first: Run, group: Path, runs: Mapping[str, Run]) -> list[tuple[Run, Path]]:
    """Each run's checkpoint in a group, whole and of its model."""
    members = json.loads(on_rank_zero(first, group, lambda: json.dumps(read_members(group))))
    if set(members) != set(runs):
        raise PlanError(
            "runs",
            f"{group} holds {', '.join(members)}, and {', '.join(runs)} go on from it",
            "Name them as they were saved.",
        )
    parts = [(run, group / name / members[name]) for name, run in runs.items()]
    manifests = []
    for run, path in parts:
        manifest, problem = examine(run, path)
        if manifest is None:
            raise problem
        manifests.append(manifest)
    for (run, path), manifest in zip(parts, manifests):
        try:
            with refusing_together(run):
                check_same_model(path, manifest, run)
        except RecordError as other:  # no damage: an older one is of that model too
            raise PlanError(other.field, other.problem, other.remedy) from other
    return parts


def check_runs(runs: Mapping[str, Run]) -> Run:
    """The first run; refused where one is none."""
    for name, run in runs.items():
        if not hasattr(run, "saver"):
            problem = f"a {type(run).__name__} is not a run"
            raise PlanError(name, problem, "Give what sl.climb returned.")
        if not name.isidentifier():  # it becomes a folder's
            problem = f"{name!r} cannot be the name of a run"
            raise PlanError("runs", problem, "Use letters, digits and _: generator=run.")
    if len(set(map(id, runs.values()))) < max(len(runs), 1):
        problem = f"{len(runs)} names for {len(set(map(id, runs.values())))} runs"
        raise PlanError("runs", problem, "Name each run once: generator=run, critic=other.")
    return next(iter(runs.values()))


def on_rank_zero(run: Run, root: Path, act: Callable[[], str]) -> str:
    """What rank 0 comes to, on every rank; where it is refused, all are."""
    notes, rank = run.world.notes, run.world.place.rank
    asked = notes.store.add(f"together-asked/{rank}", 1)  # how often this rank has
    note = f"together/{asked}"
    if run.world.is_rank_zero:
        try:
            answer = {"found": [act()]}
        except (OSError, StepladderError) as refused:
            answer = {"refused": refusal(root, refused)}
        notes.post(note, json.dumps(answer))
    answer = json.loads(notes.read(note, WAIT_SECONDS))
    if "refused" in answer:
        raise RecordError(*answer["refused"])
    return answer["found"][0]


def refusal(root: Path, refused: OSError | StepladderError) -> list[str]:
    if isinstance(refused, StepladderError):
        return [refused.field, refused.problem, refused.remedy]
    problem = f"{root} cannot be written ({refused.strerror})"
    return ["checkpoint", problem, "Free some space or name another folder."]
