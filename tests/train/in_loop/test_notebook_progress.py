"""Progress in a notebook: one table that is brought up to date, shown by a real kernel."""

import time

import nbformat
import pytest
from nbclient import NotebookClient

from stepladder.errors import TrainingError
from stepladder.record import Report
from stepladder.train import NotebookProgress
from stepladder.train.in_loop import notebook_progress

CELL = """
from stepladder.record import Report
from stepladder.train import NotebookProgress
from stepladder.train.in_loop import notebook_progress
notebook_progress.SECONDS = 0.0
progress = NotebookProgress(steps=3)
for step in range(3):
    progress(Report(step, 2.5 - step, 1.0, 0.1, 10, 1.0, 2**30, 1234.0, unit="samples"))
"""


def report(step):
    return Report(step, 2.5 - step, 1.0, 0.1, 10, 1.0, 2**30, 1234.0)


def test_elsewhere_it_keeps_the_newest_report_and_shows_nothing(capsys, monkeypatch):
    progress = NotebookProgress(steps=2)
    assert str(progress) == ""
    progress(report(0))
    assert str(progress) == "step 1 of 2, loss 2.5000, 1,234 tokens/s"
    assert '<progress value="0.5000" max="1">' in progress._repr_html_()
    monkeypatch.setattr(notebook_progress, "SECONDS", 1e9)
    monkeypatch.setattr(progress, "_shown", time.monotonic())
    progress(report(0))
    progress(report(1))
    assert progress.report.step == 1, "the last is shown however soon it comes"
    assert capsys.readouterr().out == ""


def test_a_number_of_steps_is_a_number():
    with pytest.raises(TrainingError) as refused:
        NotebookProgress(steps="ten")
    assert str(refused.value) == (
        "steps: 'ten' is not a number of steps. Give how many the run takes, or leave it out."
    )


@pytest.mark.soak
def test_a_kernel_shows_one_table_and_brings_it_up_to_date():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    (shown,) = notebook.cells[0].outputs
    assert shown.output_type == "display_data"
    assert "step 3 of 3, loss 0.5000, 1,234 samples/s" in shown.data["text/plain"]
    assert "<td>3 of 3</td>" in shown.data["text/html"]
