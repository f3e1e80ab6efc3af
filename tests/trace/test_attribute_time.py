"""The reducer on timelines made by hand: every moment has one cause, and the right one."""

import pytest

from stepladder.trace import reduce_spans
from stepladder.trace.spans import DATA, STEP, SYNC, UPDATE, Span, self_times

MAIN, BACKWARD, LOADER = "thread 1", "thread 2", "thread 9"


def phase(name, start, end):
    return Span(name, start, end, MAIN, "phase")


def op(name, start, end, lane=MAIN):
    return Span(name, start, end, lane, "op")


def kernel(name, start, end, stream=7, launched_at=None):
    return Span(name, start, end, f"stream {stream}", "kernel", launched_at)


def causes(*spans, floor=0):
    return {name: spent for name, spent in reduce_spans(spans, floor=floor).causes.items() if spent}


def test_on_a_processor_nested_operations_count_once_and_the_rest_is_the_hosts():
    assert causes(
        phase(DATA, 0, 10),
        phase(STEP, 10, 100),
        op("aten::linear", 20, 50),
        op("aten::addmm", 25, 48),
        op("aten::copy_", 26, 28),  # inside a product: part of it
        op("aten::gelu", 50, 60),
    ) == {"data": 10, "matrix": 23, "memory_bound": 17, "host": 50}


def test_the_first_moments_of_an_operation_are_launching():
    spans = [phase(STEP, 0, 50), op("aten::addmm", 0, 20), op("aten::add", 20, 23)]
    assert causes(*spans, floor=4) == {"launch": 7, "matrix": 16, "host": 27}


def test_views_and_autograds_own_time_are_launching():
    assert causes(
        phase(STEP, 0, 30),
        op("aten::view", 0, 5),
        op("autograd::engine::evaluate_function: AddmmBackward0", 5, 25),
        op("aten::mm", 10, 20),
    ) == {"launch": 15, "matrix": 10, "host": 5}


def test_a_loaders_threads_are_not_on_the_steps_way_and_autograds_are():
    assert causes(
        phase(STEP, 0, 100),
        op("aten::mm", 10, 90, LOADER),
        op("autograd::engine::evaluate_function: MmBackward0", 20, 60, BACKWARD),
        op("aten::mm", 20, 60, BACKWARD),
    ) == {"matrix": 40, "host": 60}


def test_attention_includes_the_matmuls_inside_it():
    spans = [
        phase(STEP, 0, 20),
        op("aten::scaled_dot_product_attention", 0, 20),
        op("aten::bmm", 5, 15),
    ]
    assert causes(*spans) == {"attention": 20}


def test_a_collective_beside_work_is_hidden_and_alone_exposed():
    found = reduce_spans(
        [
            phase(STEP, 0, 100),
            op("aten::mm", 0, 60),
            op("c10d::allreduce_", 60, 62),
            Span("gloo:all_reduce", 40, 90, LOADER, "travel"),
        ]
    )
    spent = {name: moments for name, moments in found.causes.items() if moments}
    assert spent == {"matrix": 60, "communication": 30, "host": 10}
    assert found.collectives == {"all_reduce": 30}
    assert found.hidden == {"all_reduce": 20}


def test_waiting_for_a_neighbour_stage_is_the_bubble():
    spans = [phase(STEP, 0, 10), Span("gloo:recv", 2, 9, LOADER, "travel")]
    assert causes(*spans) == {"bubble": 7, "host": 3}


def test_all_of_the_update_is_the_optimizers_but_its_collectives():
    assert causes(
        phase(STEP, 0, 100),
        phase(UPDATE, 60, 100),
        op("aten::mm", 0, 60),
        op("aten::_fused_adamw_", 65, 85),
        Span("gloo:all_gather", 85, 95, LOADER, "travel"),
    ) == {"matrix": 60, "optimizer": 30, "communication": 10}


def test_on_a_device_streams_overlap_and_matmuls_come_first():
    assert causes(
        phase(STEP, 0, 20),
        phase(SYNC, 20, 100),
        kernel("ampere_bf16_gemm_128", 10, 50),
        kernel("vectorized_elementwise_kernel", 30, 60, stream=8),
        kernel("ncclDevKernel_AllReduce_Sum_f32", 40, 80, stream=20),
    ) == {"matrix": 40, "memory_bound": 10, "communication": 20, "host": 30}


