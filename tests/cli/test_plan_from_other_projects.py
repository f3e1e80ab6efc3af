"""Other projects' files through the command: each is forecast, and each runs."""

import json
from pathlib import Path

import pytest

from stepladder.cli.main import main
from stepladder.plan.foreign.accelerate import read_accelerate
from stepladder.plan.foreign.deepspeed import read_deepspeed
from tests.cli.foreign_runs import take_steps
from tests.ranks import run
from tests.soak import soak_after

yaml = pytest.importorskip("yaml", reason="Accelerate's files are YAML")
CONFIGS = Path(__file__).parents[1] / "plan" / "foreign" / "configs"
FILES = sorted(CONFIGS.iterdir())
RANKS = {"fsdp2": 4, "fsdp_hybrid": 4, "megatron": 4}


def carried(path):
    if path.suffix == ".json":
        return read_deepspeed(json.loads(path.read_text()))
    return read_accelerate(yaml.safe_load(path.read_text()))


def option(path):
    return "--from-deepspeed" if path.suffix == ".json" else "--from-accelerate"


def test_there_are_ten_and_more():
    assert len(FILES) >= 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_is_forecast(path, capsys):
    ranks = RANKS.get(path.stem, 2)
    words = ["plan", "gpt2", "--on", f"{ranks} x H100-80GB", option(path), str(path), "--json"]
    missing = any(one.why == "unsupported" for one in carried(path).unmapped)
    assert main(words) == int(missing)
    told = json.loads(capsys.readouterr().out)
    assert told["fits"] and told["whole"] is not missing


@pytest.mark.parametrize("path", soak_after(FILES), ids=lambda path: path.stem)
def test_each_runs(path):
    plan = carried(path).plan
    losses = run(take_steps, RANKS.get(path.stem, 2), str(plan))
    assert len({tuple(one) for one in losses}) == 1, "ranks agree"
    assert all(loss == loss and loss < 8 for loss in losses[0])


def test_what_is_left_is_shown_and_an_unknown_key_fails_the_check(tmp_path, capsys):
    path = tmp_path / "ds.json"
    path.write_text('{"bf16": {"enabled": true}, "zzz": 1}')
    assert main(["plan", "gpt2", "--on", "2 x H100-80GB", "--from-deepspeed", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "Not in the plan" in shown and "zzz" in shown and "not known here" in shown


def test_a_deepspeed_file_that_accelerate_names_is_followed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}')
    table = {"distributed_type": "DEEPSPEED"}
    table["deepspeed_config"] = {"deepspeed_config_file": "ds.json"}
    Path("a.yaml").write_text(yaml.safe_dump(table))
    words = ["plan", "gpt2", "--on", "2 x H100-80GB", "--from-accelerate", "a.yaml"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"].startswith("bf16 zero3")
    Path("a.yaml").write_text(yaml.safe_dump(table | {"mixed_precision": "fp16"}))
    assert main(words) == 2
    assert "the plan is in ds.json, and beside it stands 'fp16'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("ds.json", '{"a": 1, "a": 2}', "ds.json is not JSON: a is said twice. Mend that place."),
        ("ds.json", "{", "ds.json is not JSON: Expecting property name"),
        ("c.yaml", "a: [", "c.yaml is not YAML: while parsing a flow"),
        ("c.yaml", None, "c.yaml cannot be read (No such file or directory). Name another."),
    ],
)
def test_a_file_that_is_none_is_one_line(tmp_path, capsys, name, text, problem):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    assert main(["plan", "gpt2", "--on", "2 x H100-80GB", option(path), str(path)]) == 2
    said = capsys.readouterr().err
    assert problem in said and said.count("\n") == 1
