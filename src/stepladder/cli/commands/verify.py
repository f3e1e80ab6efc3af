"""Prove that a change changes nothing that matters.

precision: train the same model on the same batches in two precisions and compare the validation
loss: under 1 % apart is fine, over 5 % is not.

parity: train a model on one device and under each plan, on as many local ranks as the plan needs,
from the same weights on the same batches; compare losses, gradient norms and parameters. --locate
names the first tensor that differs: its step, micro-batch, module and rank.

resume: train, kill a rank with SIGKILL in the middle of a step, go on in new processes from what
was saved, and compare with a run that was never stopped: to the last bit on the same ranks.

certificate: replay what `verify parity --certificate FILE` wrote, perhaps on another machine, and
say whether it is the same to the last bit, within tolerance, or different, and where.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepladder.cli.import_torch import loading
from stepladder.cli.results.tables import as_json, table
from stepladder.cli.user_code_options import (
    MODEL,
    announce,
    configure_user_code,
    recipe_settings,
)
from stepladder.cli.verify_certificate import verify_certificate
from stepladder.cli.verify_parity import verify_parity
from stepladder.cli.verify_resume import verify_resume
from stepladder.errors import PlanError

if TYPE_CHECKING:
    from stepladder.job.precision_trial import PrecisionTrial


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["precision", "parity", "resume", "certificate"])
    parser.add_argument(
        "model",
        nargs="?",
        metavar="RUN.toml|MODEL|FILE",
        help=f"a recipe, or {MODEL}; a certificate's file",
    )
    configure_user_code(parser)
    parser.add_argument("--reference", default="fp32", metavar="PRECISION")
    parser.add_argument("--other", default="bf16", metavar="PRECISION")
    parser.add_argument(
        "--operations", action="store_true", help="which operation runs in which type"
    )
    parser.add_argument(
        "--gradients", action="store_true", help="each layer's gradients, and advice"
    )
    both = parser.add_argument_group("parity and resume")
    both.add_argument("--plans", metavar="TEXT", help="'fp32 zero3 shard=2; fp32 tensor=2'")
    both.add_argument("--steps", type=int, help="of every run")
    both.add_argument(
        "--optimizer", action="append", metavar="TEXT", help="for parity, also several times"
    )
    both.add_argument("--device", help="cpu unless told")
    both.add_argument("--plot", metavar="FILE.png", help="draw it over the steps")
    parity = parser.add_argument_group("parity")
    parity.add_argument(
        "--locate", action="store_true", default=None, help="name the first tensor that differs"
    )
    parity.add_argument(
        "--certificate", metavar="FILE", help="write what was computed, to be replayed elsewhere"
    )
    resume = parser.add_argument_group("resume")
    resume.add_argument("--plan", metavar="TEXT", help="the same as --plans with one")
    resume.add_argument(
        "--then", metavar="TEXT", help="resume in these: 'fp32 zero3 shard=2; fp32'"
    )
    resume.add_argument("--ranks", type=int, metavar="N", help="of the plans that are resumed")
    resume.add_argument("--workers", metavar="N", help="that read ahead: 2, or '2 processes'")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(settings=True)
    parser.epilog = "Any key of the recipe can be set: --train.steps 100 --model.name llama-tiny."


RESUME = {"plan", "then", "ranks", "workers"}
BOTH = {"plans", "steps", "optimizer", "device", "plot"}
PARITY = {"locate", "certificate"}
FOREIGN = {  # options that do nothing
    "precision": RESUME | BOTH | PARITY,
    "parity": RESUME,
    "resume": PARITY,
    "certificate": RESUME | BOTH | PARITY,
}


def run(options: argparse.Namespace) -> int:
    for name in sorted(FOREIGN[options.what]):
        if getattr(options, name) is not None:
            problem = f"--{name} is not for {options.what}"
            raise PlanError("verify", problem, f"'stepladder verify {options.what}' does without.")
    if options.what == "parity":
        return verify_parity(options)
    if options.what == "resume":
        return verify_resume(options)
    if options.what == "certificate":
        return verify_certificate(options)
    return verify_precision(options)


def verify_precision(options: argparse.Namespace) -> int:
    """Train the recipe in two precisions; 1 where their validation losses differ too much."""
    from stepladder.plan import Precision, read_recipe

    with loading():
        from stepladder.job.opening.open_recipe import user_code
        from stepladder.job.precision_trial import try_precisions

    recipe = read_recipe(options.model, ["--train.steps=60", *recipe_settings(options)])
    announce(user_code(recipe).taken)
    found = try_precisions(
        recipe,
        Precision.parse(options.reference),
        Precision.parse(options.other),
        operations=options.operations,
        gradients=options.gradients,
    )
    if options.json:
        as_json(as_table(found))
    else:
        show(found)
    return 1 if found.comparison.verdict.failed else 0


def as_table(found: PrecisionTrial) -> dict[str, Any]:
    """What was asked for, as JSON has it."""
    compared = found.comparison
    result: dict[str, Any] = {"comparison": asdict(compared), "parted_at": compared.parted_at}
    if found.operations:
        result["operations"] = [asdict(row) for row in found.operations]
    if found.gradients:
        result["gradients"] = [asdict(row) for row in found.gradients]
        result["advice"] = list(found.advice)
    return result


def show(found: PrecisionTrial) -> None:
    compared = found.comparison
    rows = [
        [str(precision), trained.losses[-1] if trained.losses else None, trained.validation_loss]
        for precision, trained in zip((compared.reference, compared.other), compared.runs)
    ]
    table("Precision", ["precision", "last training loss", "validation loss"], rows)
    for title in ("operations", "gradients"):
        if lines := [asdict(row) for row in getattr(found, title)]:
            table(title.capitalize(), list(lines[0]), [list(line.values()) for line in lines])
    for sentence in found.advice:
        print(sentence)
    if compared.parted_at is not None:
        print(f"The training losses part at step {compared.parted_at}.")
    print(compared)
