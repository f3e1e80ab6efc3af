"""`stepladder verify certificate`: what one command writes, another replays."""

import json

import pytest

from stepladder.cli.main import main

TINY = ["mlp-tiny", "--plans", "fp32", "--optimizer", "sgd lr=0.1", "--steps", "1"]


def test_a_certificate_is_written_and_replayed(capsys, tmp_path):
    path = tmp_path / "proof.json"
    words = ["verify", "parity", *TINY, "--locate", "--json", "--certificate", str(path)]
    assert main(words) == 0
    shown = capsys.readouterr()
    (located,) = json.loads(shown.out)["located"]
    assert located["difference"] is None and located["compared"] > 20
    assert f"Certificate: {path}" in shown.err
    assert main(["verify", "certificate", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same"] and [row["verdict"] for row in found["rows"]] == ["identical bits"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["certificate"], "no certificate was named"),
        (["certificate", "none.json"], "none.json cannot be read: No such file"),
        (["certificate", "none.json", "--steps", "2"], "--steps is not for certificate"),
        (["resume", "--locate"], "--locate is not for resume"),
        (["precision", "--certificate", "a.json"], "--certificate is not for precision"),
    ],
)
def test_a_mistake_is_told_in_one_line(words, said, capsys):
    assert main(["verify", *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
