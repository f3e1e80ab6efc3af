"""Passes leave alone what they do not recognise, and the compiler's cache knows all their code."""

from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from stepladder.kernels.graph import epilogue_pass, gelu_pass, matmul_pass, max_pool_pass
from stepladder.kernels.graph.graph_pass import KernelPass, recognising, source_key
from stepladder.kernels.graph.pre_grad_pass import PreGradPass

PASSES = (
    epilogue_pass.EpiloguePass,
    gelu_pass.GeluPass,
    matmul_pass.MatmulPass,
    max_pool_pass.MaxPoolPass,
    PreGradPass,
)
OURS = Path(__file__).parents[3] / "src" / "stepladder"


def added(stream, table, weight):
    """A table of positions, projected once and added to every row of a batch."""
    return stream + table @ weight


@pytest.mark.parametrize(
    ("rows", "taken"),
    [
        ((3, 5), False),  # the matmul's result is broadcast over the batch
        ((5,), True),
    ],
)
def test_a_sum_that_broadcasts_the_matmul_is_left_alone(monkeypatch, rows, taken):
    monkeypatch.setattr(epilogue_pass, "is_worth_it", lambda *_: True)
    given = torch.randn(*rows, 4), torch.randn(5, 2), torch.randn(2, 4)
    traced = make_fx(added, tracing_mode="fake")(*given)
    before = str(traced.graph)
    epilogue_pass.EpiloguePass()(traced.graph)
    traced.graph.lint()
    assert (str(traced.graph) != before) == taken
    traced.recompile()
    torch.testing.assert_close(traced(*given), added(*given))


@pytest.mark.parametrize("kind", PASSES, ids=lambda kind: kind.__name__)
def test_a_graph_of_unforeseen_nodes_is_left_alone(kind):
    """The operators that passes look for, called as no version of torch has called them."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    functional, aten = torch.nn.functional, torch.ops.aten
    for target in (aten.mm.default, aten.addmm.default, aten.add.Tensor, functional.max_pool2d):
        for args in ((), (x,), (x, x), (x, x, x), (x, x, x, x)):
            x = graph.call_function(target, args)
    inner = graph.call_function(functional.linear, (x, x, x))
    active = graph.call_function(functional.gelu, (inner,), {"approximate": "tanh"})
    graph.output(graph.call_function(functional.linear, (active, x)))
    before = str(graph)
    kind()(graph)
    assert str(graph) == before


def test_a_question_that_fails_is_answered_with_none():
    @recognising
    def first(values):
        """The first of some values."""
        return values[0]

    assert first([3]) == 3 and first([]) is None and first(None) is None
    assert first.__doc__ == "The first of some values."


def test_the_cache_key_covers_every_source_of_kernels_and_seam(tmp_path):
    for name in ("kernels/matmul/matmul.py", "kernels/max_pool.py", "seam/operators.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one = 1\n")
    keys = {source_key(tmp_path)}
    for path in sorted(tmp_path.rglob("*.py")):
        path.write_text("two = 2\n")
        source_key.cache_clear()
        keys.add(source_key(tmp_path))
    path.rename(path.with_name("other.py"))
    source_key.cache_clear()
    keys.add(source_key(tmp_path))
    assert len(keys) == 5 and all(keys)


def test_without_sources_nothing_is_cached(tmp_path):
    assert source_key(tmp_path) == ""


@pytest.mark.parametrize("kind", PASSES[:-1], ids=lambda kind: kind.__name__)
def test_each_pass_has_a_key_of_its_own_over_the_same_sources(kind):
    key = kind().uuid()
    assert issubclass(kind, KernelPass) and key.endswith(source_key(OURS))
    assert [each for each in PASSES[:-1] if each().uuid() == key] == [kind]


def test_the_compiler_takes_a_pass_for_one_that_it_can_cache():
    import torch._inductor.custom_graph_pass as inductor

    for kind in PASSES:
        assert isinstance(kind(), inductor.CustomGraphPass) and kind().uuid()
