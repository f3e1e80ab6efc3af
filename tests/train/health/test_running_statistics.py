"""A batch that is not finite leaves no trace in running statistics where the run goes on."""

import pytest
import torch
from torch import nn

from stepladder.train import climb
from tests.train.toys import pairs


def start(policy):
    torch.manual_seed(0)
    width = pairs(1)[0][0].shape[1]
    module = nn.Sequential(nn.Linear(width, 8), nn.BatchNorm1d(8), nn.Linear(8, 16))
    return climb(module, loss="cross_entropy", optimizer="sgd lr=0.1", plan="fp32",
                 nonfinite=policy)  # fmt: skip


def poisoned(batch):
    inputs, targets = batch
    inputs = inputs.clone()
    inputs[1] = float("nan")
    return inputs, targets


def statistics(run):
    return run.module[1].running_mean.clone(), run.module[1].running_var.clone()


@pytest.mark.parametrize("policy", ["skip", "backoff"])
def test_statistics_are_put_back_to_where_somebody_last_looked(policy):
    run, good = start(policy), pairs(4)
    run.step(good[0]).read()
    sound = statistics(run)
    run.step(poisoned(good[1])).read()
    for before, now in zip(sound, statistics(run)):
        torch.testing.assert_close(now, before, rtol=0, atol=0)
    run.step(good[2]).read()
    assert not torch.equal(statistics(run)[0], sound[0]), "and move on"


def test_before_an_evaluation_and_a_save_somebody_looks(tmp_path):
    run, good = start("skip"), pairs(3)
    first = statistics(run)
    run.step(poisoned(good[0]))
    run.save(tmp_path)
    assert torch.equal(statistics(run)[0], first[0])
    run.step(poisoned(good[1]))
    assert torch.tensor(run.evaluate([good[2]])).isfinite()
    run.load(tmp_path)
    run.step(poisoned(good[1])).read()
    assert torch.equal(statistics(run)[1], first[1])
