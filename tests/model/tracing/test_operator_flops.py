"""FLOPs of operators other than matmuls, against torch's own counter and closed forms."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from stepladder.model import count_flops, describe

torch.set_num_threads(1)


def by_torchs_counter(module: nn.Module, inputs: torch.Tensor) -> tuple[int, int]:
    """Forward and backward of a recurrent module whose time steps run as single matmuls."""
    was, torch.backends.mkldnn.enabled = torch.backends.mkldnn.enabled, False
    try:
        with FlopCounterMode(display=False) as counter:
            output, _ = module(inputs)
            forward = counter.get_total_flops()
            output.sum().backward()
            return forward, counter.get_total_flops() - forward
    finally:
        torch.backends.mkldnn.enabled = was


@pytest.mark.parametrize(
    "module",
    [
        nn.LSTM(6, 8, 2, batch_first=True),
        nn.LSTM(6, 8, bidirectional=True),
        nn.LSTM(6, 8, proj_size=4),
        nn.GRU(6, 8),
    ],
    ids=["lstm", "bidirectional", "projected", "gru"],
)
@pytest.mark.parametrize("trained", [False, True], ids=["data", "activations"])
def test_recurrent_layers_count_as_their_time_steps(module: nn.Module, trained: bool) -> None:
    inputs = torch.randn(3, 5, 6, requires_grad=trained)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = module, nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x * self.scale if trained else x)[0]

    flops = count_flops(Reader(), inputs.detach())
    assert (flops.forward, flops.backward) == by_torchs_counter(module, inputs)


def test_a_described_lstm_has_its_flops() -> None:
    module = nn.LSTM(6, 8, batch_first=True)
    facts = describe(module, sample=torch.zeros(1, 5, 6))
    matrices = sum(p.numel() for p in module.parameters() if p.dim() == 2)
    assert facts.flops_per_sample == 3 * 2 * 5 * matrices


def test_a_bilinear_form_multiplies_each_entry_of_its_weight_once_a_row() -> None:
    flops = count_flops(nn.Bilinear(3, 4, 5), (torch.zeros(7, 3), torch.zeros(7, 4)))
    assert flops.forward == flops.backward == 2 * 7 * 5 * 3 * 4  # only the weight has a gradient


class Spectral(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x, dim=-1)


def test_a_fourier_transform_costs_n_log_n() -> None:
    signal = torch.zeros(3, 16, dtype=torch.complex64)
    assert count_flops(Spectral(), signal).forward == 3 * 5 * 16 * 4
    assert count_flops(Spectral(), torch.zeros(3, 16)).forward == 3 * 5 * 16 * 4 / 2


def test_element_wise_work_is_counted_apart() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Softmax(-1))
    flops = count_flops(module, torch.zeros(10, 4))
    assert flops.forward == 2 * 10 * 4 * 4
    assert flops.elementwise == 40 * (8 + 1 + 5) and not flops.uncounted
