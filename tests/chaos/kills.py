"""Random kills: `python -m tests.chaos.kills --kills 200` writes benchmarks/results/chaos.json.

A run on 1 to 4 ranks is killed again and again: SIGKILL to a rank or to the launcher with all its
ranks, SIGTERM to a rank or the launcher, SIGSTOP to a rank until the others give it up. A third of
the moments are chosen while a checkpoint is being written. Where the command itself ends it is
started again with the same words, as a scheduler would. What must hold:

- the run ends with every parameter and optimizer state, to the bit, of a run nobody touched;
- it went on from no older checkpoint than the one committed when the signal was sent;
- a step that was taken several times had the same loss each time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import TimeoutExpired

import psutil

from .victim import LIMIT_SECONDS, Victim

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "chaos.json"
SIGNALS = [signal.SIGKILL] * 5 + [signal.SIGTERM] * 3 + [signal.SIGSTOP] * 2
TIMEOUT_SECONDS = 4  # after which a stopped rank is given up
MOST_PER_RUN = 25


@dataclass
class Kill:
    signal: str
    victim: str  # "rank 2" or "launcher"
    saving: bool  # a checkpoint was being written
    committed: int  # step of the latest checkpoint when the signal was sent
    resumed: int = -1  # step from which the run went on; -1: it had come to its end
    seconds: float = 0.0  # from the signal until ranks trained again


@dataclass
class Outcome:
    ranks: int
    seed: int
    steps: int
    kills: list[Kill] = field(default_factory=list)
    commands: int = 0  # times the command was started
    identical: bool = False
    same_losses: bool = False
    retaken: int = 0  # steps that were taken more than once
    problem: str = ""

    @property
    def lost(self) -> int:
        """Kills after which the run went on from something older than was committed."""
        return sum(-1 < kill.resumed < kill.committed for kill in self.kills)

    @property
    def good(self) -> bool:
        return self.identical and self.same_losses and not self.lost and not self.problem


def words(ranks: int, steps: int, save_every: int) -> list[str]:
    return [
        "--ranks", str(ranks), "--restarts", "100000", "--train.steps", str(steps),
        "--train.save_every", str(save_every),
    ]  # fmt: skip


def undisturbed(folder: Path, ranks: int, steps: int, save_every: int) -> Victim:
    """A run that nobody touches."""
    run = Victim(folder, words(ranks, steps, save_every))
    run.start()
    assert run.launcher is not None
    try:
        if run.launcher.wait(2 * LIMIT_SECONDS):
            said = [line for line in run.terminal.read_text().splitlines() if line[:5] != "step "]
            raise RuntimeError("\n".join(["the undisturbed run failed:", *said[-20:]]))
    finally:
        run.end()
    return run


def disturb(run: Victim, reference: Victim, outcome: Outcome, kills: int) -> Outcome:
    """Kill a run so often, let it end, and compare it with one that nobody touched."""
    chance = random.Random(outcome.seed)
    run.start()
    try:
        while len(outcome.kills) < kills:
            before = run.lives()
            wait_for_life(run, before - 1 if before else 0)
            if not at_moment(run, chance) or not (sent := strike(run, chance)):
                break  # it came to its end first
            outcome.kills.append(sent)
            recover(run, sent, before=run.lives())
        finish(run)
        judge(run, reference, outcome)
    except (TimeoutError, TimeoutExpired, RuntimeError, AssertionError) as problem:
        outcome.problem = f"{type(problem).__name__}: {problem}"
    finally:
        run.end()
    outcome.commands = run.starts
    return outcome


def wait_for_life(run: Victim, lives: int) -> None:
    if not run.wait_for(lambda: run.lives() > lives, pause=0.1):  # each look reads the journal
        raise RuntimeError(f"it did not begin: see {run.folder}/terminal.txt")


def at_moment(run: Victim, chance: random.Random) -> bool:
    """Wait for a random moment, a third of them within a save; whether the run still runs then."""
    if chance.random() < 1 / 3:
        if not run.wait_for(run.saving, pause=0.0005):
            return False
        time.sleep(chance.random() * 0.01)
        return True
    time.sleep(chance.random() * 1.0)
    assert run.launcher is not None
    return run.launcher.poll() is None


def strike(run: Victim, chance: random.Random) -> Kill | None:
    """Send a random signal to somebody; None where nobody was there any more."""
    number, ranks = chance.choice(SIGNALS), run.ranks()
    launcher = run.launcher
    assert launcher is not None
    to_launcher = number != signal.SIGSTOP and chance.random() < 0.3
    if not ranks or launcher.poll() is not None:
        return None
    who = chance.choice(sorted(ranks))
    name = "launcher" if to_launcher else f"rank {who}"
    sent = Kill(number.name, name, run.saving(), run.committed())
    try:
        if to_launcher and number == signal.SIGKILL:  # a machine that is gone
            launcher.send_signal(signal.SIGKILL)
            for rank in ranks.values():
                with suppress(ProcessLookupError):  # it went with its launcher
                    os.kill(rank.pid, signal.SIGKILL)
        else:
            os.kill(launcher.pid if to_launcher else ranks[who].pid, number)
    except ProcessLookupError:
        return None
    return sent


def recover(run: Victim, sent: Kill, before: int) -> None:
    """Wait until ranks train again, starting the command again where it ended."""
    began = time.monotonic()
    while not run.wait_for(lambda: run.lives() > before, pause=0.1):
        assert run.launcher is not None
        if run.launcher.returncode == 0:
            return
        wait_until_gone(run)
        run.start()
    sent.resumed = run.entries("start")[before]["step"]
    sent.seconds = round(time.monotonic() - began, 2)


def wait_until_gone(run: Victim) -> None:
    """No rank of a launcher that ended writes on."""
    deadline = time.monotonic() + LIMIT_SECONDS
    needle = str(run.folder)
    while any(needle in word for word in command_lines()):
        if time.monotonic() > deadline:
            raise TimeoutError("a rank outlived its launcher")
        time.sleep(0.05)


def command_lines() -> list[str]:
    return [
        " ".join(process.info["cmdline"] or ())
        for process in psutil.process_iter(["cmdline", "status"])
        if "stepladder.cli.rank" in (process.info["cmdline"] or ())
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def finish(run: Victim) -> None:
    """Let it come to its end undisturbed."""
    assert run.launcher is not None
    while True:
        code = run.launcher.wait(LIMIT_SECONDS)
        if code == 0:
            return
        if run.starts > 1000:
            raise RuntimeError("it never ends")
        wait_until_gone(run)
        run.start()


def judge(run: Victim, reference: Victim, outcome: Outcome) -> None:
    mine, theirs = run.weights(outcome.steps), reference.weights(outcome.steps)
    outcome.identical = bool(mine) and mine == theirs
    losses, expected = run.losses(), reference.losses()
    outcome.retaken = len(run.entries("step")) - len(losses)
    outcome.same_losses = losses == expected


def campaign(kills: int, *, ranks: list[int], steps: int, save_every: int, jobs: int, seed: int):
    """All runs, each with its share of the kills; yields every outcome as it comes."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as space:
        home = Path(space)
        references = {
            count: undisturbed(home / f"reference-{count}", count, steps, save_every)
            for count in ranks
        }

        def work(index: int, share: int) -> Outcome:
            count = ranks[index % len(ranks)]
            impatient = ["--run.timeout_seconds", str(TIMEOUT_SECONDS)]
            how = [*words(count, steps, save_every), *impatient]
            run = Victim(home / f"run-{index}", how)
            outcome = disturb(run, references[count], Outcome(count, seed + index, steps), share)
            if outcome.good:
                shutil.rmtree(run.folder, ignore_errors=True)
            else:
                kept = Path(tempfile.mkdtemp(prefix="chaos-failed-"))
                shutil.copytree(run.folder, kept, dirs_exist_ok=True)
                outcome.problem += f" (kept in {kept})"
            return outcome

        done, index = 0, 0
        with ThreadPoolExecutor(jobs) as pool:
            while done < kills:
                shares = []
                for _ in range(jobs):
                    left = kills - done - sum(shares)
                    shares += [min(MOST_PER_RUN, -(-left // jobs))] if left > 0 else []
                for outcome in pool.map(work, range(index, index + len(shares)), shares):
                    done += len(outcome.kills)
                    yield outcome
                index += len(shares)


def show(outcomes: list[Outcome]) -> str:
    head = ["ranks", "runs", "kills", "SIGKILL", "SIGTERM", "SIGSTOP", "during a save"]
    head += ["same to the bit", "older than committed", "steps taken again"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for count in sorted({outcome.ranks for outcome in outcomes}):
        mine = [outcome for outcome in outcomes if outcome.ranks == count]
        kills = [kill for outcome in mine for kill in outcome.kills]
        kinds = Counter(kill.signal for kill in kills)
        lines.append(
            f"| {count} | {len(mine)} | {len(kills)} | {kinds['SIGKILL']} | {kinds['SIGTERM']} | "
            f"{kinds['SIGSTOP']} | {sum(kill.saving for kill in kills)} | "
            f"{sum(outcome.identical for outcome in mine)} of {len(mine)} | "
            f"{sum(outcome.lost for outcome in mine)} | {sum(o.retaken for o in mine)} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--ranks", default="1,2,3,4")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--save-every", type=int, default=25)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    began, outcomes = time.monotonic(), []
    for outcome in campaign(
        options.kills, ranks=[int(n) for n in options.ranks.split(",")], steps=options.steps,
        save_every=options.save_every, jobs=options.jobs, seed=options.seed,
    ):  # fmt: skip
        outcomes.append(outcome)
        total = sum(len(o.kills) for o in outcomes)
        verdict = "same to the bit" if outcome.good else f"DIFFERS {outcome.problem}"
        print(
            f"{time.monotonic() - began:6.0f} s  {total:4d} kills  run on {outcome.ranks} ranks, "
            f"{len(outcome.kills)} kills, {outcome.commands} commands: {verdict}",
            flush=True,
        )
        result = summary(outcomes, (time.monotonic() - began) / 60)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(result["table"])
    return 0 if result["good"] else 1


def summary(outcomes: list[Outcome], minutes: float) -> dict:
    seconds = [kill.seconds for outcome in outcomes for kill in outcome.kills if kill.seconds]
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} CPU cores, {platform.system()}",
        "minutes": round(minutes, 1),
        "kills": sum(len(outcome.kills) for outcome in outcomes),
        "median seconds until ranks trained again": sorted(seconds)[len(seconds) // 2],
        "good": all(outcome.good for outcome in outcomes),
        "table": show(outcomes),
        "runs": [asdict(outcome) for outcome in outcomes],
    }


if __name__ == "__main__":
    sys.exit(main())
