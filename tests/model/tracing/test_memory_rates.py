"""How fast kernels go through memory, told by what they read and write."""

import pytest
import torch

from stepladder.model.tracing.memory_rates import NON_STREAMING, is_dense, memory_rate

aten = torch.ops.aten


def row(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype)


def test_operands_of_one_type_in_one_order_stream() -> None:
    a = row(4, 8)
    assert memory_rate(aten.add, [a, a], [a]) == ("", 0)
    turned = row(8, 4).T
    assert memory_rate(aten.add, [turned, turned], [turned.clone()]) == ("", 0)
    assert memory_rate(aten._to_copy, [a], [row(4, 8, dtype=torch.bfloat16)]) == ("", 0), (
        "narrowing"
    )


@pytest.mark.parametrize(
    ("packet", "read", "out"),
    [
        (aten.native_layer_norm, [row(4, 8)], [row(4, 8)]),
        (aten._softmax, [row(4, 8)], [row(4, 8)]),
        (aten.add, [row(4, 8), row(8)], [row(4, 8)]),
        (aten.add, [row(4, 8), row(4, 8, dtype=torch.bfloat16)], [row(4, 8)]),
        (aten._to_copy, [row(4, 8, dtype=torch.bfloat16)], [row(4, 8)]),
        (aten.clone, [row(8, 4).T], [row(4, 8)]),
        (aten.mul, [row(4, 16)[:, :8]], [row(4, 8)]),
    ],
)
def test_rows_strides_and_mixed_types_are_rough(packet, read, out) -> None:
    assert memory_rate(packet, read, out) == (NON_STREAMING, 0)


def test_norms_over_channels_know_their_channels_and_pools_their_name() -> None:
    image = row(2, 64, 8, 8)
    assert memory_rate(aten.native_batch_norm, [image], [image]) == ("channel", 64)
    assert memory_rate(aten.native_group_norm_backward, [image, image], [image]) == ("group", 0)
    assert memory_rate(aten.max_pool2d_with_indices, [image], [row(2, 64, 4, 4)]) == ("pool", 0)


def test_a_tensor_is_dense_in_whatever_order_its_dimensions_lie() -> None:
    assert is_dense(row(2, 3, 4).permute(2, 0, 1)) and is_dense(row(3, 1, 4))
    assert not is_dense(row(4, 6)[:, ::2])
