"""A loss that fails is named with what it was given, in one line; what it raises itself is kept."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from stepladder.errors import DataError, OutOfMemory, PlanError
from stepladder.train import climb

ROWS, CLASSES = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
PAIRS = "Give pairs (inputs, targets); for an autoencoder (x, x), as TensorDataset(x, x) has them."
CHECK = "Give targets of the shape and type that it takes, or a function of (outputs, targets)."


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def compare(outputs, targets):
    return functional.cross_entropy(outputs, targets)


def told(loss, batch, plan="fp32", module=None, evaluates=False):
    run = climb(module or net(), loss=loss, plan=plan, device="cpu")
    with pytest.raises(DataError) as refused:
        run.evaluate([batch]) if evaluates else run.step(batch)
    assert refused.value.__cause__ is not None
    # What torch says differs by version, and where a line stands by edit.
    return re.sub(r" \((\w+Error): .*\)(?=\. \w)", r" (\1)", str(refused.value))


@pytest.mark.parametrize("evaluates", [False, True])
@pytest.mark.parametrize("plan", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("loss", "name"), [(nn.CrossEntropyLoss(), "CrossEntropyLoss"), (compare, "compare")]
)
def test_classes_that_are_no_integers(loss, name, plan, evaluates):
    said = told(loss, (ROWS, torch.zeros(6)), plan, evaluates=evaluates)
    outputs = "bfloat16" if plan == "bf16" and "bfloat16" in said else "float32"
    assert said == (
        f"loss: {name} does not take outputs of {outputs} of shape (6, 3) with targets of float32 "
        "of shape (6,) (RuntimeError). Give classes as integers: targets.long()."
    )


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    ("loss", "targets", "said"),
    [
        (
            nn.MSELoss(),
            torch.zeros(6, 4),
            "loss: MSELoss does not take outputs of float32 of shape (6, 3) with targets of "
            "float32 of shape (6, 4) (RuntimeError). Have the module's last layer be 4 wide, or "
            "the targets 3.",
        ),
        (
            nn.BCEWithLogitsLoss(),
            torch.ones(6, 3).long(),
            "loss: BCEWithLogitsLoss does not take outputs of float32 of shape (6, 3) with targets "
            "of int64 of shape (6, 3) (RuntimeError). Give targets.float().",
        ),
        (
            functional.cross_entropy,
            CLASSES[:, None],
            "loss: cross_entropy does not take outputs of float32 of shape (6, 3) with targets of "
            "int64 of shape (6, 1) (RuntimeError). Give targets.squeeze(-1).",
        ),
        (
            nn.BCEWithLogitsLoss(),
            torch.zeros(6, 1),
            "loss: BCEWithLogitsLoss does not take outputs of float32 of shape (6, 3) with targets "
            "of float32 of shape (6, 1) (ValueError). Have the module's last layer be 1 wide, or "
            "the targets 3.",
        ),
        (
            lambda outputs, targets: outputs[:, targets[0, 0]].mean(),
            CLASSES,
            "loss: <lambda> does not take outputs of float32 of shape (6, 3) with targets of int64 "
            f"of shape (6,) (IndexError). {CHECK}",
        ),
    ],
)
def test_targets_of_another_shape_or_type(loss, targets, said):
    assert told(loss, (ROWS, targets)) == said


def test_the_line_of_a_function_is_shown():
    run = climb(net(), loss=compare, plan="fp32", device="cpu")
    with pytest.raises(DataError, match=r"test_loss_errors.py:\d+: return functional.cross_entro"):
        run.step((ROWS, torch.zeros(6)))


class Both(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


def test_a_loss_that_needs_no_targets_is_not_told_to_have_them():
    assert told(lambda outputs, _: outputs[:, 3].mean(), ROWS) == (
        "loss: <lambda> does not take outputs of float32 of shape (6, 3) with targets of None "
        f"(IndexError). {CHECK}"
    )


def test_outputs_that_are_no_tensor():
    assert told(compare, (ROWS, CLASSES), module=Both(4, 3)) == (
        "loss: compare does not take outputs of a tuple of float32 of shape (6, 3) and float32 of "
        "shape (6, 4) with targets of int64 of shape (6,) (TypeError). Pass a function: "
        "loss=lambda outputs, targets: ..., which picks what it compares."
    )


@pytest.mark.parametrize("plan", ["fp32", "fp32 micro=2"])
@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (compare, "compare"),
        (nn.CrossEntropyLoss(), "CrossEntropyLoss"),
        (nn.MSELoss(), "MSELoss"),
        (lambda outputs, targets: (outputs - targets).square().mean(), "<lambda>"),
    ],
)
def test_a_batch_without_targets(loss, name, plan):
    for batch in (ROWS, (ROWS,), *DataLoader(TensorDataset(ROWS), batch_size=6)):
        said = told(loss, batch, plan)
        assert re.sub(r"\w+Error", "error", said) == (
            f"targets: the batch has none, and {name} was given None (error). {PAIRS}"
        )


class Answering(nn.Linear):
    def forward(self, x):
        return {"logits": super().forward(x)}


def test_an_entry_that_outputs_lack():
    loss = lambda outputs, targets: compare(outputs["logit"], targets)  # noqa: E731
    assert told(loss, (ROWS, CLASSES), module=Answering(4, 3)) == (
        "loss: <lambda> does not take outputs of a dict of float32 of shape (6, 3) with targets of "
        "int64 of shape (6,) (KeyError). Did you mean 'logits'?"
    )


class Reader(nn.Linear):
    """Takes a batch's dict in one piece."""

    def forward(self, batch):
        return super().forward(batch["rows"])


