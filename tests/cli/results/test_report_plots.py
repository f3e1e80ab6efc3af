"""A report's curves: units that fit, a key for each colour, and none that would say nothing."""

import re

import pytest

from stepladder.cli.results.report_plots import draw_plots
from stepladder.dashboard import JournalIndex
from stepladder.palette import collective_colour
from stepladder.record import Journal

MIB = 2**20


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A short run on a CPU: a process of 450 MiB that holds 4 MiB of tensors."""
    folder = tmp_path_factory.mktemp("report")
    with Journal(folder) as journal:
        for step in range(3):
            journal.write("step", step=step, loss=2.0, lr=0.01, seconds=0.02, data_seconds=0.001,
                          tokens_per_second=6e4, memory_bytes=454 * MIB)  # fmt: skip
            owners = {"parameters": 3 * MIB, "activations": MIB, "context": 450 * MIB}
            journal.write("memory", step=step, owners=owners)
            journal.write("collectives", step=step, seconds={"send_recv": 0.01})
        journal.write("device", step=1, utilisation=1.0)
    index = JournalIndex(folder)
    while index.follow():
        pass
    return {plot.path.stem: plot for plot in draw_plots(index, folder / "report")}


def texts(plot):
    return re.findall(r"<text[^>]*>([^<]+)</text>", plot.svg)


def test_units_fit_the_numbers(drawn):
    assert {"ms", "20"} <= {*texts(drawn["step-time"])}
    assert {"MiB", "400"} <= {*texts(drawn["memory"])}
    assert {"tokens/s", "60,000"} <= {*texts(drawn["throughput"])}


def test_a_curve_of_steps_has_no_halves_and_a_rate_that_stays_begins_at_zero(drawn):
    assert {"0", "1", "2"} <= {*texts(drawn["loss"])} and "0.5" not in texts(drawn["loss"])
    assert "0.000" in texts(drawn["learning-rate"])


def test_what_a_process_takes_does_not_hide_the_owners(drawn):
    plot = drawn["memory-by-owner"]
    assert plot.title == "Memory by owner, and 450 MiB of context, which is not drawn"
    assert "context" not in texts(plot) and {"parameters", "activations"} <= {*texts(plot)}


def test_a_device_that_was_read_once_has_no_picture(drawn):
    assert "utilisation" not in drawn


def test_one_collective_is_named_too(drawn):
    assert "send recv" in texts(drawn["collectives"])
    assert collective_colour("send_recv") == collective_colour("send_receive")
    assert "var(--lime)" in drawn["collectives"].svg
