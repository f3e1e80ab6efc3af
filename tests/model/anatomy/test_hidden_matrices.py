"""What is a hidden matrix, and what is not."""

import torch
from torch import nn

from stepladder.model import build, find_anatomy
from stepladder.model.anatomy.hidden_matrices import MatrixShape, hidden_matrices
from stepladder.model.anatomy.parameter_parts import count_parameters
from tests.train.toys import gpt, llama, net


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.filters, self.depthwise = nn.Conv2d(6, 4, 3), nn.Conv2d(4, 4, 3, groups=4)
        self.norm, self.kinds = nn.LayerNorm(4), nn.Embedding(3, 4)
        self.experts = nn.Parameter(torch.ones(5, 4, 6))
        self.bias_table = nn.Parameter(torch.ones(9, 2))
        self.column = nn.Linear(4, 1)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.pooler, self.head = nn.Linear(4, 4), nn.Linear(4, 9)


def found(module):
    return hidden_matrices(module, find_anatomy(module))


def test_weights_inside_the_blocks_are_and_tables_vectors_and_ends_are_not():
    inside = {
        "linear.weight": MatrixShape(6, 4),
        "filters.weight": MatrixShape(4, 54),
        "experts": MatrixShape(4, 6, 5),
    }
    wanted = {f"layers.{i}.{name}": shape for i in range(2) for name, shape in inside.items()}
    assert found(Mixed()) == wanted


def test_gates_beside_ups_of_every_expert_are_a_stack():
    names = found(build("mixtral-tiny", device="meta"))
    assert names["blocks.0.mlp.experts.gate_up"] == MatrixShape(128, 128, 16)
    assert names["blocks.0.mlp.experts.down"] == MatrixShape(128, 128, 8)


def test_a_module_without_blocks_is_taken_whole_but_for_its_head():
    assert found(net()) == {"first.weight": MatrixShape(32, 16)}


def test_every_product_of_a_built_in_block_is():
    for module, number in ((gpt(), 4), (llama(), 7)):
        names = found(module)
        assert all(name.startswith("blocks.") for name in names)
        assert len(names) >= 2 * number and not any("norm" in name for name in names)


def test_parts_count_them_with_their_rows():
    module = Mixed()
    counts = count_parameters(module, find_anatomy(module)).of("layers.0")
    assert (counts.matrices, counts.matrix_rows) == (24 + 216 + 120, 6 + 4 + 20)
    assert count_parameters(module, find_anatomy(module)).of("exit").matrices == 0
