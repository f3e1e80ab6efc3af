"""The notebook of docs/notebook.md, executed by a kernel cell by cell."""

from __future__ import annotations

import re
from tempfile import TemporaryDirectory

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.blocks import blocks

from .conftest import ROOT

pytestmark = pytest.mark.soak

PAGE = ROOT / "docs" / "notebook.md"


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The page's cells with what came out of each; those that are meant to fail may."""
    book = nbformat.v4.new_notebook()
    for block in blocks(PAGE):
        if block.language == "python":
            cell = nbformat.v4.new_code_cell(block.body)
            cell.metadata["tags"] = ["raises-exception"] * ("# fails" in block.body)
            book.cells.append(cell)
    home = str(tmp_path_factory.mktemp("notebook"))
    client = NotebookClient(
        book,
        timeout=180,
        startup_timeout=180,
        kernel_name="python3",
        resources={"metadata": {"path": home}},
    )
    # Ports would be chosen here and bound when the kernel has started: by then others may be there.
    kernel = client.create_kernel_manager()
    kernel.transport = "ipc"
    with (
        pytest.MonkeyPatch.context() as environ,  # nothing is left in the home of who runs tests
        TemporaryDirectory() as short,  # a socket's name has a hundred letters at most
    ):
        kernel.ip = f"{short}/kernel"
        environ.setenv("IPYTHONDIR", home)
        environ.setenv("JUPYTER_RUNTIME_DIR", home)
        client.execute()
    return book.cells


def written(cell, name="stdout") -> str:
    return "".join(
        out.text for out in cell.outputs if out.output_type == "stream" and out.name == name
    )


def test_climb_works_in_a_cell(cells):
    assert re.fullmatch(r"(\d \d\.\d{4}\n){5}", written(cells[1]))


def test_two_ranks_of_a_cell_compute_what_it_computed_alone(cells):
    shown = written(cells[2]).splitlines()
    assert sorted(shown)[:10] == sorted(
        [
            *written(cells[1]).splitlines(),
            *(f"[rank 1] {x}" for x in written(cells[1]).splitlines()),
        ]
    ), "each rank's lines are in the cell, and are those of one process"
    assert shown[-1] == "the same on 2 ranks as on one: True"


def shown_errors() -> list[str]:
    """What the page says comes out of the cells that fail."""
    return [block.body.strip() for block in blocks(PAGE) if block.language == "text"]


def raised(cell):
    (error,) = [out for out in cell.outputs if out.output_type == "error"]
    return error.ename, "\n".join(error.traceback)


def test_an_error_on_a_rank_is_a_line_and_its_last_lines(cells):
    assert raised(cells[3]) == ("WorldError", shown_errors()[0])


def test_a_users_mistake_in_a_cell_is_a_line(cells):
    assert raised(cells[4]) == ("PlanError", shown_errors()[1])
