"""Tables cut along their classes answer as whole ones do."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from stepladder.loss.sliced_cross_entropy import first_class, sliced_cross_entropy
from stepladder.rungs.tensor.vocabulary_parallel import (
    as_slice,
    cut_embedding,
    whole_logits,
)
from tests.ranks import run

CLASSES = 7  # four on one rank, three on the other


def made(dtype: torch.dtype):
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, CLASSES, generator=draw) * 4
    targets = torch.randint(0, CLASSES, (2, 5), generator=draw)
    targets[0, 1:] = targets[1, 3] = -100
    return logits.to(dtype), targets


def mine(tensor: torch.Tensor, mesh) -> torch.Tensor:
    return tensor.chunk(mesh.size(), -1)[mesh.get_local_rank()]


def judge(dtype: torch.dtype, gathered: bool):
    """The loss and this rank's part of the gradient."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    logits, targets = made(dtype)
    part = mine(logits, mesh).clone().requires_grad_()
    if gathered:
        rows = whole_logits(part, CLASSES, mesh).flatten(0, -2).float()
        loss = functional.cross_entropy(rows, targets.flatten())
    else:
        loss = sliced_cross_entropy(as_slice(part, CLASSES, mesh), targets)
    (3 * loss).backward()
    return loss.detach(), part.grad


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_and_its_gradient_are_those_of_whole_logits(dtype, gathered):
    logits, targets = made(dtype)
    logits.requires_grad_()
    loss = functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())
    (3 * loss).backward()
    ranks = run(judge, 2, dtype, gathered)
    for found, _ in ranks:
        torch.testing.assert_close(found, loss.detach())
    torch.testing.assert_close(torch.cat([part for _, part in ranks], -1), logits.grad)


def judge_odd_targets():
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    logits, targets = made(torch.float32)
    targets[1, 0] = CLASSES
    huge = mine(logits, mesh) * 1e4
    return (
        sliced_cross_entropy(as_slice(mine(logits, mesh), CLASSES, mesh), targets).item(),
        sliced_cross_entropy(as_slice(huge, CLASSES, mesh), made(torch.float32)[1]).item(),
        first_class(CLASSES, mesh),
    )


def test_a_target_that_is_no_class_shows_and_huge_logits_stay_finite():
    for index, (odd, huge, first) in enumerate(run(judge_odd_targets, 2)):
        assert odd != odd and 0 <= huge < float("inf")
        assert first == 4 * index


def table() -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(CLASSES, 3, padding_idx=5)


TOKENS = torch.tensor([[0, 6, 5], [3, 4, 5]])


def look_up_and_learn():
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    cut = table()
    cut_embedding("tokens", cut, mesh)
    rows = cut(TOKENS)
    rows.square().sum().backward()
    return rows.detach(), cut.weight.grad.full_tensor()


def test_rows_are_found_on_whichever_rank_has_them():
    plain = table()
    rows = plain(TOKENS)
    rows.square().sum().backward()
    for found, gradient in run(look_up_and_learn, 2):
        torch.testing.assert_close(found, rows.detach())
        torch.testing.assert_close(gradient, plain.weight.grad)
