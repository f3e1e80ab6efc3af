"""Errors of torch that follow from the plan come in one line; the user's own keep their trace."""

import pytest
import torch
from torch import nn

from stepladder.errors import ModelError, PlanError
from stepladder.train import climb


class Mixing(nn.Module):
    """Writes what autocast computed into a tensor of another type."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        made = torch.zeros_like(x)
        made[x[:, 0] > -9] = self.inner(x)
        return made


def step(module, plan, rows=4, loss="cross_entropy"):
    run = climb(module, loss=loss, plan=plan, device="cpu")
    return run.step((torch.randn(rows, 4), torch.zeros(rows, dtype=torch.long))).loss


def test_a_module_that_mixes_types_under_autocast():
    with pytest.raises(PlanError) as refused:
        step(Mixing(), "bf16")
    assert str(refused.value) == (
        "precision: Mixing mixes types under bf16 (Index put requires the source and destination "
        "dtypes match, got Float for the destination and BFloat16 for the source.). Cast in its "
        "forward to the type of what it combines, keep=NAME that part in fp32, or use fp32."
    )
    assert step(Mixing(), "fp32") > 0


def test_batch_norm_in_micro_batches_of_one_row():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(PlanError) as refused:
        step(net, "fp32 micro=1")
    assert str(refused.value) == (
        "batch.micro: BatchNorm needs more than one value per channel, and micro-batches have 1 "
        "row. Use micro=2 or more, or fewer passes or ranks for the batch."
    )
    assert step(net, "fp32 micro=2") > 0


ELSEWHERE = torch.ones(4, device="meta")  # the second device of a machine that has one


class Masked(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.mask = ELSEWHERE

    def forward(self, x):
        return super().forward(x) * self.mask


def weighted(output, targets):
    return nn.functional.cross_entropy(output * ELSEWHERE, targets)


def test_tensors_of_two_devices_in_forward_or_loss_are_named():
    with pytest.raises(ModelError, match=r"^Masked: 'self.mask' is on meta .*register_buffer"):
        step(Masked(), "fp32 micro=2")
    with pytest.raises(ModelError, match=r"^weighted: 'ELSEWHERE' is on meta while 'output' is on"):
        step(nn.Linear(4, 4), "fp32", loss=weighted)


class Putting(nn.Linear):
    """Writes into places that may be named twice, in whichever order comes."""

    def forward(self, x):
        y = super().forward(x)
        return y.clone().put_(torch.tensor([0, 0]), y.flatten()[:2])


@pytest.mark.parametrize("exact", ["exact=runs", "exact=ranks:1"])
def test_an_operation_without_a_deterministic_form_is_named(exact):
    run = climb(Putting(4, 2), loss="cross_entropy", plan=f"fp32 {exact}", device="cpu")
    with pytest.raises(PlanError) as refused:
        run.step((torch.randn(4, 4), torch.tensor([0, 1, 0, 1])))
    assert str(refused.value) == (
        f"exact: put_, which Putting uses, has no deterministic implementation on cpu in torch "
        f"{torch.__version__}. Use another operation, or leave exact out."
    )


def test_an_error_of_the_users_own_is_left_alone():
    class Wrong(nn.Linear):
        def forward(self, x):
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="^mine$"):
        step(Wrong(4, 4), "bf16")
