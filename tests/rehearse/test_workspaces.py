"""What kernels take for themselves, against allocations seen around operations on an H200."""

import pytest
import torch
from torch import nn

from stepladder.rehearse import rehearse
from stepladder.rehearse.workspaces.attention import attention_backward_bytes
from stepladder.rehearse.workspaces.convolution import (
    convolution_backward_bytes,
    convolution_bytes,
)
from stepladder.rehearse.workspaces.kernel_scratch import copies, whole_result
from stepladder.rehearse.workspaces.reductions import column_sum_bytes
from stepladder.rehearse.workspaces.sorting import embedding_backward_bytes, index_put_bytes

MIB = 2**20


def tensor(*shape, half=True):
    return torch.empty(shape, device="meta", dtype=torch.bfloat16 if half else torch.float32)


@pytest.mark.parametrize(
    ("rows", "columns", "measured"),
    [(9856, 2048, 132 * MIB), (25088, 3072, 132 * MIB), (128, 768, 0)],
)
def test_sums_of_columns_take_the_partial_sums_of_every_block(rows, columns, measured):
    assert column_sum_bytes((tensor(rows, columns, half=False), [0]), None) == measured


def test_other_sums_take_nothing():
    assert column_sum_bytes((tensor(9856, 2048), [1]), None) == 0
    assert column_sum_bytes((tensor(8, 9856, 2048), [0]), None) == 0


def window(images, weight, made, half, stride=1, transposed=False, groups=1):
    """The arguments of a convolution and its result."""
    sides, kinds = len(images) - 2, (images, weight, made)
    x, w, y = (tensor(*shape, half=half) for shape in kinds)
    return (x, w, None, [stride] * sides, [0] * sides, [1] * sides, transposed, [0], groups), y


@pytest.mark.parametrize(
    ("images", "weight", "made", "half", "stride", "groups", "mib"),
    [
        # resnet50's first, a strided matrix product, a window; vit_b_16's patches
        ((256, 3, 224, 224), (64, 3, 7, 7), (256, 64, 112, 112), True, 2, 1, 588),
        ((256, 256, 56, 56), (512, 256, 1, 1), (256, 512, 28, 28), True, 2, 1, 588),
        ((256, 128, 28, 28), (128, 128, 3, 3), (256, 128, 28, 28), True, 1, 1, 98.3),
        ((128, 3, 224, 224), (768, 3, 16, 16), (128, 768, 14, 14), True, 16, 1, 138),
        # wav2vec2's lines, a scan, regnet's groups, maxvit's channels by themselves
        ((16, 512, 9599), (512, 512, 3), (16, 512, 4799), True, 2, 1, 226.5),
        ((2, 64, 64, 64, 64), (32, 64, 3, 3, 3), (2, 32, 64, 64, 64), True, 1, 1, 96.1),
        ((64, 336, 28, 28), (336, 24, 3, 3), (64, 336, 14, 14), True, 2, 14, 54),
        ((32, 256, 112, 112), (256, 1, 3, 3), (32, 256, 56, 56), True, 2, 256, 0),
        ((64, 128, 56, 56), (128, 128, 1, 1), (64, 128, 56, 56), True, 1, 1, 0),
        # float32: a U-Net's deep layers go through Fourier transforms, others take nothing
        ((32, 512, 16, 16), (512, 512, 3, 3), (32, 512, 16, 16), False, 1, 1, 2322),
        ((32, 128, 32, 32), (128, 128, 3, 3), (32, 128, 32, 32), False, 1, 1, 660.6),
        ((32, 256, 64, 64), (128, 256, 3, 3), (32, 128, 64, 64), False, 1, 1, 0),
        ((64, 3, 224, 224), (64, 3, 7, 7), (64, 64, 112, 112), False, 2, 1, 0),
    ],
)
def test_a_convolution_takes_what_was_measured(images, weight, made, half, stride, groups, mib):
    args, result = window(images, weight, made, half, stride, groups=groups)
    assert convolution_bytes(args, result) == pytest.approx(mib * MIB, rel=0.05)


