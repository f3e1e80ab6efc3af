"""One training session on the terminal: a recipe opened, followed and closed."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from stepladder.cli.results.plots import plot_losses
from stepladder.data import Reading, Source, batches
from stepladder.errors import RecordError
from stepladder.plan import Plan, Recipe
from stepladder.record import Report
from stepladder.track import TrackedJournal, parse_targets
from stepladder.train import Run, climb, fit
from stepladder.world import Place, Stop, limit_bytes
from stepladder.world.ranks.agreement import StopVote
from stepladder.world.world import gather

from .forecast_comparison import Closing, show_closing
from .leak_watches import Watches
from .open_recipe import build_model, choose, first_row, open_sources
from .periodic_profile import glances
from .recovery import Recovery
from .run_cost import draw_devices, run_costs
from .run_journal import environment, open_diary
from .sample_text import PROMPT, sample_text
from .speed_figures import speed_figures, thin
from .start_ranks import (
    choose_folder,
    facts_of,
    fit_ranks,
    tell_other_data,
    tell_restart,
    tell_stop,
)
from .step_instruments import Instruments, Unwritten
from .terminal import Display, display

START_SECONDS = 120  # ranks import torch at their own pace before they meet
CONCLUDING_SECONDS = 1800  # for rank 0 to draw, print and keep what came out


@dataclass
class Session:
    recipe: Recipe
    run: Run
    folder: Path
    training: Source
    validation: Source
    journal: TrackedJournal | Unwritten
    quiet: bool
    closing: Closing
    elastic: bool = False  # goes on by itself, on the ranks there are
    began: float = field(default_factory=time.perf_counter)
    losses: list[tuple[int, float]] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watches = Watches(self.run.world.device)
        self.instruments = Instruments(self.run, self.closing)
        self.recovery = Recovery(self.run, self.folder, self.recipe.train)

    @classmethod
    def start(
        cls,
        recipe: Recipe,
        plan: Plan | None,
        stack: ExitStack,
        *,
        quiet: bool,
        elastic: bool = False,
    ) -> Session:
        """Open everything a recipe names; each mistake in it is found before the first step."""
        place = Place.from_environment()
        plan, refitted = fit_ranks(plan, recipe, place.num_ranks, elastic=elastic)
        folder = choose_folder(recipe, elastic=elastic)
        targets = parse_targets(recipe.run.track)
        limit = recipe.run.timeout_seconds
        start = max(limit, START_SECONDS)
        gather(recipe.train.device, timeout_seconds=start, facts=facts_of(recipe, plan))
        module = build_model(recipe)
        training, validation = open_sources(recipe, module)
        sample = first_row(training, module)
        choice = choose(recipe, plan, module, sample)
        run = climb(
            module,
            loss="cross_entropy",
            plan=choice.plan,
            sample=sample,
            rate=recipe.rate_choice(),
            seed=recipe.train.seed,
            device=recipe.train.device,
            nonfinite=recipe.train.nonfinite,
            exact=recipe.train.exact,
            timeout_seconds=limit,
        )
        board = run.world.board
        if run.world.first:
            board.post("folder", str(folder))
        folder = Path(board.read("folder", start))  # its name may hold the time of day
        journal = open_diary(folder, targets, run, stack) if run.world.first else Unwritten()
        closing = Closing.start(run, run.plan, sample)
        session = cls(recipe, run, folder, training, validation, journal, quiet, closing, elastic)
        run.because = choice.because
        run.events += [refitted] if refitted else []
        session.open_folder()
        return session

    def open_folder(self) -> None:
        """Keep what was asked and what was decided beside the journal; go on where asked to."""
        if self.recipe.run.resume:
            self.run.load(self.folder)
        elif self.elastic:
            self.run.resume(self.folder)
        if not self.first:
            return
        ranks = self.run.world.place.num_ranks
        self.run.events += tell_restart(self.folder, self.run.index, ranks)
        self.run.events += tell_other_data(self.folder, self.recipe, self.run.index)
        write(self.folder / "run.toml", self.recipe.to_toml())
        write(self.folder / "plan.toml", self.run.plan.to_toml())
        self.journal.write(
            "start",
            plan=str(self.run.plan),
            step=self.run.index,
            because=self.run.because,
            ranks=ranks,
            environment=environment(self.run.world),
        )
        if self.closing.forecast:
            self.journal.write("forecast", **self.closing.forecast.to_dict())

    @property
    def first(self) -> bool:
        """Whether this rank speaks for all."""
        return self.run.world.first

    def train(self, stop: Stop) -> str | None:
        """Take the steps; the name of the signal that stopped them early, if one did."""
        shown, world = self.display(), self.run.world
        with world.explaining(), shown, self.instruments:
            vote = StopVote(world.place.num_ranks, self.recipe.run.timeout_seconds)
            shown.tell(self.greeting())
            self.recovery.begin()
            while self.run.index < self.recipe.train.steps:
                if stopped := self.follow(vote, stop, shown):
                    return stopped
            vote.hear()
        return None

    def follow(self, vote: StopVote, stop: Stop, shown: Display) -> str | None:
        """Take steps from where the run stands: to the last, to a signal, or until it goes back."""
        with self.feed() as feed:
            taken = fit(self.run, feed, steps=self.recipe.train.steps)
            steps = glances(taken, self.run, self.journal, self.recipe.train.profile_every)
            for report in self.closing.watch(steps):
                if self.note(report.step, report, shown):
                    return None
                if stopped := vote.ask(stop.asked):
                    shown.tell(f"{stopped}: saving at step {self.run.index} and stopping.")
                    return stopped
        return None

    def display(self) -> Display:
        return display(
            self.recipe.train.steps,
            first=self.run.index,
            memory_limit_bytes=limit_bytes(self.run.world.device),
            quiet=self.quiet,
            speaker=self.first,
        )

    def feed(self) -> Any:
        how = self.recipe.data
        return self.run.batches(
            self.training,
            size=self.recipe.train.batch,
            seed=how.seed,
            workers=int(how.workers) if how.workers.isdigit() else how.workers,
            lengths=how.lengths or None,
            longest=how.longest or None,
            uneven=self.elastic,
            reading=Reading.parse(how.faults),
        )

    def note(self, step: int, pending: Any, shown: Display) -> bool:
        """Write down and show what is due after this step; whether the run then went back."""
        train, last = self.recipe.train, self.recipe.train.steps - 1
        reports = step % train.report_every == 0 or step == last
        saves = bool(train.save_every) and (step + 1) % train.save_every == 0 and step != last
        if reports:
            report = pending.read()
            self.reports.append(report)
            self.closing.note(report)
            self.losses.append((step, report.loss))
            thin(self.reports)
            thin(self.losses)
            self.journal.write("step", **report.to_dict())
            shown.show(report)
            self.run.events += self.watches.look(report)
            self.run.events += self.instruments.read(report, self.journal)
        if saves:
            self.run.health.look()  # what is saved may be what a run goes back to
        went_back = (reports or saves) and self.recovery.answer_spikes(step)
        while self.run.events:
            event = self.run.events.pop(0)
            self.journal.write("event", step=step, text=event)
            shown.say(event)
        if went_back:
            self.losses = [one for one in self.losses if one[0] < self.run.index]
            return True
        self.recovery.check_copies(step)
        if train.evaluate_every and (step + 1) % train.evaluate_every == 0 and step != last:
            self.evaluate(step, shown)
        if saves:
            self.run.check_copies()  # a copy that drifted must not become the checkpoint of all
            self.journal.write("save", step=step, path=self.run.save(self.folder, wait=False).name)
        return False

    def evaluate(self, step: int, shown: Display | None = None) -> float:
        feed = batches(self.validation, size=self.recipe.train.batch, shuffle=False)
        with feed:
            loss = self.run.evaluate(islice(feed, self.recipe.train.evaluate_batches))
        self.evaluations.append((step, loss))
        self.journal.write("evaluation", step=step, loss=loss)
        if shown:
            shown.tell(f"step {step:>6}  validation loss {loss:.4f}")
        self.run.clock.restart(self.run.index)  # evaluation is not part of a step's time
        return loss

    def finish(self, stopped: str | None, stop: Stop) -> dict[str, Any]:
        """Save, plot, sample, and say what was measured; a run asked to stop only saves."""
        saved, loss, text = self.run.save(self.folder), float("nan"), ""
        if not stopped and self.run.index:
            loss, text = self.evaluate(self.run.index - 1), sample_text(self.run, self.recipe)
        figures = self.figures(stopped, loss, saved)
        board = self.run.world.board
        if self.first:
            if stopped:
                self.leave(figures, tell_stop(stopped, stop, saved))
            else:
                self.conclude(figures, text)
            board.post("concluded", "yes")
        board.read("concluded", CONCLUDING_SECONDS)  # a rank that leaves early is taken for lost
        return figures

    def leave(self, figures: dict[str, Any], told: str) -> None:
        """Keep what there is: drawing would use up what time is left."""
        self.journal.write("event", step=self.run.index, text=told)
        self.journal.write("summary", **figures)
        if not self.quiet:
            print(told)

    def conclude(self, figures: dict[str, Any], text: str) -> None:
        """Draw, keep and show what came out of it."""
        if self.losses:
            plot_losses(self.folder / "loss.png", self.losses, self.evaluations)
        draw_devices(self.run.world, self.folder)
        self.journal.write("measured", **self.closing.measured())
        self.journal.write("summary", **figures, sample=text)
        refined = self.closing.refine()
        if not self.quiet:
            show_closing(self.closing, refined)
        if text and not self.quiet:
            print(f"\nA sample after '{PROMPT.decode()}':\n{text}\n")

    def greeting(self) -> str:
        whole = self.run.flops.module  # a rank of a pipeline has only its stage
        count = sum(p.numel() for p in whole.parameters())
        kind = type(self.run.module).__name__.removeprefix("FSDP")  # what slicing puts before it
        return (
            f"{kind} {self.recipe.model.name}, {count / 1e6:.2f} M "
            f"parameters, on {self.run.world.device}; plan: {self.run.plan}; folder: {self.folder}"
        ) + (f"\nThis plan because: {self.run.because}" if self.run.because else "")

    def figures(self, stopped: str | None, loss: float, saved: Path) -> dict[str, Any]:
        return {
            "steps": self.run.index,
            "training loss": self.reports[-1].loss if self.reports else None,
            "validation loss": loss,
            **speed_figures(self.reports),
            **run_costs(self.run.world, self.folder, self.reports),
            "seconds": round(time.perf_counter() - self.began, 1),
            **self.watches.closing(),
            "stopped by": stopped or "the last step",
            "checkpoint": str(saved),
            "plot": str(self.folder / "loss.png") if self.losses else "none",
        }


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as refused:
        raise RecordError(
            "run folder", f"{path} cannot be written ({refused.strerror})", "Name another folder."
        ) from refused
