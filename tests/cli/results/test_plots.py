"""A plot is a picture in a file, or an error that names the file."""

import pytest
from matplotlib import pyplot

from stepladder.cli.results.plots import figure, plot_bars, plot_losses, store
from stepladder.errors import RecordError

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def no_figure():
    """What other tests may have left open is not these ones'."""
    pyplot.close("all")


def test_losses_are_drawn_into_a_file_and_its_folder_is_made(tmp_path):
    path = plot_losses(
        tmp_path / "a" / "loss.png", [(0, 2.0), (1, float("nan")), (2, 1.0)], [(2, 1.5)]
    )
    assert path.read_bytes().startswith(PNG)
    assert not pyplot.get_fignums()  # nothing is left in memory


def test_what_is_drawn_is_what_was_given():
    drawn, axes = figure()
    axes.plot(*zip(*[(0, 2.0), (5, 1.0)]), label="training")
    assert axes.lines[0].get_xydata().tolist() == [[0.0, 2.0], [5.0, 1.0]]
    pyplot.close(drawn)


@pytest.mark.parametrize("panels", [1, 2, 3])
def test_bars_are_drawn_one_panel_a_quantity_unknown_ones_too(tmp_path, panels):
    quantities = {f"q{index}": [1.0, None] for index in range(panels)}
    path = plot_bars(tmp_path / "bars.png", ["a", "b"], quantities)
    assert path.read_bytes().startswith(PNG)
    assert not pyplot.get_fignums()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("file/x.png", "File exists"),
        ("x.nothing", "Format 'nothing' is not supported"),
        ("a\0b.png", "embedded null byte"),
    ],
)
def test_a_plot_that_cannot_be_written_is_named(tmp_path, name, why):
    (tmp_path / "file").write_text("")
    drawn, _ = figure()
    with pytest.raises(RecordError) as caught:
        store(drawn, tmp_path / name)
    message = str(caught.value)
    shown = str(tmp_path / name).replace("\0", "\\x00")  # no letter of it breaks the line
    assert message.startswith(f"plot: {shown} cannot be written ({why}")
    assert message.endswith("). Name another file, such as loss.png.")
    assert not pyplot.get_fignums()
