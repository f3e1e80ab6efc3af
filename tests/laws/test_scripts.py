"""What scripts outside the package import of it is there: no test runs the long ones."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    path for folder in ("benchmarks", "docs", "examples") for path in (ROOT / folder).rglob("*.py")
]
PACKAGES = ("stepladder", "tests", "benchmarks")


def missing_names(source: str) -> list[str]:
    """Modules and names that the source imports of the project and nobody defines."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            wanted = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            wanted = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        found += [
            f"{module} {name}".strip()
            for module, name in wanted
            if module.partition(".")[0] in PACKAGES and not is_there(module, name)
        ]
    return found


def is_there(module: str, name: str) -> bool:
    try:
        package = importlib.import_module(module)
        return (
            not name or hasattr(package, name) or bool(importlib.import_module(f"{module}.{name}"))
        )
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in PACKAGES:
            return False
        pytest.skip(f"needs {error.name}")
    return True


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_imports_what_is_there(script):
    assert missing_names(script.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "from stepladder.train.profile_steps import no_such_name",
        "import stepladder.no_such_module",
        "from stepladder.no_such_module import anything",
    ],
)
def test_a_name_that_is_gone_is_seen(line):
    assert missing_names(line)
