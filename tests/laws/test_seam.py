"""Private names of torch are touched in stepladder.seam alone, and each stands in its table."""

import ast
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stepladder.seam import NAMES

ROOT = Path(__file__).parents[2] / "src" / "stepladder"
FILES = sorted(ROOT.rglob("*.py"))
OUTSIDE = [path for path in FILES if path.relative_to(ROOT).parts[0] != "seam"]
PATHS = {name.path for name in NAMES}
OPERATORS = {path for path in PATHS if path.startswith("torch.ops.")}
# What a class or an instance has; operators' names are data, as in a profiler's events.
LISTED = {path.rpartition(".")[2] for path in PATHS} - {
    path.rpartition(".")[2] for path in OPERATORS
}
OTHERS = {  # attributes of other libraries
    "_exit", "_getframe", "_current_frames",  # os, sys
    "_fields", "_replace", "_actions", "_option_string_actions",  # collections, argparse
    "_from_config", "_model_mapping", "_trainer", "_device",  # transformers, Lightning
}  # fmt: skip


TORCHS = {  # what torch's own objects have, listed or not
    word
    for kind in (nn.Module(), Tensor, torch.UntypedStorage, Optimizer, DistributedDataParallel)
    for word in dir(kind)
} | {word for kind in (DTensor, DeviceMesh, dist.ProcessGroup) for word in dir(kind)}


def is_private(word: str) -> bool:
    return word.startswith("_") and not word.startswith("__")


@cache
def own_names() -> set[str]:
    """Private names that our own code defines, or that belong to other libraries."""
    found = set()
    for node in (node for path in OUTSIDE for node in ast.walk(ast.parse(path.read_text()))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return ({word for word in found if is_private(word)} - LISTED - TORCHS) | OTHERS


def chain(node: ast.expr) -> list[str]:
    """The words of `a.b.c`; a call or an index in it is a word of its own."""
    if isinstance(node, ast.Attribute):
        return [*chain(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else ["()"]


def torch_aliases(tree: ast.Module) -> set[str]:
    """Names that a file binds to something of torch."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias for alias in node.names if alias.name.split(".")[0] == "torch"]
            found |= {(alias.asname or "torch") for alias in names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            found |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Assign) else None
        if isinstance(value, ast.Attribute) and chain(value)[0] in found:
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def in_imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        paths = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        paths = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        return []
    of_torch = [path.split(".") for path in paths if path.startswith("torch.")]
    return [".".join(words) for words in of_torch if any(map(is_private, words))]


def in_attributes(node: ast.AST, aliases: set[str]) -> list[str]:
    if not isinstance(node, ast.Attribute) or not is_private(node.attr):
        return []
    first, *rest = chain(node)
    foreign = node.attr not in own_names()
    if first in ("self", "cls") and len(rest) == 1:
        foreign = node.attr in LISTED
    return [".".join((first, *rest))] if first in aliases or foreign else []


def in_definitions(node: ast.AST) -> list[str]:
    """Methods of a torch class that are overridden."""
    if isinstance(node, ast.ClassDef):
        methods = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
        return [f"{node.name}.{name}" for name in methods if name in LISTED]
    return []


def in_strings(node: ast.AST) -> list[str]:
    """Names to import, or to be handed to getattr, by their exact word."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return []
    words = node.value.split(".")
    path = words[0] == "torch" and " " not in node.value and any(map(is_private, words))
    return [node.value] if path or (node.value in LISTED and is_private(node.value)) else []


def trespasses(source: str) -> list[str]:
    tree = ast.parse(source)
    aliases = torch_aliases(tree)
    return [
        found
        for node in ast.walk(tree)
        for found in (
            *in_imports(node),
            *in_attributes(node, aliases),
            *in_definitions(node),
            *in_strings(node),
        )
    ]


def test_no_private_torch_name_is_touched_outside_the_seam():
    found = {str(path.relative_to(ROOT)): trespasses(path.read_text()) for path in OUTSIDE}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "from torch.utils._pytree import tree_map",
        "from torch.distributed.tensor.placement_types import _StridedShard",
        "import torch\ntorch._foreach_norm([])",
        "import torch\naten = torch.ops.aten\nCASTS = (aten._to_copy,)",
        "from torch import nn\nisinstance(part, nn.modules.conv._ConvNd)",
        "import torch.distributed as dist\ndist.distributed_c10d._get_default_store()",
        "from importlib import import_module\nimport_module('torch._inductor.config')",
        "def f(storage):\n    return storage._cdata",
        "def f(module):\n    return module.get_submodule('a')._modules",
        "def f(op):\n    return getattr(op, '_schema', None)",
        "class Agent(LocalElasticAgent):\n    def _rendezvous(self, group): ...",
        "class Table(nn.Module):\n    def clear(self):\n        self._buffers.clear()",
        "def f(module):\n    module._forward_hooks = {}\n    module._backward_hooks.clear()",
        "def f(mesh):\n    return mesh._never_seen_before('x')",
    ],
)
def test_a_planted_private_name_is_seen(source):
    assert trespasses(source)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.__version__",
        "import os\nos._exit(0)",
        "class Ours:\n    def f(self):\n        return self._anything",
        "import torch\nNAMES = {'_scaled_mm'}  # as a profiler writes it",
    ],
)
def test_what_is_not_torchs_is_let_through(source):
    assert trespasses(source) == []


def test_every_operator_that_is_asked_for_by_name_is_listed():
    asked = {
        f"torch.ops.{namespace}.{word}"
        for source in (path.read_text() for path in FILES)
        if "Operators(" in source
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and chain(node.func)[-1] == "Operators"
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
        for namespace, word in [each.value.split(".")[:2]]
        if is_private(namespace) or is_private(word)
    }
    assert asked
    assert asked <= OPERATORS


def test_every_private_name_in_the_seam_is_listed():
    words = {path.rpartition(".")[2] for path in PATHS}
    for path in sorted((ROOT / "seam").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                assert node.attr in words, f"{path.name}: {node.attr}"


def test_no_listed_name_is_unused():
    source = "".join(path.read_text() for path in FILES if path.name != "names.py")
    assert [path for path in sorted(PATHS) if path.rpartition(".")[2] not in source] == []
