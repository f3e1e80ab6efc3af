"""What `climb` makes of a plan on the ranks that were started."""

import os

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepladder.errors import ModelError, PlanError
from stepladder.plan import Layout, Plan
from stepladder.train import climb
from tests.ranks import run


def draw():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2), torch.randn(8, 4), torch.randint(0, 2, (8,))


def climbed(plan):
    module, x, y = draw()
    made = climb(module, loss="cross_entropy", optimizer="sgd lr=0.5", plan=plan, device="cpu")
    made.step((x, y), rows="global").read()
    return made.plan.layout, made.because, module.weight.detach()


def plain():
    module, x, y = draw()
    functional.cross_entropy(module(x), y).backward()
    return module.weight.detach() - 0.5 * module.weight.grad


def test_a_plan_without_a_layout_is_data_parallel_over_the_ranks_that_were_started():
    expected = plain()
    for plan in ("fp32 micro=2", Plan()):
        for layout, because, weight in run(climbed, 2, plan):
            assert layout == Layout(replicate=2)
            assert because == "the plan names no layout: each of 2 ranks holds a whole copy"
            assert torch.allclose(weight, expected, atol=1e-6)


def test_on_one_process_nothing_is_said():
    assert climbed("fp32 micro=2")[:2] == (Layout(), "")


def test_a_device_may_be_torchs_own():
    module = torch.nn.Linear(4, 2)
    run = climb(module, loss="cross_entropy", plan="fp32", device=torch.device("cpu"))
    assert run.world.device == torch.device("cpu")


def test_a_plan_that_is_neither_words_nor_a_plan_is_refused_in_a_line():
    with pytest.raises(PlanError) as refused:
        climb(torch.nn.Linear(4, 2), loss="cross_entropy", plan=None)
    assert str(refused.value) == (
        "plan: a NoneType is neither words nor a Plan. Write 'auto', or words such as 'bf16 zero3'."
    )


def test_an_exact_run_says_so_in_its_plan_and_fixes_what_libraries_choose(monkeypatch):
    for name in ("CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO"):
        monkeypatch.delenv(name, raising=False)
    module, *_ = draw()
    climb(module, loss="cross_entropy", plan="fp32", device="cpu")
    assert "NCCL_ALGO" not in os.environ
    made = climb(module, loss="cross_entropy", plan="fp32", device="cpu", exact=True)
    assert "exact=runs" in str(made.plan)
    assert os.environ["NCCL_ALGO"] == "Ring" and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    kept = climb(module, loss="cross_entropy", plan="fp32 exact=ranks", device="cpu", exact=True)
    assert "exact=ranks:8" in str(kept.plan)


def test_a_module_without_a_forward_is_refused():
    class Unfinished(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

    with pytest.raises(ModelError, match="Unfinished: has no forward. Define"):
        climb(Unfinished(), loss="squared_error", plan="fp32", device="cpu")


def start(plan):
    return climb(torch.nn.Linear(4, 3), loss="cross_entropy", plan=plan, device="cpu")


def test_a_group_in_a_plan_must_match_a_parameter():
    words = "fp32 'optimizer=sgd lr=0.1 group=*.bais:wd=0'"
    with pytest.raises(PlanError, match=r"'\*\.bais' matches none of 2 parameters"):
        start(words)


def test_a_batch_that_is_no_step_of_so_many_micro_batches_is_refused():
    run = start("fp32 micro=2 accumulate=3")
    batch = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    with pytest.raises(PlanError) as raised:
        run.step(batch)
    assert str(raised.value) == (
        "batch.accumulate: 3 micro-batches of 2 x 1 data ranks make 6, and the batch has 8 rows. "
        "Use accumulate=4 or leave it out."
    )
    for rows in (6, 5):
        assert run.step((batch[0][:rows], batch[1][:rows])).loss > 0