@pytest.mark.parametrize(
    ("images", "weight", "made", "half", "stride", "mib"),
    [
        ((256, 128, 56, 56), (128, 128, 3, 3), (256, 128, 28, 28), True, 2, 252.6),
        ((256, 512, 28, 28), (256, 512, 1, 1), (256, 256, 28, 28), True, 1, 128),
        ((64, 256, 56, 56), (128, 256, 1, 1), (64, 128, 56, 56), True, 1, 8),
        ((64, 128, 56, 56), (32, 128, 3, 3), (64, 32, 56, 56), False, 1, 276.2),
        ((32, 64, 112, 112), (64, 64, 3, 3), (32, 64, 112, 112), False, 1, 442),
        ((64, 128, 28, 28), (32, 128, 3, 3), (64, 32, 28, 28), False, 1, 92),
        ((16, 512, 9599), (512, 512, 3), (16, 512, 4799), False, 2, 452.9),
        ((16, 128, 8192), (256, 128, 3), (16, 256, 8192), False, 1, 0),
        ((2, 64, 64, 64, 64), (32, 64, 3, 3, 3), (2, 32, 64, 64, 64), False, 1, 192.2),
    ],
)
def test_its_backward_takes_what_was_measured(images, weight, made, half, stride, mib):
    (x, w, _, *ways), y = window(images, weight, made, half, stride)
    taken = convolution_backward_bytes((y, x, w, None, *ways, (True, True, False)), None)
    assert taken == pytest.approx(mib * MIB, rel=0.05)


def test_a_gradient_that_is_not_contiguous_is_copied_by_its_convolution():
    args, y = window((16, 512, 3000), (512, 512, 3), (16, 512, 1500), True, 2)
    across = y.transpose(1, 2).contiguous().transpose(1, 2)
    both = [
        convolution_backward_bytes((g, *args[:2], None, *args[3:], (True, True, True)), None)
        for g in (y, across)
    ]
    assert both[1] - both[0] == 2 * y.numel()


@pytest.mark.parametrize(
    ("heads", "length", "half", "mib"),
    [((64, 12), 256, True, 48.75), ((8, 12), 1024, True, 24.4), ((64, 12), 256, False, 49.5),
     ((16, 8), 1500, False, 48.8), ((128, 12), 197, False, 172)],
)  # fmt: skip
def test_attention_takes_its_sums_in_backward(heads, length, half, mib):
    query = tensor(*heads, length, 64, half=half)
    taken = attention_backward_bytes((query, query, query), None)
    assert taken == pytest.approx(mib * MIB, rel=0.03)


def test_queries_that_share_keys_take_a_gradient_each():
    query, key = tensor(2, 14, 2048, 64), tensor(2, 2, 2048, 64)
    taken = attention_backward_bytes((query, query, key), None)
    assert taken == pytest.approx(28.2 * MIB, rel=0.02)


def test_indices_are_sorted_and_their_stretches_summed():
    ids, made = torch.empty(16, 512, dtype=torch.long, device="meta"), tensor(32128, 768)
    taken = embedding_backward_bytes((made, ids, 32128, -1, False), made)
    assert taken == pytest.approx(26.8 * MIB, rel=0.01)
    assert embedding_backward_bytes((made, ids[:6], 32128, -1, False), made) == 0
    many = torch.empty(256, 512, dtype=torch.long, device="meta")
    values = tensor(256, 512, 256, half=False)
    taken = index_put_bytes((values, [many[:, :1], many], values, True), values)
    assert taken == pytest.approx(134 * MIB, rel=0.01)
    assert index_put_bytes((values, [many], values, False), values) == 0


def test_softmax_multiplies_and_norms_copy_before_they_begin():
    matrix = tensor(2, 14, 2048, 2048, half=False)
    assert whole_result((matrix,), matrix) == 448 * MIB
    rows = tensor(128, 197, 768, half=False)
    across = rows.transpose(0, 1).contiguous().transpose(0, 1)
    assert copies((rows, across, [768]), None) == 4 * rows.numel()
    assert copies((across, across, [768]), None) == 8 * rows.numel()


def test_what_kernels_take_is_part_of_the_rehearsed_peak():
    def peak(side):
        net = nn.Sequential(nn.Conv2d(64, 64, side, padding=side // 2), nn.Flatten())
        batch = torch.empty(8, 64, 64, 64)
        found = rehearse(net, "bf16", sample=batch, loss=lambda out, _: out.square().mean())
        return found.peaks["forward"]

    copied = 8 * 64 * 64 * 64 * 2 * 2  # of images before and after a window, in 16 bits
    assert peak(3) - peak(1) > copied / 2  # what else it makes covers the rest
