"""A package's front door lists exactly what it exports, and holds no code."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "stepladder"
MOST_NAMES = 15  # that a reader takes in at a glance
DOORS = sorted(path for path in ROOT.rglob("__init__.py") if path.parent != ROOT)


def name_of(path: Path) -> str:
    return ".".join(("stepladder", *path.parent.relative_to(ROOT).parts))


@pytest.mark.parametrize("path", DOORS, ids=name_of)
def test_a_front_door_is_a_docstring_imports_and_all(path):
    body = ast.parse(path.read_text()).body
    assert isinstance(body[0], ast.Expr), "a docstring first"
    for node in body[1:]:
        assert isinstance(node, ast.Import | ast.ImportFrom | ast.Assign), ast.dump(node)[:80]


@pytest.mark.parametrize("path", DOORS, ids=name_of)
def test_all_is_what_the_door_imports(path):
    imported = {
        alias.asname or alias.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    listed = getattr(importlib.import_module(name_of(path)), "__all__", [])
    assert sorted(imported) == sorted(listed)


@pytest.mark.parametrize("name", ["stepladder", *map(name_of, DOORS)])
def test_a_door_has_at_most_15_names(name):
    assert len(getattr(importlib.import_module(name), "__all__", [])) <= MOST_NAMES


def test_the_public_names_are_the_contract():
    stepladder = importlib.import_module("stepladder")
    for name in stepladder.__all__:
        assert getattr(stepladder, name) is not None


ORDERS = [  # whichever is imported first, the package can be called and its names imported
    "import stepladder as sl",
    "import stepladder.plan, stepladder as sl",
    "from stepladder.plan import Plan; import stepladder as sl",
    "import stepladder as sl; sl.Plan",
    "import stepladder as sl; from stepladder import plan",
    "import stepladder as sl; import stepladder.planner",
]


@pytest.mark.parametrize("order", ORDERS)
def test_a_package_can_be_called_whoever_imported_it_first(order):
    code = f"""{order}
result = sl.plan("gpt2", on="1 x H100-80GB", plan="bf16 micro=1 batch=1")
from stepladder.plan import Plan
import inspect, sys
assert isinstance(result.plan, Plan) and sl.plan.Plan is Plan and sl.Plan is Plan
assert "sequence" in inspect.signature(sl.plan).parameters
print(result.fits, "torch" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_a_name_that_is_not_public_is_refused_in_a_line():
    with pytest.raises(AttributeError, match="module 'stepladder' has no attribute 'climbs'"):
        _ = importlib.import_module("stepladder").climbs


def test_a_function_that_uses_the_library_can_be_sent_to_another_process():
    """As `on_ranks` sends a cell's, by value: the packages it names are imported there again."""
    code = (
        "import cloudpickle, stepladder as sl, stepladder.plan as plan\n"
        "names = {'sl': sl, 'plan': plan}\n"
        "exec('def use(): return sl, plan', names)\n"
        "found = cloudpickle.loads(cloudpickle.dumps(names['use']))()\n"
        "assert found == (sl, plan), found\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
