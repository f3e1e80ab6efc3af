"""What clipping divides by, held against torch's own clipping."""

import pytest
import torch
from torch import nn

from stepladder.train.optimizer.gradient_norm import Norms


@pytest.mark.parametrize("norm", [0.02, 0.0999995, 0.11, 30.0])
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_gradients_are_clipped_as_torch_clips_them(norm, scale):
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = torch.tensor([0.5, -0.5, 0.5, 0.5]) * norm
    given = parameter.grad * scale
    nn.utils.clip_grad_norm_([parameter], 0.1)
    whole = given.norm()
    divisor = Norms(["weight"], whole[None], whole).divisor(torch.tensor(scale), 0.1)
    torch.testing.assert_close(given / divisor, parameter.grad, rtol=2e-7, atol=0)
