"""One training run of a recipe: opened, trained, summed up."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from stepladder.data import Prefetcher, Reading, Source, batches
from stepladder.job.monitoring.memory_watch import MemoryWatch
from stepladder.job.monitoring.periodic_profile import profile_periodically
from stepladder.job.monitoring.recovery import Recovery
from stepladder.job.monitoring.run_journal import environment, open_run_journal
from stepladder.job.monitoring.step_instruments import NullJournal, StepInstruments
from stepladder.job.opening.open_recipe import (
    build_model,
    choose_recipe_plan,
    first_sample,
    open_sources,
)
from stepladder.job.opening.plan_for_ranks import facts_to_share, fit_ranks
from stepladder.job.opening.run_folder import (
    choose_folder,
    describe_data_changes,
    describe_restart,
    write_text,
)
from stepladder.job.summary.forecast_comparison import ForecastComparison
from stepladder.job.summary.run_cost import cost_of_run
from stepladder.job.summary.run_speed import RunSpeed, thin
from stepladder.job.summary.sample_text import sample_text
from stepladder.plan import Plan, Recipe
from stepladder.record import Report
from stepladder.track import TrackedJournal, parse_targets
from stepladder.train import Run, climb, fit
from stepladder.world import Place, Stop, limit_bytes
from stepladder.world.ranks.agreement import StopVote
from stepladder.world.world import gather

from .display import Display, JobStart, NoDisplay
from .train_result import LAST_STEP, TrainResult, describe_stop

START_SECONDS = 120  # ranks import torch at their own pace before they meet
FINISH_SECONDS = 1800  # for rank 0 to write and display the result


@dataclass
class TrainingJob:
    recipe: Recipe
    run: Run
    folder: Path
    training: Source
    validation: Source
    journal: TrackedJournal | NullJournal
    comparison: ForecastComparison
    elastic: bool = False  # resumes by itself, on the ranks there are
    display: Display = field(default_factory=NoDisplay)
    began: float = field(default_factory=time.perf_counter)
    losses: list[tuple[int, float]] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory_watch = MemoryWatch(self.run.world.device)
        self.instruments = StepInstruments(self.run, self.comparison)
        self.recovery = Recovery(self.run, self.folder, self.recipe.train)

    @classmethod
    def open(
        cls, recipe: Recipe, plan: Plan | None, stack: ExitStack, *, elastic: bool = False
    ) -> TrainingJob:
        """Open everything a recipe names; each mistake in it is found before the first step."""
        began = time.perf_counter()
        place = Place.from_environment()
        plan, refitted = fit_ranks(plan, recipe, place.num_ranks, elastic=elastic)
        folder = choose_folder(recipe, elastic=elastic)
        targets = parse_targets(recipe.run.track)
        start = max(recipe.run.timeout_seconds, START_SECONDS)
        gather(recipe.train.device, timeout_seconds=start, facts=facts_to_share(recipe, plan))
        module = build_model(recipe)
        training, validation = open_sources(recipe, module)
        sample = first_sample(training, module)
        choice = choose_recipe_plan(recipe, plan, module, sample)
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
            timeout_seconds=recipe.run.timeout_seconds,
        )
        board = run.world.board
        if run.world.first:
            board.post("folder", str(folder))
        folder = Path(board.read("folder", start))  # its name may hold the time of day
        journal = open_run_journal(folder, targets, run, stack) if run.world.first else None
        comparison = ForecastComparison.start(run, run.plan, sample)
        job = cls(recipe, run, folder, training, validation, journal or NullJournal(), comparison)
        job.elastic, job.began = elastic, began
        run.because = choice.because
        run.events += [refitted] if refitted else []
        job.open_folder()
        return job

    def open_folder(self) -> None:
        """Resume where that is asked for; write recipe and plan beside the journal."""
        if self.recipe.run.resume:
            self.run.load(self.folder)
        elif self.elastic:
            self.run.resume(self.folder)
        if not self.first:
            return
        ranks = self.run.world.place.num_ranks
        self.run.events += describe_restart(self.folder, self.run.index, ranks)
        self.run.events += describe_data_changes(self.folder, self.recipe, self.run.index)
        write_text(self.folder / "run.toml", self.recipe.to_toml())
        write_text(self.folder / "plan.toml", self.run.plan.to_toml())
        self.journal.write(
            "start",
            plan=str(self.run.plan),
            step=self.run.index,
            because=self.run.because,
            ranks=ranks,
            environment=environment(self.run.world),
        )
        if self.comparison.forecast:
            self.journal.write("forecast", **self.comparison.forecast.to_dict())

    @property
    def first(self) -> bool:
        """Whether this rank speaks for all."""
        return self.run.world.first

    def train(self, stop: Stop) -> str | None:
        """Take the steps; the name of the signal that stopped them early, if one did."""
        world = self.run.world
        with world.explaining(), ExitStack() as shown, self.instruments:
            vote = StopVote(world.place.num_ranks, self.recipe.run.timeout_seconds)
            self.display.start(self.job_start())
            shown.callback(self.display.stop)
            self.recovery.save_start()
            while self.run.index < self.recipe.train.steps:
                if stopped := self.take_steps(vote, stop):
                    return stopped
            vote.hear()
        return None

    def take_steps(self, vote: StopVote, stop: Stop) -> str | None:
        """Take steps until the last, until a signal, or until the run goes back."""
        with self.batches() as feed:
            taken = fit(self.run, feed, steps=self.recipe.train.steps)
            every = self.recipe.train.profile_every
            steps = profile_periodically(taken, self.run, self.journal, every)
            for report in self.comparison.measure_memory(steps):
                if self.after_step(report.step, report):
                    return None
                if stopped := vote.ask(stop.asked):
                    text = f"{stopped}: saving at step {self.run.index} and stopping."
                    self.display.run_message(text)
                    return stopped
        return None

    def batches(self) -> Prefetcher:
        """This rank's training batches, from where the run stands."""
        how = self.recipe.data
        feed: Prefetcher = self.run.batches(
            self.training,
            size=self.recipe.train.batch,
            seed=how.seed,
            workers=int(how.workers) if how.workers.isdigit() else how.workers,
            lengths=how.lengths or None,
            longest=how.longest or None,
            uneven=self.elastic,
            reading=Reading.parse(how.faults),
        )
        return feed

    def after_step(self, step: int, pending: Any) -> bool:
        """Report, evaluate and save what is due after this step; whether the run went back."""
        train, last = self.recipe.train, self.recipe.train.steps - 1
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
        self.losses.append((report.step, report.loss))
        thin(self.reports)
        thin(self.losses)
        self.journal.write("step", **report.to_dict())
        self.display.report(report)
        self.run.events += self.memory_watch.add(report)
        self.run.events += self.instruments.read(report, self.journal)

    def evaluate(self, step: int) -> float:
        """The validation loss, written to the journal."""
        with batches(self.validation, size=self.recipe.train.batch, shuffle=False) as feed:
            loss = self.run.evaluate(islice(feed, self.recipe.train.evaluate_batches))
        self.evaluations.append((step, loss))
        self.journal.write("evaluation", step=step, loss=loss)
        self.run.clock.restart(self.run.index)  # evaluation is not part of a step's time
        return loss

    def finish(self, stopped: str | None, stop: Stop) -> TrainResult:
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
            speed=RunSpeed.of(self.reports),
            cost=cost_of_run(self.run.world, self.folder, self.reports),
            forecast=self.comparison.forecast,
            no_forecast_because=self.comparison.unknown,
            memory=self.comparison.memory,
            step_seconds=self.comparison.step_seconds,
            data_seconds=self.comparison.data_seconds,
            comparison=tuple(self.comparison.rows()),
            losses=tuple(self.losses),
            evaluations=tuple(self.evaluations),
            notes=self.memory_watch.summary(),
            sample=text,
            calibration_update=update,
            stop_message=message,
        )
        self.conclude(result)
        return result

    def conclude(self, result: TrainResult) -> None:
        """Write and show the result on rank 0, while the other ranks wait for it."""
        board = self.run.world.board
        if self.first:
            if result.stopped:
                self.journal.write("event", step=self.run.index, text=result.stop_message)
                self.journal.write("summary", **result.figures())
            else:
                self.journal.write("measured", **self.comparison.measured())
                self.journal.write("summary", **result.figures(), sample=result.sample)
            self.display.finish(result)
            board.post("concluded", "yes")
        board.read("concluded", FINISH_SECONDS)  # a rank that leaves early is taken for lost

    def job_start(self) -> JobStart:
        return JobStart(
            headline=self.headline(),
            steps=self.recipe.train.steps,
            first_step=self.run.index,
            memory_limit_bytes=limit_bytes(self.run.world.device),
            speaks=self.first,
            forecast=self.comparison.forecast,
        )

    def headline(self) -> str:
        whole = self.run.flops.module  # a rank of a pipeline has only its stage
        count = sum(p.numel() for p in whole.parameters())
        kind = type(self.run.module).__name__.removeprefix("FSDP")  # what slicing puts before it
        return (
            f"{kind} {self.recipe.model.name}, {count / 1e6:.2f} M "
            f"parameters, on {self.run.world.device}; plan: {self.run.plan}; folder: {self.folder}"
        ) + (f"\nThis plan because: {self.run.because}" if self.run.because else "")
