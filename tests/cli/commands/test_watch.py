"""`stepladder watch`: one line for a mistake, no torch, one address to open."""

import socket
import subprocess
import sys

import pytest

from stepladder.cli.main import main
from stepladder.record import Journal
from tests.dashboard.web.servers import ask_json, serving


@pytest.fixture
def folder(tmp_path):
    with Journal(tmp_path / "run") as journal:
        journal.write("step", step=0, loss=1.0)
    return tmp_path / "run"


def test_a_folder_without_a_run_is_a_users_mistake(tmp_path, capsys):
    (tmp_path / "notes.txt").touch()  # an empty folder would be waited for
    assert main(["watch", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"run folder: {tmp_path} holds no run: no journal.jsonl in it or one folder below. "
        "Name a folder that a run wrote, such as runs/first.\n"
    )


def test_a_port_that_is_taken_is_a_users_mistake(folder, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["watch", str(folder), "--port", str(port)]) == 2
    assert capsys.readouterr().err == (
        f"watch: 127.0.0.1 port {port} cannot be served (Address already in use). "
        "Name another with --port, or --port 0 for any that is free.\n"
    )


@pytest.mark.parametrize("words", [("--port", "70000"), ("--host", "not a host")])
def test_an_address_that_is_none_is_a_users_mistake(folder, capsys, words):
    assert main(["watch", str(folder), *words]) == 2
    assert "cannot be served (" in capsys.readouterr().err


def test_it_says_what_to_open_and_ends_quietly(folder):
    with serving(folder) as address:  # which also sees that it ends with 0
        assert [run["name"] for run in ask_json(address, "/api/runs")] == ["run"]


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_missing_server_is_named_with_what_installs_it(folder, package):
    code = (
        f"import sys; sys.modules['{package}'] = None\n"
        "from stepladder.cli.main import main\n"
        f"raise SystemExit(main(['watch', {str(folder)!r}]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"watch: needs {package}")
    assert ended.stderr.endswith("pip install 'stepladder[watch]'\n")


def test_a_copied_folder_opens_without_torch_or_numpy(folder):
    code = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'matplotlib', 'rich'): sys.modules[name] = None\n"
        "from stepladder.dashboard.run_list import RunList\n"
        "from stepladder.dashboard.web import build_application\n"
        f"run_list = RunList([{str(folder)!r}])\n"
        "run_list.open('run'); run_list.follow(); build_application(run_list)\n"
        "print(run_list.if_open('run').steps.last_step)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "0\n"
