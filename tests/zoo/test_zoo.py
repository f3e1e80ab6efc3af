"""A few cells of the zoo, by the functions of benchmarks/zoo_parity.py."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import zoo_parity
from on_rank import Trained
from oracle import Plain, largest_difference
from tests.ranks import POOL


@pytest.mark.parametrize(
    ("name", "plan"),
    [("lstm", "zero1"), ("graph_network", "ddp"), ("two_tower_recommender", "micro")],
)
def test_an_architecture_is_the_same_as_in_a_plain_loop(name, plan):
    cell = zoo_parity.compare(POOL, name, plan)
    assert (cell.verdict, cell.reason) == ("same", "")
    assert (cell.resumed is not None) == (plan in zoo_parity.RESUMES)


def found_by_plain_loop(name):
    plain = zoo_parity.plain_run(name)
    return Trained(list(plain.losses), {key: one.clone() for key, one in plain.last.items()})


def test_a_wrong_tensor_a_wrong_loss_and_a_missing_tensor_are_broken():
    found = found_by_plain_loop("lstm")
    assert zoo_parity.judge("lstm", "ddp", [found], {}).verdict == "same"
    moved = found.tensors["lstm.bias_ih_l0"] - zoo_parity.plain_run("lstm").first["lstm.bias_ih_l0"]
    found.tensors["lstm.bias_ih_l0"].sub_(0.01 * moved)
    cell = zoo_parity.judge("lstm", "ddp", [found], {})
    assert (cell.verdict, cell.reason) == ("BROKEN", "lstm.bias_ih_l0 differs by 1.0e-02")
    found = found_by_plain_loop("lstm")
    found.losses[1] *= 1.01
    cell = zoo_parity.judge("lstm", "ddp", [found], {})
    assert (cell.verdict, cell.reason) == ("BROKEN", "the loss differs by 1.0e-02")
    found = found_by_plain_loop("lstm")
    del found.tensors["head.bias"]
    cell = zoo_parity.judge("lstm", "ddp", [found], {})
    assert (cell.verdict, cell.reason) == ("BROKEN", "no rank has head.bias")


def test_a_counter_that_moves_does_not_hide_a_wrong_tensor():
    first = {"weight": torch.zeros(2), "num_batches_tracked": torch.tensor(0)}
    last = {"weight": torch.ones(2), "num_batches_tracked": torch.tensor(3)}
    plain = Plain([1.0], first, last)
    assert largest_difference(plain, last) == (0.0, "weight")
    assert largest_difference(plain, {**last, "weight": torch.tensor([1.0, 0.5])})[0] == 0.5
    off = {**last, "num_batches_tracked": torch.tensor(4)}
    assert largest_difference(plain, off) == (float("inf"), "num_batches_tracked")


def test_a_refusal_keeps_its_line_and_must_be_every_ranks():
    refused, trained = Trained([], {}, refused="layout.tensor: no."), found_by_plain_loop("lstm")
    assert zoo_parity.judge("lstm", "tensor", [refused] * 2, {}).verdict == "refused"
    absent = {"tensor": "it has no matrix"}
    assert zoo_parity.judge("lstm", "tensor", [refused] * 2, absent).verdict == "not applicable"
    assert zoo_parity.judge("lstm", "tensor", [refused, trained], {}).verdict == "BROKEN"


def test_no_parameter_starts_at_a_constant():
    for name in ("lstm", "two_tower_recommender", "autoencoder"):
        for parameter in zoo_parity.make_problem(name).module.parameters():
            assert parameter.numel() == 1 or parameter.std() > 0
            assert torch.isfinite(parameter).all()
