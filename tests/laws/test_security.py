"""Nothing that is read can run: no pickle of a file, no code in a configuration, no download."""

import ast
from pathlib import Path

import pytest

from stepladder.cli.main import main

ROOT = Path(__file__).parents[2] / "src" / "stepladder"
FILES = sorted(ROOT.rglob("*.py"))
UNPICKLING = {  # reading what this very program sent to itself, never a file
    "launch/on_ranks/worker.py": "the call that the process which started this rank sends it",
    "launch/on_ranks/worker_process.py": "answers of the ranks that this process started",
    "world/ranks/flight_recorder.py": "torch's record of collectives, from this process's memory",
}
PICKLING = {
    "data/loading/worker_processes.py": "asks whether a source can be sent to a data worker"
}
EXECUTING = {
    "train/user_code/import_code.py": "file.py:name, which the user named to be run",
    "labs": "a learner's own file, which the user named to be run",
}
BY_VALUE = {  # a function without a file, sent through a pipe to a process of our own
    "launch/on_ranks/worker.py": "cloudpickle",
    "launch/on_ranks/worker_process.py": "cloudpickle",
}
MODULES = {"dill", "cloudpickle", "shelve", "marshal", "joblib"}
DOWNLOADS = {"requests", "httpx", "aiohttp", "urllib.request", "ftplib", "huggingface_hub"}
BUILTINS = {"eval", "exec", "compile", "__import__"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def called(node: ast.Call) -> str:
    """The dotted name of what is called."""
    return ast.unparse(node.func)


def offences(name: str, source: str) -> list[str]:
    """What a file does that could run what it reads."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            names = [module] if module else [alias.name for alias in node.names]
            found += [f"imports {one}" for one in names if one and bad_import(one, name)]
        elif isinstance(node, ast.Call):
            found += [f"line {node.lineno}: {called(node)}"] * bad_call(node, name)
    return found


def bad_import(module: str, name: str) -> bool:
    known = name in UNPICKLING or name in PICKLING
    head = module.partition(".")[0]
    sends = BY_VALUE.get(name) == head
    return (
        (head == "pickle" and not known) or (head in MODULES and not sends) or module in DOWNLOADS
    )


def bad_call(node: ast.Call, name: str) -> bool:
    what = called(node)
    words = {word.arg: word.value for word in node.keywords}
    if what in BUILTINS:
        return True
    if what in ("pickle.load", "pickle.loads", "pickle.Unpickler"):
        return name not in UNPICKLING or what != "pickle.loads"
    if what.startswith("yaml.") and "load" in what:
        return what != "yaml.safe_load"
    if what == "torch.load":
        return not is_constant(words.get("weights_only"), True)
    if what.endswith("np.load") or what == "numpy.load":
        return not is_constant(words.get("allow_pickle"), False)
    if what.endswith("exec_module") or what.endswith("runpy.run_path"):
        return not any(name == place or name.startswith(f"{place}/") for place in EXECUTING)
    shell = words.get("shell")
    return what == "os.system" or (shell is not None and not is_constant(shell, False))


def is_constant(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_a_file_runs_nothing_it_reads():
    found = {name_of(path): offences(name_of(path), path.read_text()) for path in FILES}
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import yaml\nyaml.load(text)",
        "import torch\ntorch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "eval(text)",
        "spec.loader.exec_module(module)",
        "subprocess.run(text, shell=True)",
        "os.system(text)",
        "import urllib.request",
        "from huggingface_hub import snapshot_download",
        "import cloudpickle",
    ],
)
def test_each_offence_is_seen(source):
    assert offences("planner/new.py", source)


def test_those_that_may_still_do():
    for name in (*UNPICKLING, *PICKLING, *BY_VALUE):
        assert "pickle" in (ROOT / name).read_text(), name
    assert "exec_module" in (ROOT / "train/user_code/import_code.py").read_text()


PAYLOADS = [
    ("model.name", "__import__('os').mkdir('ran')"),
    ("model.name", "os:mkdir"),
    ("model.name", "ran.py:make()"),
    ("model.name", "ran.py"),
    ("data.source", "ran.py:make()"),
    ("train.loss", "os.mkdir('ran')"),
    ("data.sample", "os:mkdir"),
    ("plan.precision", "${mkdir ran}"),
    ("optimizer.name", "!!python/object/apply:os.mkdir ['ran']"),
    ("optimizer.lr", "os.mkdir('ran')"),
    ("rate.kind", "cosine; mkdir ran"),
    ("train.device", "$(mkdir ran)"),
]


@pytest.mark.parametrize(("key", "payload"), PAYLOADS)
def test_a_configuration_is_words_and_never_code(tmp_path, monkeypatch, capsys, key, payload):
    monkeypatch.chdir(tmp_path)
    Path("ran.py").write_text("import os\nos.mkdir('ran')\ndef make(): os.mkdir('ran')\n")
    section, _, name = key.partition(".")
    Path("run.toml").write_text(f'[{section}]\n{name} = "{payload}"\n')
    assert main(["train", "run.toml", "--train.steps", "1", "--train.sample", "0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not Path("ran").exists()
