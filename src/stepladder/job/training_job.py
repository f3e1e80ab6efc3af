"""One training run of a recipe: opened, trained, summed up."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepladder.data import Source
from stepladder.job.export.export_run import export_run
from stepladder.job.monitoring.memory_watch import MemoryWatch
from stepladder.job.monitoring.periodic_profile import profile_periodically
from stepladder.job.monitoring.recovery import Recovery
from stepladder.job.monitoring.step_instruments import StepInstruments
from stepladder.job.monitoring.tuned_speed import TunedSpeed
from stepladder.job.opening.open_recipe import training_batches
from stepladder.job.opening.size_run import SizedRun
from stepladder.job.summary.forecast_comparison import ComparisonRow, ForecastComparison
from stepladder.job.summary.run_cost import cost_of_run
from stepladder.job.summary.run_speed import RunSpeed, thin
from stepladder.job.summary.sample_text import sample_text
from stepladder.plan import Recipe
from stepladder.record import Report
from stepladder.record.journal_writer import NullJournal
from stepladder.track import TrackedJournal
from stepladder.train import Run, fit
from stepladder.train.feed import Feed
from stepladder.train.loop import held_out
from stepladder.world import StopSignals, device_memory_bytes
from stepladder.world.ranks.agreement import StopVote

from .display import Display, JobStart, NoDisplay
from .train_result import LAST_STEP, TrainResult, describe_stop

FINISH_SECONDS = 1800  # for rank 0 to write and display the result


@dataclass
class TrainingJob:
    """A recipe that was opened: its run, data, journal, and what is known of it beforehand."""

    recipe: Recipe
    run: Run
    folder: Path
    training: Source
    validation: Source
    journal: TrackedJournal | NullJournal
    comparison: ForecastComparison
    elastic: bool = False  # resumes by itself, on the ranks there are
    display: Display = field(default_factory=NoDisplay)
    sized: SizedRun | None = None  # where a probe of the machine settled the steps
    began: float = field(default_factory=time.perf_counter)
    training_seconds: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory_watch = MemoryWatch(self.run.world.device)
        self.instruments = StepInstruments(self.run, self.comparison)
        self.recovery = Recovery(self.run, self.folder, self.recipe.train)
        self.tuned_speed = TunedSpeed(self.run.tuned_seconds)

    @property
    def first(self) -> bool:
        """Whether this rank speaks for all."""
        return self.run.world.is_rank_zero

    def train(self, stop: StopSignals) -> str | None:
        """Take the steps; the name of the signal that stopped them early, if one did."""
        world, began = self.run.world, time.perf_counter()
        with world.explain_hangs(), ExitStack() as shown, self.instruments:
            vote = StopVote(world.place.num_ranks, self.recipe.run.timeout_seconds)
            self.display.start(self.job_start())
            shown.callback(self.stop_display, began)
            self.recovery.save_start()
            while self.run.index < self.recipe.train.steps:
                if stopped := self.take_steps(vote, stop):
                    return stopped
            vote.result()
        return None

    def stop_display(self, began: float) -> None:
        self.training_seconds = time.perf_counter() - began
        self.display.stop()

    def take_steps(self, vote: StopVote, stop: StopSignals) -> str | None:
        """Take steps until the last, until a signal, or until the run goes back."""
        with self.batches() as feed:
            taken = fit(self.run, feed, steps=self.recipe.train.steps)
            every = self.recipe.train.profile_every
            steps = profile_periodically(taken, self.run, self.journal, every)
            for report in self.comparison.measure_memory(steps):
                if self.after_step(report.step, report):
                    return None
                if stopped := vote.vote(stop.received):
                    text = f"{stopped}: saving at step {self.run.index} and stopping."
                    self.display.run_message(text)
                    return stopped
        return None

    def batches(self) -> Feed:
        """This rank's training batches, from where the run stands."""
        return training_batches(self.run, self.recipe, self.training, uneven=self.elastic)

    def after_step(self, step: int, pending: Any) -> bool:
        """Report, evaluate and save what is due after this step; whether the run went back."""
        train, last = self.recipe.train, self.recipe.train.steps - 1
        self.display.step(step)
        reports = step % train.report_every == 0 or step == last
        saves = bool(train.save_every) and (step + 1) % train.save_every == 0 and step != last
        if reports:
            self.report(pending.read())
        if saves:
            self.run.health.look()  # what is saved may be what a run goes back to
        went_back = (reports or saves) and self.recovery.answer_spikes(step)
        while self.run.events:
            event = self.run.events.pop(0)
            self.journal.write("event", step=step, text=event)
            self.display.rank_message(event)
        if went_back:
            self.losses = [one for one in self.losses if one[0] < self.run.index]
            return True
        self.recovery.check_copies(step)
        if train.evaluate_every and (step + 1) % train.evaluate_every == 0 and step != last:
            loss = self.evaluate(step)
            self.display.run_message(f"step {step:>6}  validation loss {loss:.4f}")
        if saves:
            self.run.check_copies()  # a copy that drifted must not become the checkpoint of all
            self.journal.write("save", step=step, path=self.run.save(self.folder, wait=False).name)
        return False

    def report(self, report: Report) -> None:
        """Write a report to the journal, show it, and look at it for trouble."""
        self.reports.append(report)
        self.comparison.add(report)
        if said := self.tuned_speed.look(report, time.perf_counter() - self.began):
            self.run.events.append(said)
        self.losses.append((report.step, report.loss))
        thin(self.reports)
        thin(self.losses)
        self.journal.write("step", **report.to_dict())
        self.display.report(report)
        self.run.events += self.memory_watch.add(report)
        self.run.events += self.instruments.read(report, self.journal)

    def evaluate(self, step: int) -> float:
        """The validation loss, written to the journal."""
        train = self.recipe.train
        feed = held_out(self.run, self.validation, size=train.batch, most=train.evaluate_batches)
        loss = self.run.evaluate(feed)
        self.evaluations.append((step, loss))
        self.journal.write("evaluation", step=step, loss=loss)
        self.run.clock.restart(self.run.index)  # evaluation is not part of a step's time
        return loss

    def finish(self, stopped: str | None, stop: StopSignals) -> TrainResult:
        """Save and sum up; a run that a signal stopped saves and evaluates nothing more."""
        saved, loss, text = self.run.save(self.folder), None, ""
        if not stopped and self.run.index:
            loss, text = self.evaluate(self.run.index - 1), sample_text(self.run, self.recipe)
        update = "" if stopped or not self.first else self.comparison.refine() or ""
        message = describe_stop(stopped, stop, saved) if stopped else ""
        result = TrainResult(
            folder=self.folder,
            checkpoint=saved,
            plan=self.run.plan,
            device=str(self.run.world.device),
            steps=self.run.index,
            stopped_by=stopped or LAST_STEP,
            training_loss=self.reports[-1].loss if self.reports else None,
            validation_loss=loss,
            seconds=time.perf_counter() - self.began,
            training_seconds=self.training_seconds,
            speed=RunSpeed.of(self.reports),
            peak_flops_per_second=self.run.flops.peak,
            peak_measured=self.sized is not None and self.run.world.device.type == "cpu",
            cost=cost_of_run(self.run.world, self.folder, self.reports),
            forecast=self.comparison.forecast,
            no_forecast_because=self.comparison.unknown,
            memory=self.comparison.memory,
            step_seconds=self.comparison.step_seconds,
            data_seconds=self.comparison.data_seconds,
            comparison=(*self.comparison.rows(), *self.total_row()),
            losses=tuple(self.losses),
            evaluations=tuple(self.evaluations),
            notes=self.memory_watch.summary(),
            sample=text,
            calibration_update=update,
            stop_message=message,
        )
        self.conclude(result)
        return result

    def total_row(self) -> list[ComparisonRow]:
        """All steps together, where their number was chosen for this machine."""
        if self.sized is None:
            return []
        planned, measured = self.sized.forecast_seconds, self.training_seconds
        return [ComparisonRow("training", planned, measured, "run seconds")]

    def conclude(self, result: TrainResult) -> None:
        """Write and show the result on rank 0, while the other ranks wait for it."""
        board = self.run.world.notes
        if self.first:
            if result.stopped:
                self.journal.write("event", step=self.run.index, text=result.stop_message)
                self.journal.write("summary", **result.figures())
            else:
                self.journal.write("measured", **self.comparison.measured())
                self.journal.write("summary", **result.figures(), sample=result.sample)
                for folder in export_run(self.recipe, self.folder):
                    self.display.run_message(f"Written: {folder}")
            self.display.finish(result)
            board.post("concluded", "yes")
        board.read("concluded", FINISH_SECONDS)  # a rank that leaves early is taken for lost

    def job_start(self) -> JobStart:
        return JobStart(
            headline=self.headline(),
            steps=self.recipe.train.steps,
            first_step=self.run.index,
            memory_limit_bytes=device_memory_bytes(self.run.world.device),
            speaks=self.first,
            forecast=self.comparison.forecast,
            sized=self.sized,
        )

    def headline(self) -> str:
        whole = self.run.flops.module  # a rank of a pipeline has only its stage
        count = sum(p.numel() for p in whole.parameters())
        kind = type(self.run.module).__name__.removeprefix("FSDP")  # what slicing puts before it
        return (
            f"{kind} {self.recipe.model.name}, {count / 1e6:.2f} M "
            f"parameters, on {self.run.world.device}; plan: {self.run.plan}; folder: {self.folder}"
        ) + (f"\nThis plan because: {self.run.because}" if self.run.because else "")
