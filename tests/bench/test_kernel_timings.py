"""The measuring of kernels, on the CPU and in seconds: what is checked, counted and refused."""

import time

import pytest
import torch

from stepladder.bench import kernel_timings as kernels
from stepladder.bench import measure_kernels
from stepladder.bench.kernel_timings import KernelCase
from stepladder.errors import PlanError, WorldError

torch.set_num_threads(1)
SMALL = (
    KernelCase("cross_entropy", (20, 100)),
    KernelCase("cross_entropy_in_place", (20, 100), "fp32"),
    KernelCase("linear_cross_entropy", (20, 16, 100), "fp16"),
)


def wall_milliseconds(work):
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def measure(cases=SMALL, **options):
    options = {"device": "cpu", "timer": wall_milliseconds, "compiled": False, **options}
    return measure_kernels(cases, **options)


def test_every_kernel_is_right_and_timed_on_a_small_case():
    for case, row in zip(SMALL, measure(), strict=True):
        assert (row.kernel, row.shape, row.dtype) == (case.kernel, case.shape, case.dtype)
        assert row.problem == ""
        assert 0 <= row.max_error < kernels.BOUNDS[case.dtype]
        assert row.ours_ms > 0
        assert row.eager_ms > 0
        assert row.compiled_ms is None


def test_the_cases_of_the_table_name_kernels_that_exist():
    assert {case.kernel for case in kernels.CASES} == set(kernels.CONTESTS)


def test_the_rate_is_the_bytes_that_must_move_over_the_time():
    loss, in_place, linear = measure(timer=lambda work: 2.0)
    assert loss.ours_gb_per_s == pytest.approx(3 * 20 * 100 * 2 / 2e-3 / 1e9)
    assert in_place.ours_gb_per_s == pytest.approx(2 * 20 * 100 * 4 / 2e-3 / 1e9)
    assert linear.ours_gb_per_s is None


def test_a_wrong_kernel_has_no_speed(monkeypatch):
    honest = kernels.CONTESTS["cross_entropy"]
    wrong = kernels._Comparison(lambda x, t: honest.ours(x, t) * 1.1, honest.torch, 3)
    monkeypatch.setitem(kernels.CONTESTS, "cross_entropy", wrong)
    (row,) = measure(SMALL[:1])
    assert row.max_error == pytest.approx(0.1, abs=0.01)
    assert row.problem == f"wrong: error {row.max_error:.1e} > 1.5e-02"
    assert row.ours_ms is row.eager_ms is None


def test_a_kernel_that_answers_nan_is_wrong(monkeypatch):
    honest = kernels.CONTESTS["cross_entropy"]
    wrong = kernels._Comparison(lambda x, t: honest.ours(x, t) * float("nan"), honest.torch, 3)
    monkeypatch.setitem(kernels.CONTESTS, "cross_entropy", wrong)
    (row,) = measure(SMALL[:1])
    assert row.problem == "wrong: error nan > 1.5e-02"


def test_a_case_that_fails_keeps_its_reason_and_the_next_goes_on():
    failed, fine = measure((KernelCase("cross_entropy", (20,)), SMALL[0]))
    assert failed.problem.startswith("ValueError: not enough values to unpack")
    assert failed.ours_ms is None
    assert fine.problem == ""


def test_when_the_time_is_spent_the_rest_is_not_begun():
    (row,) = measure(SMALL[:1], budget_seconds=-1)
    assert row.problem == "not begun: the time for all cases was spent"


def test_a_compiler_that_fails_leaves_our_numbers_standing(monkeypatch):
    honest = kernels.CONTESTS["cross_entropy"]

    def torn(x, targets):
        torch._dynamo.graph_break()  # what the compiler cannot take whole
        return honest.torch(x, targets)

    torn = kernels._Comparison(honest.ours, torn, 3)
    monkeypatch.setitem(kernels.CONTESTS, "cross_entropy", torn)
    (row,) = measure(SMALL[:1], compiled=True)
    assert row.problem == "torch.compile: Unsupported"
    assert row.compiled_ms is None
    assert row.ours_ms > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_timing_is_refused_in_one_line():
    with pytest.raises(WorldError) as caught:
        measure_kernels()
    assert str(caught.value) == (
        "device: kernels are timed on a GPU and this machine has none. "
        "Their results are tested anywhere: make test."
    )


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            KernelCase("crossentropy", (2, 2)),
            "kernel: 'crossentropy' is not a kernel. Did you mean 'cross_entropy'?",
        ),
        (
            KernelCase("cross_entropy", (2, 2), "int8"),
            "dtype: 'int8' is not measured. Choose one of: bf16, fp16, fp32.",
        ),
    ],
)
def test_a_case_that_names_nothing_is_refused(case, message):
    with pytest.raises(PlanError) as caught:
        measure((case,))
    assert str(caught.value) == message
