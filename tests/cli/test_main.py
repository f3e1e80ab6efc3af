"""The front door: one command is picked, a mistake is one line and exit code 2, nothing leaks."""

import argparse
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepladder.cli import main as front
from stepladder.cli.main import COMMANDS, main, split_settings
from stepladder.version import VERSION

FOLDER = Path(front.__file__).parent / "commands"


def stepladder(*words, **how):
    command = [sys.executable, "-m", "stepladder.cli.main", *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **how)


def configured(name):
    parser = argparse.ArgumentParser(prog=name)
    command = importlib.import_module(f"stepladder.cli.commands.{name}")
    command.configure(parser)
    return parser


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_help_lists_every_command_with_its_sentence(words, capsys):
    assert main(words) == 0
    out = capsys.readouterr().out
    for name, sentence in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(sentence)}$", out, re.MULTILINE)


def test_the_version_is_the_projects(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{VERSION}\n"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("trian", "command: 'trian' is not one. Did you mean 'train'?\n"),
        ("xyz", f"command: 'xyz' is not one. Choose one of: {', '.join(COMMANDS)}.\n"),
        ("--verbose", "command: '--verbose' is not one."),
        ("", "command: '' is not one."),
        ("main", "command: 'main' is not one."),
    ],
)
def test_an_unknown_command_is_one_line_and_code_2(word, message, capsys):
    assert main([word]) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith(message)
    assert seen.err.count("\n") == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_sentence_options_and_a_run(name):
    command = importlib.import_module(f"stepladder.cli.commands.{name}")
    assert command.__doc__
    assert callable(command.configure)
    assert callable(command.run)


PAGES = {"watch", "completion"}  # an address, whose server answers JSON; a script for a shell


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - PAGES))
def test_a_command_takes_json(name):
    assert "--json" in configured(name)._option_string_actions


def test_every_file_that_is_a_command_is_listed():
    commands = {
        path.stem
        for path in FOLDER.glob("*.py")
        if "\ndef configure(" in path.read_text() and "\ndef run(" in path.read_text()
    }
    assert commands == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_help_says_what_it_does(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    first = importlib.import_module(f"stepladder.cli.commands.{name}").__doc__.split()[:4]
    assert out.startswith(f"usage: stepladder {name} ")
    assert " ".join(first) in " ".join(out.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_code_2_without_a_traceback(name, capsys):
    assert main([name, "--no-such-option"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error and error.count("\n") == 1


def test_an_option_cannot_be_shortened(capsys):
    assert main(["doctor", "--js"]) == 2
    assert capsys.readouterr().err == (
        "option: '--js' is not one of stepladder doctor. Did you mean '--json'?\n"
    )


def test_a_setting_on_a_command_without_a_recipe_is_refused(capsys):
    assert main(["doctor", "--train.steps", "5"]) == 2
    assert "--train.steps is not an option of this command" in capsys.readouterr().err


def test_settings_are_told_from_a_commands_own_words():
    words = [
        "run.toml",
        "--train.steps",
        "5",
        "--json",
        "--run.folder=a.b",
        "--plan",
        "x.y",
        "--a.b",
    ]
    assert split_settings(words) == (
        ["run.toml", "--json", "--plan", "x.y"],
        ["--train.steps", "5", "--run.folder=a.b", "--a.b"],
    )


def test_a_users_mistake_is_one_line_and_code_2(capsys):
    assert main(["plan", "gpt9", "--on", "1 x H100-80GB"]) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("model: 'gpt9' is not")
    assert "Traceback" not in seen.err


@pytest.mark.parametrize("words", [["--help"], ["plan", "gpt2", "--on", "1 x H100-80GB", "--json"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])  # an empty value is none
def test_a_reader_that_went_away_leaves_silence(words, unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    process = stepladder(*words, stdout=writing, env=environment)
    os.close(writing)
    _, err = process.communicate(timeout=120)
    assert err == ""
    assert process.returncode == 0


def test_ctrl_c_is_code_130_and_one_word(tmp_path):
    fifo = tmp_path / "run.toml"
    os.mkfifo(fifo)  # whoever reads it waits: a command that can be interrupted at a known place
    process = stepladder("train", str(fifo), stdout=subprocess.PIPE)
    writing = None
    while writing is None and process.poll() is None:
        try:
            writing = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    os.close(writing)  # a signal just before it waits for the text would only be heard after it
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "Interrupted.\n")


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--run.folder"], ["train", "--data.source"], ["plan", "--on=1 x T4"],
        ["checkpoint", "verify"], ["report"],
    ],
)  # fmt: skip
def test_a_name_no_file_can_have_is_one_line(capsys, words):
    assert main([*words, "x" * 5000]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"path: '{'x' * 40}…' has 50") and said.count("\n") == 1
    assert said.endswith("letters, and no file can be called that. Use a shorter one.\n")


def test_a_mistake_is_written_in_one_piece(monkeypatch):
    """Ranks share a terminal: between a line and its end another's line may come."""
    pieces = []
    monkeypatch.setattr(sys.stderr, "write", pieces.append)
    assert main(["plan", "no-such-model", "--on", "8 x H100", "--batch", "8"]) == 2
    assert len(pieces) == 1 and pieces[0].startswith("model: ") and pieces[0].endswith("\n")


def test_the_package_runs_as_a_module():
    made = subprocess.run(
        [sys.executable, "-m", "stepladder", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout.strip() == VERSION
