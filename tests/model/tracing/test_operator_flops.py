"""FLOPs of operators other than matmuls, against torch's own counter and hand formulas."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from stepladder.model import count_flops, describe
from stepladder.planner import forecast

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


class Scoring(nn.Module):
    """A product with a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def test_a_product_with_a_vector_is_a_matmul_of_one_column() -> None:
    flops = count_flops(Scoring(), torch.zeros(10, 4))
    assert flops.forward == flops.backward == 2 * 10 * 4  # only the weight has a gradient


@pytest.mark.parametrize(
    ("module", "sample", "forward"),
    [
        (nn.Bilinear(3, 4, 5), (torch.zeros(1, 7, 3), torch.zeros(1, 7, 4)), 2 * 7 * 3 * 4 * 5),
        (Scoring(), torch.zeros(1, 7, 4), 2 * 7 * 4),
        (nn.Conv1d(3, 5, 2), torch.zeros(1, 3, 9), 2 * 8 * 5 * 3 * 2),
    ],
    ids=["bilinear", "vector", "convolution"],
)
def test_a_described_module_has_the_flops_of_its_operators(module, sample, forward) -> None:
    assert describe(module, sample=sample).flops_per_sample == 3 * forward


class Distances(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(super().forward(x), x)


class Mixing(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(super().forward(x).float()).abs()


@torch.library.custom_op("stepladder_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda context, gradient: 2 * gradient)


class Extended(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return doubled(super().forward(x))


@pytest.mark.parametrize(
    ("module", "operator"),
    [(Distances(4, 4), "cdist"), (Extended(4, 4), "doubled"), (Mixing(4, 4), "fft")],
)
def test_facts_without_a_countable_operator_have_no_flops_and_no_mfu(module, operator) -> None:
    facts = describe(module, sample=torch.zeros(1, 4, 4))
    (name,) = facts.uncounted
    assert operator in name and facts.flops_per_sample is facts.flops_per_token is None
    said = forecast(facts, "bf16 micro=1 batch=1", "1 x H200")
    assert said.time is not None and said.flops_per_step is said.mfu is None


def test_a_total_without_an_operator_names_it() -> None:
    assert count_flops(Extended(4, 4), torch.zeros(2, 4)).uncounted == (
        "stepladder_tests::doubled",
    )
    assert not count_flops(Spectral(), torch.zeros(3, 16)).uncounted


def test_element_wise_work_is_counted_apart() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Softmax(-1))
    flops = count_flops(module, torch.zeros(10, 4))
    assert flops.forward == flops.backward == 2 * 10 * 4 * 4
    assert flops.elementwise == 40 * (8 + 1 + 5) and not flops.uncounted


class Copied(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).contiguous().masked_fill(torch.ones(8, 10) > 0, 0.0)


@pytest.mark.parametrize(
    ("module", "flops"),
    [
        (Copied(), 0),
        (nn.BatchNorm1d(8), 80 * 8),
        (nn.Upsample(scale_factor=2, mode="linear"), 160 * 3),
        (nn.AdaptiveAvgPool1d(1), 80),
    ],
    ids=["copies", "batch norm", "interpolation", "pool"],
)
def test_an_operator_counts_by_what_it_reads_or_writes(module: nn.Module, flops: int) -> None:
    shape = (10, 8) if isinstance(module, Copied | nn.BatchNorm1d) else (1, 10, 8)
    counted = count_flops(module, torch.zeros(shape))
    assert (counted.elementwise, counted.forward) == (flops, 0) and not counted.uncounted


@pytest.mark.parametrize(
    ("module", "per_unit", "layers"),
    [(nn.LSTM(6, 8), 13, 1), (nn.LSTM(6, 8, 2, bidirectional=True), 13, 4), (nn.GRU(6, 8), 10, 1),
     (nn.RNN(6, 8), 2, 1)],
    ids=["lstm", "deep lstm", "gru", "rnn"],
)  # fmt: skip
def test_gates_count_for_each_hidden_unit_and_time_step(module, per_unit, layers) -> None:
    """An LSTM runs as one operator, a GRU and an RNN as many."""
    flops = count_flops(module, torch.zeros(5, 3, 6))
    assert flops.elementwise == 5 * 3 * 8 * per_unit * layers


class Attending(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


def test_fused_attention_has_the_softmax_and_scaling_of_the_scores_it_needs() -> None:
    flops = count_flops(Attending(), torch.zeros(2, 4, 16, 8))
    assert flops.elementwise == (5 + 1) * 2 * 4 * 16 * 16 // 2
