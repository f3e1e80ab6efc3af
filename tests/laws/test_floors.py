"""Nobody looks up or sideways; the ground floors need only Python."""

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

from stepladder import SERVICES
from stepladder.services import service

ROOT = Path(__file__).parents[2] / "src" / "stepladder"
FLOORS = {
    "errors": 0, "palette": 0, "services": 0, "version": 0,
    "hardware": 1, "workload": 1, "plan": 1, "record": 1, "seam": 1,
    "planner": 2, "model": 2, "data": 2, "world": 2, "checkpoint": 2, "track": 2,
    "loss": 3, "trace": 3, "launch": 3,
    "kernels": 4, "rungs": 5, "train": 6, "measure": 7, "rehearse": 7,
    "calibrate": 8, "verify": 8, "bench": 8, "dashboard": 8,
    "job": 9, "labs": 10, "cli": 11,
}  # fmt: skip
STANDARD_LIBRARY_ONLY = {
    "errors",
    "palette",
    "services",
    "version",
    "hardware",
    "workload",
    "plan",
    "record",
    "planner",
}
FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem in FLOORS)


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(source: str) -> list[str]:
    """Every absolute import of a file, wherever it stands: late, by string and type-only ones."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            text = constant(node.args[0])
            if text.startswith("."):  # beside a package that is named, or beside this very file
                text = f"{constant(node.args[1])}{text}"
            names += [text] if text.startswith(("stepladder", "..")) else []
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level > 1:
            names += [f"..{node.module}"]
    return names


def called(node: ast.Call) -> str:
    """The last word of what is called."""
    return ast.unparse(node.func).rpartition(".")[2]


def constant(node: ast.expr) -> str:
    """What stands in a string, up to the first thing that is put into it."""
    if isinstance(node, ast.JoinedStr):
        node = node.values[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def trespasses(here: str, source: str) -> list[str]:
    found = []
    for name in imports(source):
        head, *rest = name.split(".")
        if name.startswith("..") or name == "stepladder.":
            found.append(f"{here} imports '{name}…', and nobody sees what that is")
        elif head == "stepladder" and rest:
            if rest[0] in FLOORS and rest[0] != here and FLOORS[rest[0]] >= FLOORS[here]:
                found.append(f"{here} (floor {FLOORS[here]}) imports {name}")
            elif here in STANDARD_LIBRARY_ONLY and rest[0] not in {*STANDARD_LIBRARY_ONLY}:
                found.append(f"{here} is standard library only and imports {name}")
        elif here in STANDARD_LIBRARY_ONLY and head not in sys.stdlib_module_names:
            found.append(f"{here} is standard library only and imports {name}")
    return found


def test_a_file_imports_only_its_own_package_and_floors_below():
    found = []
    for path in FILES:
        name = path.relative_to(ROOT).as_posix()
        if name == "cli/main.py":
            continue  # the one door through which every command is reached
        found += [f"{name}: {one}" for one in trespasses(room(path), path.read_text())]
    assert found == []


def services_asked(source: str) -> list[str]:
    """The services that a file asks for; one whose name is computed is "?"."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [constant(node.args[0]) or "?" for node in calls if called(node) == "service"]


def test_a_service_is_asked_for_below_the_floor_that_answers():
    """What is not above can be imported."""
    asked = [(room(path), name) for path in FILES for name in services_asked(path.read_text())]
    assert {name for _, name in asked} == SERVICES.keys(), "each is asked for, and no other"
    assert [(room, name) for room, name in asked if FLOORS[room] >= FLOORS[SERVICES[name]]] == []


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_a_public_function_of_the_package_that_answers(name):
    assert name in import_module(f"stepladder.{SERVICES[name]}").__all__
    assert service(name) is getattr(import_module(f"stepladder.{SERVICES[name]}"), name)


def test_every_room_stands_on_a_floor():
    rooms = {room(path) for path in ROOT.rglob("*.py")} - {"__init__", "__main__"}
    assert rooms <= FLOORS.keys()


@pytest.mark.parametrize(
    ("here", "line"),
    [
        ("plan", "from stepladder.rungs import climb"),
        ("plan", "from stepladder.record import Report"),
        ("plan", "def f():\n    import torch"),
        ("planner", "from stepladder.seam.pytree import tree_map"),
        ("planner", "if TYPE_CHECKING:\n    from stepladder.model import Anatomy"),
        ("rungs", "import stepladder.train"),
        ("rungs", 'import_module("stepladder.train.engine")'),
        ("rungs", 'importlib.import_module(f"stepladder.train.{name}")'),
        ("plan", '__import__("stepladder.world")'),
        ("plan", 'import_module(".world", "stepladder")'),
        ("rungs", 'import_module(f"stepladder.{name}")'),
        ("rungs", "from ..train import climb"),
    ],
)
def test_a_planted_trespass_is_seen(here, line):
    assert trespasses(here, line)


def test_imports_stand_at_the_top_outside_the_commands():
    late = [
        f"{path.relative_to(ROOT)} {function.name} line {node.lineno}"
        for path in FILES
        if room(path) != "cli"
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert late == []
