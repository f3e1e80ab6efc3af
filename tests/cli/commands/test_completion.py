"""A line that is being typed goes on as the command itself would read it."""

import argparse
import importlib
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepladder.cli.completion_candidates import (
    OTHERS,
    PLAN_VALUES,
    SETTING_VALUES,
    Typed,
    candidates,
)
from stepladder.cli.main import COMMANDS, main
from stepladder.hardware.device_table import DEVICES
from stepladder.labs import all_labs
from stepladder.model.build import OTHER_MODELS as BUILT_IN
from stepladder.plan import Plan, read_recipe
from stepladder.plan.plan_text import ALL_WORDS as PLAN_WORDS
from stepladder.plan.plan_text import KEYS as PLAN_KEYS
from stepladder.track import parse_targets
from stepladder.workload.presets import PRESETS

BIN = Path(sys.executable).parent
SHELL = {"PATH": f"{BIN}:/usr/bin:/bin", "TERM": "dumb", "LC_ALL": "C.UTF-8"}


def offered(line: str) -> list[str]:
    typed = Typed.read(f"stepladder {line}")
    assert typed is not None
    return [candidate.text for candidate in candidates(typed)]


def shown(capsys, shell: str, line: str) -> list[str]:
    assert main(["completion", shell, "--line", line]) == 0
    return capsys.readouterr().out.splitlines()


def test_commands_come_first_each_with_its_sentence(capsys):
    assert offered("") == [*COMMANDS, "--help", "--version"]
    assert offered("tr") == ["train"]
    assert offered("nothing --") == []
    assert f"train\t{COMMANDS['train']}" in shown(capsys, "fish", "stepladder tr")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_and_choice_of_every_command_is_offered(name):
    parser = argparse.ArgumentParser(prog=name)
    importlib.import_module(f"stepladder.cli.commands.{name}").configure(parser)
    flags = {word for word in parser._option_string_actions if word.startswith("--")}
    assert flags <= set(offered(f"{name} --"))
    for action in parser._actions:
        if action.choices and action.option_strings:
            words = offered(f"{name} {action.option_strings[0]} ")
            assert words == [str(choice) for choice in action.choices]
    places = [action for action in parser._actions if not action.option_strings]
    if places and places[0].choices:
        assert offered(f"{name} ") == [str(choice) for choice in places[0].choices]


def test_labs_presets_and_devices_are_offered_where_they_are_read():
    labs = [lab.name for lab in all_labs()]
    assert offered("lab start ") == labs
    assert offered("lab check loss-") == ["loss-scale"]
    assert set(PRESETS) <= set(offered("plan "))
    assert offered("plan llama3-8b --on '8 nodes x 8 ") == [f"8 nodes x 8 {d}" for d in DEVICES]
    assert offered("bench ring --device c") == ["cpu", "cuda"]
    assert offered("doctor --device H200") == ["H200", "H200-NVL"]
    assert set(OTHERS) == set(BUILT_IN)


def test_a_plan_goes_on_word_by_word():
    words = [f"{word}=" if word in PLAN_KEYS else word for word in PLAN_WORDS]
    assert offered("train --plan ") == words
    assert offered("train --plan 'bf16 zero") == ["bf16 zero1", "bf16 zero2", "bf16 zero3"]
    assert offered('train --plan "bf16 schedule=g') == ["bf16 schedule=gpipe"]
    assert offered("verify parity --plans 'fp32; fp32 pip") == ["fp32; fp32 pipeline="]
    for key, values in PLAN_VALUES.items():
        for value in values:
            Plan.parse(f"{'zero3 ' if key == 'shard' else ''}{key}={value}")


def test_a_recipe_is_set_by_section_then_by_key_then_by_value():
    assert "--model." in offered("train --") and "--model.name" not in offered("train --")
    assert "--model.name" in offered("train --model.")
    assert "--model." not in offered("doctor --")
    assert offered("train --train.exact ") == ["true", "false"]
    assert offered("train --plan.precision=fp8") == [
        "--plan.precision=fp8",
        "--plan.precision=fp8-master",
    ]
    for key, values in SETTING_VALUES.items():
        for value in values if not key.startswith("plan.") else ():
            if key == "run.track":
                parse_targets(value)
            read_recipe(None, [f"--{key}", value, "--train.save_every", "5"])


def test_files_are_offered_where_one_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "run.toml").touch()
    (tmp_path / ".hidden").touch()
    assert offered("train ")[-2:] == ["run.toml", "runs/"]
    assert offered("train --json --train.steps 5 ru") == ["run.toml", "runs/"]
    assert offered("report runs/") == ["runs/one/"]
    assert offered("train run.toml ") == offered("train run.toml --")
    assert offered("watch runs/one r") == ["run.toml", "runs/"]
    assert offered("train no/such/") == []


def test_a_line_is_read_as_a_shell_reads_it():
    assert Typed.read("stepladder train --plan 'a b") == Typed(("train", "--plan"), "a b", "'")
    assert Typed.read("stepladder train ") == Typed(("train",), "", "")
    assert Typed.read("stepladder") == Typed((), "", "")
    assert Typed.read('stepladder "\\') is None
    assert main(["completion", "bash", "--line", 'stepladder "\\']) == 0


def test_bash_is_given_what_follows_its_last_break(capsys):
    assert shown(capsys, "bash", "stepladder train --plan.precision=tf") == ["tf32"]
    assert shown(capsys, "bash", "stepladder train --plan.schedule interleaved:") == ["2"]
    assert shown(capsys, "bash", "stepladder train --plan 'bf16 zero3") == ["bf16 zero3"]


def test_asking_needs_no_torch():
    code = (
        "import sys\nfrom stepladder.cli.main import main\n"
        "main(['completion', 'bash', '--line', 'stepladder lab start l'])\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["loss-scale", "logits", "learning-rate", "False", "False"]


SHELLS = {  # how each is started without its user's files, and what it needs before the script
    "bash": (["bash", "--norc", "--noprofile", "-i"], ""),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit; compinit -D;"),
}


def typed_in(shell: str, keys: str, until: str) -> str:
    """What a person sees who types this in a shell that was told of the completion."""
    words, first = SHELLS[shell]
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(shell, words, SHELL)
    seen, deadline = "", time.monotonic() + 120
    told = f'PS1=; {first} eval "$(stepladder completion {shell})"; echo told-$((40+2))\n'
    os.write(terminal, told.encode())
    try:
        for wanted, answer in (("told-42", keys), (until, "")):
            while wanted not in seen and time.monotonic() < deadline:
                if select.select([terminal], [], [], 1)[0]:
                    seen += os.read(terminal, 4096).decode(errors="replace").replace("\a", "")
            os.write(terminal, answer.encode())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)
    return seen


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_a_command_and_a_plan_in_its_quotes(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    keys = "stepladder trai\t--plan 'bf16 schedule=gp\t"
    seen = typed_in(shell, keys, until="schedule=gpipe")
    assert "stepladder train" in seen and "--plan 'bf16 schedule=gpipe" in seen


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(capsys):
    main(["completion", "fish"])
    script = f'{capsys.readouterr().out}\ncomplete -C "stepladder train --plan \'bf16 schedule=gp"'
    done = subprocess.run(["fish", "-c", script], capture_output=True, text=True, env=SHELL)
    assert done.stdout.strip() == "bf16 schedule=gpipe", done.stderr


def test_built_in_models_are_offered_wherever_a_model_is_named():
    assert "mixtral-8x7b" in offered("plan mix")
    assert "llama-tiny" in offered("train --model.name ll")
    assert "mixtral-8x7b" in offered("train --model.name mix")
