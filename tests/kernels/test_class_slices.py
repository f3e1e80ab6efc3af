"""Cross-entropy of classes spread over ranks against float64, here with every rank's slice in one
process. `test_kernels_interpreted` runs it again with TRITON_INTERPRET=1: then the Triton
programs. With real ranks: tests/rungs/test_fused_head_on_ranks.py."""

import pytest
import torch
import torch.nn.functional as F

from stepladder.kernels.class_slices import columns_of, finish_, statistics

BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 1e-2}
WIDTHS = (5, 17, 15)  # of three ranks
TOKENS = 11


def drawn(dtype, ignored=-100):
    draw = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(TOKENS, sum(WIDTHS), generator=draw)).to(dtype)
    targets = torch.randint(0, sum(WIDTHS), (TOKENS,), generator=draw)
    targets[2::4] = ignored
    return logits, targets


def by_slice(logits, targets, share, ignore_index=-100):
    """What each rank makes of its slice: its losses, and its part of the gradient."""
    mine = [part.contiguous() for part in logits.split(WIDTHS, 1)]
    firsts = [sum(WIDTHS[:rank]) for rank in range(len(WIDTHS))]
    columns = [
        columns_of(targets, first, width, ignore_index) for first, width in zip(firsts, WIDTHS)
    ]
    gathered = torch.stack([statistics(*each) for each in zip(mine, columns)])
    losses = [finish_(part, own, gathered, share) for part, own in zip(mine, columns)]
    return losses, torch.cat(mine, 1)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_slices_together_are_the_loss_and_gradient_of_all_classes(dtype):
    logits, targets = drawn(dtype)
    share = torch.tensor(0.25)
    losses, gradient = by_slice(logits, targets, share)
    exact = logits.double().requires_grad_()
    wanted = F.cross_entropy(exact, targets, reduction="none")
    (expected,) = torch.autograd.grad(wanted.sum() * 0.25, exact)
    for found in losses:
        assert torch.equal(found, losses[0])
        assert (found - wanted).norm() <= 2e-6 * wanted.norm()
    assert (gradient - expected).norm() <= BOUNDS[dtype] * expected.norm()
    assert not gradient[targets == -100].any()


def test_an_ignored_index_may_be_a_class_and_an_unknown_target_is_nan():
    logits, targets = drawn(torch.float32, ignored=3)
    targets[0] = sum(WIDTHS)  # of no rank
    losses, gradient = by_slice(logits, targets, torch.ones(()), ignore_index=3)
    counted = targets != 3
    assert not losses[1][~counted].any() and not gradient[~counted].any()
    assert losses[1].isnan().tolist() == gradient.isnan().all(1).tolist()
    assert losses[1].isnan().nonzero().tolist() == [[0]]