def test_where_the_device_stands_still_the_host_says_why():
    found = reduce_spans(
        [
            phase(DATA, 0, 10),
            phase(STEP, 10, 60),
            phase(UPDATE, 50, 60),
            phase(SYNC, 60, 80),
            op("aten::mm", 12, 20),
            Span("cudaLaunchKernel", 15, 19, MAIN, "runtime"),
            kernel("gemm", 20, 40, launched_at=15),
            kernel("multi_tensor_apply_kernel", 56, 70, launched_at=52),
        ]
    )
    assert {name: spent for name, spent in found.causes.items() if spent} == {
        "matrix": 20,
        "data": 10,
        "launch": 8,
        "optimizer": 6 + 14,
        "host": 2 + 10 + 10,
    }
    assert found.busy == 34
    assert found.operations == 2


def test_copies_stream_and_what_waits_for_the_device_is_noticed():
    found = reduce_spans(
        [
            phase(STEP, 0, 50),
            kernel("gemm", 0, 30),
            Span("Memcpy DtoH", 30, 40, "stream 7", "copy"),
            Span("cudaStreamSynchronize", 20, 45, MAIN, "runtime"),
        ]
    )
    assert found.causes["memory_bound"] == 10
    assert found.waits == 25


def test_time_outside_all_marks_is_nobodys():
    spans = [phase(STEP, 0, 10), phase(STEP, 30, 40), op("aten::mm", 0, 40)]
    assert sum(causes(*spans).values()) == 20


def test_an_optimizers_own_step_counts_what_it_asks_for():
    marks = [phase(STEP, 0, 100), phase(UPDATE, 50, 100), phase("Optimizer.step#SGD.step", 60, 90)]
    ops = [op("aten::norm", 52, 55), op("aten::add_", 60, 65), op("aten::mul", 61, 62),
           op("aten::add_", 70, 75)]  # fmt: skip
    assert reduce_spans([*marks, *ops]).update_operations == 2


@pytest.mark.parametrize("seed", range(30))
def test_own_moments_share_a_lane_without_a_gap(seed):
    import random

    draw, spans = random.Random(seed), []

    def nest(start, end, depth):
        spans.append(op(f"aten::{len(spans)}", start, end))
        at = start
        while depth and end - at > 4 and draw.random() < 0.7:
            first = draw.randrange(at, end - 2)
            last = draw.randrange(first + 1, end)
            nest(first, last, depth - 1)
            at = last

    nest(0, 200, 4)
    moments = [
        moment
        for own in self_times(spans)
        for start, end in own.intervals
        for moment in range(start, end)
    ]
    assert sorted(moments) == list(range(200))


def test_a_steps_own_time_leaves_out_what_it_waited_for_others():
    found = reduce_spans(
        [
            phase(DATA, 0, 10),
            phase(STEP, 10, 50),
            Span("gloo:all_reduce", 20, 45, LOADER, "travel"),
            phase(DATA, 50, 55),
            phase(STEP, 55, 100),
        ]
    )
    assert found.own == [25, 50]


@pytest.mark.parametrize("device", [[], [kernel("gemm", 0, 5)]], ids=["cpu", "gpu"])
def test_waiting_for_others_while_a_batch_is_fetched_is_communication(device):
    """Ranks exchange their numbers of rows there; the slow one is another."""
    spans = [phase(DATA, 0, 60), phase(STEP, 60, 100), *device]
    waiting = Span("gloo:all_reduce", 10, 50, BACKWARD, "travel")
    found = reduce_spans([*spans, waiting])
    assert found.causes["communication"] == 40 and found.collectives == {"all_reduce": 40}
    assert found.causes["data"] == 60 - 40 - 5 * bool(device)
    assert found.own == [60]


def test_python_is_what_every_step_has_of_it():
    found = reduce_spans(
        [
            phase(STEP, 0, 100), op("aten::mm", 10, 90),
            phase(STEP, 100, 200), op("aten::mm", 110, 120),  # stopped
            phase(STEP, 200, 300), op("aten::mm", 210, 280),
        ]
    )  # fmt: skip
    assert found.causes["host"] == 20 + 90 + 30 and found.python == 0.2


def test_a_hook_that_waits_inside_autograd_is_communication():
    assert causes(
        phase(STEP, 0, 100),
        op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 10, 60),
        Span("gloo:all_gather", 20, 50, LOADER, "travel"),
    ) == {"communication": 30, "launch": 20, "host": 50}
