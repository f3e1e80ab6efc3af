"""Where numbers shall go is a few words; each mistake is told."""

import subprocess
import sys

import pytest

from stepladder.errors import PlanError
from stepladder.track import Target, parse_targets


def test_words_name_targets():
    assert parse_targets("tensorboard, wandb,mlflow ,prometheus:9400,") == (
        Target("tensorboard"),
        Target("wandb"),
        Target("mlflow"),
        Target("prometheus", "127.0.0.1", 9400),
    )
    assert parse_targets(["prometheus:0.0.0.0:80"]) == (Target("prometheus", "0.0.0.0", 80),)
    assert parse_targets("") == () and len(parse_targets("wandb,wandb")) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tensorbord", "run.track: 'tensorbord' is not a tracker. Did you mean 'tensorboard'?"),
        ("wandb:x", "run.track: 'wandb:x': wandb takes nothing after it. Write wandb."),
        (
            "prometheus",
            "run.track: 'prometheus' does not name the port to serve on. "
            "Write prometheus:9400, or prometheus:HOST:9400.",
        ),
        ("prometheus:70000", "run.track: 'prometheus:70000' does not name the port to serve on. "
         "Write prometheus:9400, or prometheus:HOST:9400."),
    ],
)  # fmt: skip
def test_a_word_that_names_none_is_told(words, said):
    with pytest.raises(PlanError) as caught:
        parse_targets(words)
    assert str(caught.value) == said


def test_all_mistakes_are_told_at_once():
    with pytest.raises(PlanError) as caught:
        parse_targets("x,prometheus:y,wandb:z")
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("target", "package"),
    [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")],
)
def test_a_tracker_that_is_not_installed_is_one_line(tmp_path, target, package):
    code = (
        f"import sys; sys.modules['{package}'] = None\n"
        "from stepladder.errors import PlanError\n"
        "from stepladder.track import open_journal\n"
        f"for _ in range(2):\n"  # the second time: nothing stayed locked
        f"    try: open_journal({str(tmp_path)!r}, '{target}')\n"
        "    except PlanError as refused: print(refused)"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    line = f"run.track: needs the package '{package}', which is not installed. "
    assert said == (line + "pip install 'stepladder[track]'\n") * 2
