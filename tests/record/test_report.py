"""A report is plain numbers, and its line is the one the field knows."""

import json
import math
from dataclasses import replace

from stepladder.record import Report
from stepladder.train.pending_report import PendingReport

REPORT = Report(
    step=12,
    loss=2.34567,
    grad_norm=0.98765,
    lr=3e-4,
    tokens=4096,
    seconds=0.5,
    memory_bytes=3 * 2**29,
    tokens_per_second=8192.0,
    flops_per_second=123.4e12,
    mfu=0.4567,
)


def test_the_line_holds_what_people_watch():
    assert REPORT.line(memory_limit_bytes=3 * 2**30) == (
        "step     12  loss   2.3457  grad_norm   0.9877  memory 1.50 GiB (50.0%)  "
        "tokens/s 8,192  TFLOP/s 123  MFU 45.7%"
    )


def test_an_unknown_share_is_said_to_be_unknown():
    line = replace(REPORT, mfu=None, flops_per_second=None).line()
    assert line.endswith("memory 1.50 GiB  tokens/s 8,192  TFLOP/s unknown  MFU unknown")


def test_a_skipped_step_says_so_even_where_nothing_is_a_number():
    line = replace(REPORT, loss=math.nan, grad_norm=math.inf, skipped=True).line()
    assert "loss      nan  grad_norm      inf" in line
    assert line.endswith("  skipped")


def test_a_report_is_plain_values():
    values = REPORT.to_dict()
    assert Report(**json.loads(json.dumps(values))) == REPORT


def test_terms_of_the_loss_stand_beside_it():
    report = replace(REPORT, terms={"reconstruction": 1.25, "kl": 0.5})
    assert f"loss {REPORT.loss:8.4f} (reconstruction 1.2500, kl 0.5000)  " in report.line()
    assert report.to_dict() == {**REPORT.to_dict(), "terms": {"reconstruction": 1.25, "kl": 0.5}}
    assert hash(report) is not None


def test_print_shows_a_person_what_is_known():
    report = Report(
        step=1299, loss=2.5, grad_norm=1.0, lr=3e-4, tokens=64, seconds=0.25,
        memory_bytes=2**30, tokens_per_second=12345.6, unit="samples", terms={"a<b": 1.5},
    )  # fmt: skip
    assert str(report) == (
        "step 1,299, loss 2.5000, a<b 1.5000, gradient norm 1, learning rate 0.0003, "
        "samples/s 12,346, step time 250 ms, peak memory 1.00 GiB"
    )
    html = report._repr_html_()
    assert "<td>samples/s</td><td>12,346</td>" in html and "a&lt;b" in html and "MFU" not in html
    assert str(PendingReport(1299, lambda: report)) == str(report)
    assert PendingReport(1299, lambda: report)._repr_html_() == html