@pytest.mark.parametrize(
    ("loss", "batch", "what"),
    [
        (compare, {"input": ROWS}, "'input' (TypeError). Add them under 'labels', or give pairs"),
        (
            nn.MSELoss(),
            {"input": ROWS, "kind": CLASSES},
            "'input', 'kind' (AttributeError). Call 'kind' 'labels', or have the loss take "
            "targets['kind'].",
        ),
        (
            compare,
            {"rows": ROWS, "kind": CLASSES},
            "'rows', 'kind' (TypeError). Add them under 'labels', or give pairs",
        ),
        (
            lambda outputs, targets: compare(outputs, targets["knid"]),
            {"input": ROWS, "kind": CLASSES},
            "'input', 'kind' (KeyError). Did you mean 'kind'?",
        ),
    ],
)
def test_a_dict_without_labels_is_given_whole(loss, batch, what):
    said = told(loss, batch, module=None if "input" in batch else Reader(4, 3))
    name = getattr(loss, "__name__", "MSELoss")
    begins = f"targets: the batch has no 'labels' or 'targets', and {name} was given all of it, "
    assert said.startswith(begins + what)


class Judging(nn.Module):
    def forward(self, outputs, targets):
        raise ValueError("mine")


def raising(outputs, targets):
    if targets.dim() == 1:
        raise ValueError("mine")


def dividing(outputs, targets):
    return outputs.sum() / 0 ** targets.dim() / (1 // 0)


def unfinished():
    loss = nn.L1Loss()
    del loss.reduction
    return loss


@pytest.mark.parametrize(
    ("loss", "error"),
    [
        (Judging(), ValueError),
        (raising, ValueError),
        (dividing, ArithmeticError),
        (unfinished(), AttributeError),
    ],
)
def test_what_a_loss_raises_itself_or_what_no_shape_explains_is_kept(loss, error):
    run = climb(net(), loss=loss, plan="fp32", device="cpu")
    with pytest.raises(error):
        run.step((ROWS, CLASSES))


def mixing(outputs, targets):
    made = torch.zeros_like(ROWS[:, :3])
    made[targets >= 0] = outputs
    return made.mean()


def test_types_that_the_plan_mixes_in_a_loss_are_the_plans():
    run = climb(net(), loss=mixing, plan="bf16", device="cpu")
    with pytest.raises(PlanError, match="^precision: Sequential mixes types under bf16"):
        run.step((ROWS, CLASSES))


def test_integers_for_a_layer_of_floats_are_the_batchs_under_any_precision():
    said = told("cross_entropy", (ROWS.long(), CLASSES), "bf16")
    assert said.startswith("batch: '0' of Sequential does not take its inputs, int64 of shape")


def test_memory_that_runs_out_in_an_evaluation_says_so():
    huge = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Upsample(scale_factor=1e7))
    run = climb(huge, loss=lambda outputs, targets: outputs.mean(), plan="fp32", device="cpu")
    with pytest.raises(OutOfMemory, match="an evaluation ran out of it with 1 row in a"):
        run.evaluate([torch.zeros(1, 1, 4, 4)])
