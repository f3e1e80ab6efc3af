"""An optimizer is text and reads back; what it cannot be is refused in words."""

import pytest
from hypothesis import given

from stepladder.errors import PlanError
from stepladder.plan import Optimizer
from stepladder.plan.optimizer import Group

from . import strategies as some


@given(some.optimizers)
def test_an_optimizer_reads_back_to_the_last_bit(optimizer):
    assert Optimizer.parse(str(optimizer)) == optimizer


def test_an_optimizer_reads_as_people_write_it():
    text = "adamw lr=3e-4 wd=0.1 betas=0.9,0.99 clip=1 group=*.bias:lr=x0.5,wd=0 group=head.*:wd=0"
    assert Optimizer.parse(text) == Optimizer(
        lr=3e-4,
        wd=0.1,
        betas=(0.9, 0.99),
        clip=1.0,
        groups=(Group("*.bias", 0.5, 0.0), Group("head.*", 1.0, 0.0)),
    )


def test_clipping_can_be_taken_away_again():
    assert Optimizer(clip=1.0).change(["clip=none"]).clip is None


@pytest.mark.parametrize(
    ("text", "moments"),
    [
        ("sgd", 0),
        ("sgd momentum=0.9", 1),
        ("momentum", 1),
        ("adam", 2),
        ("adamw", 2),
        ("adafactor", 0),
        ("muon", 2),
    ],
)
def test_an_optimizer_knows_how_many_moments_it_keeps(text, moments):
    assert Optimizer.parse(text).moments == moments


def test_muon_starts_with_rates_of_its_own_and_keeps_one_moment_of_a_matrix():
    muon = Optimizer.parse("muon clip=1")
    assert (muon.lr, muon.adamw_lr, muon.momentum, muon.ns_steps) == (0.02, 3e-4, 0.95, 5)
    assert (muon.matrix_moments, muon.moments, muon.keeps_row_means) == (1, 2, False)
    assert Optimizer.parse("muon variant=normuon").keeps_row_means
    # AdamW may update any of the matrices: forecasts take the larger reading.
    assert Optimizer.parse("muon group=*.router.*:by=adamw").matrix_moments == 2
    assert Optimizer.parse("adamw").matrix_moments == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "adamw nesterov=off",
            "optimizer.nesterov: adamw does not read it. It is a setting of muon.",
        ),
        (
            "muon nesterov=1",
            "optimizer.nesterov: '1' is not a choice. Choose on or off.",
        ),
        (
            "muon adjust=rms",
            "optimizer.adjust: 'rms' is not a choice. Choose original or match_rms_adamw.",
        ),
        (
            "muon ns_steps=2.5",
            "optimizer.ns_steps: '2.5' is not a whole number from 1 to 99. Write one, such as 5.",
        ),
        ("muon momentum=1", "optimizer.momentum: 1 must be under 1. Try 0.95."),
        (
            "adamw group=*.up:by=muon",
            "optimizer.group: 'by=muon' chooses between muon and adamw, and adamw updates all. "
            "Leave by= out, or use muon.",
        ),
        (
            "muon group=*.up:by=sgd",
            "optimizer.group: 'by=sgd' is not a setting of a group. "
            "Write group=PATTERN:lr=x0.1,wd=0.",
        ),
        ("adm", "optimizer: 'adm' is not an optimizer. Did you mean 'adam'?"),
        (
            "",
            "optimizer: '' is not an optimizer. "
            "Choose one of: sgd, momentum, adamw, adam, adafactor, muon.",
        ),
        ("adamw momentun=1", "optimizer: 'momentun' is not a setting. Did you mean 'momentum'?"),
        ("AdamW lr=1", "optimizer: 'AdamW' is not an optimizer. Did you mean 'adamw'?"),
        ("adamw weight_decay=.1", "optimizer: 'weight_decay' is not a setting. Did you mean 'wd'?"),
        ("adamw weight-decay=.1", "optimizer: 'weight-decay' is not a setting. Did you mean 'wd'?"),
        ("sgd learning_rate=1", "optimizer: 'learning_rate' is not a setting. Did you mean 'lr'?"),
        ("adamw beta1=0.9", "optimizer: 'beta1' is not a setting. Did you mean 'betas'?"),
        ("adamw LR=1", "optimizer: 'LR' is not a setting. Did you mean 'lr'?"),
        ("adamw name=sgd", "optimizer: 'name' is not a setting."),
        ("adamw lr=fast", "optimizer.lr: 'fast' is not a number of 0 or more. Write one."),
        ("adamw lr", "optimizer.lr: '' is not a number of 0 or more. Write one."),
        ("adamw lr=-1", "optimizer.lr: '-1' is not a number of 0 or more. Write one."),
        ("adamw lr=nan", "optimizer.lr: 'nan' is not a number of 0 or more. Write one."),
        ("adamw lr=inf", "optimizer.lr: 'inf' is not a number of 0 or more. Write one."),
        ("adamw lr=1e999", "optimizer.lr: '1e999' is not a number of 0 or more. Write one."),
        ("adamw lr=١", "optimizer.lr: '١' is not a number of 0 or more. Write one."),
        (
            "adamw momentum=0.9",
            "optimizer.momentum: adamw does not read it. It is a setting of sgd and muon.",
        ),
        (
            "sgd betas=0.9,0.95",
            "optimizer.betas: sgd does not read it. It is a setting of adam, adamw and muon.",
        ),
        ("adamw betas=0.9,1", "optimizer.betas: 0.9,1 must be under 1. Try 0.9,0.95."),
        ("adamw betas=0.9", "optimizer.betas: '' is not a number of 0 or more. Write one."),
        (
            "adamw group=a:lr=2",
            "optimizer.group: 'lr=2' is not a setting of a group. "
            "Write group=PATTERN:lr=x0.1,wd=0.",
        ),
        (
            "adamw group=a:lr=xx",
            "optimizer.group.lr: 'x' is not a number of 0 or more. Write one.",
        ),
        (
            "adamw group=:wd=0",
            "optimizer.group: '' is not a pattern of parameter names. "
            "Write group=PATTERN:wd=0, the pattern without spaces.",
        ),
        (
            "adamw group=bias",
            "optimizer.group: 'bias' sets nothing for the parameters it matches. "
            "Write group=bias:wd=0 or :lr=x0.1.",
        ),
        (
            "adamw group=\0",
            "optimizer.group: '\\x00' is not a pattern of parameter names. "
            "Write group=PATTERN:wd=0, the pattern without spaces.",
        ),
    ],
)
def test_a_mistake_is_named(text, message):
    with pytest.raises(PlanError) as caught:
        Optimizer.parse(text)
    assert str(caught.value).startswith(message)


def test_a_pattern_with_a_space_would_not_read_back_and_is_refused():
    with pytest.raises(PlanError, match="'a b' is not a pattern of parameter names"):
        Optimizer().change(["group=a b:wd=0"])
