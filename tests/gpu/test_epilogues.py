"""Epilogues: every algorithm that is taken computes what torch does."""

from functools import partial

import pytest
import torch

import stepladder as sl
from stepladder.kernels.graph.compile import pass_options
from stepladder.kernels.matmul import autotune, cublaslt, linear_gelu, matmul
from stepladder.kernels.matmul.matmul import Operands, close
from stepladder.world import deterministic

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ROWS, HIDDEN, WIDE = 4096, 768, 3072


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Nothing is tuned yet, and trials are short."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(autotune, "SETTLE", 1e-3)
    monkeypatch.setattr(autotune, "LONG", 2e-3)
    autotune.saved_choices.cache_clear()
    matmul.TUNED.clear()
    yield tmp_path
    autotune.saved_choices.cache_clear()
    matmul.TUNED.clear()


def draw(*shape, scale=1.0):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * scale


def start(text, plan):
    return sl.climb(
        sl.build(text), loss="cross_entropy", optimizer="adamw lr=1e-3", plan=plan, device="cuda"
    )


def case(name):
    """The operands of an epilogue, its name, and the same by torch."""
    rows, out, weight = draw(ROWS, HIDDEN), draw(ROWS, WIDE), draw(WIDE, HIDDEN, scale=0.05).t()
    gradient = Operands(rows, draw(HIDDEN, WIDE, scale=0.05), out, aux=draw(ROWS, WIDE))
    return {
        "gelu": (Operands(rows, weight, out, draw(WIDE), aux=draw(ROWS, WIDE)), "gelu",
                 linear_gelu.torch_linear_gelu),
        "slope": (gradient, "gelu_backward", linear_gelu.torch_matmul_gelu_backward),
        "sum": (Operands(rows, weight, out, None, draw(ROWS, WIDE)), "", matmul.torch_matmul_add),
        "bias and sum": (Operands(rows, weight, out, draw(WIDE), draw(ROWS, WIDE)), "",
                         matmul.torch_matmul_add),
    }[name]  # fmt: skip


@pytest.mark.parametrize("name", ["gelu", "slope", "sum", "bias and sum"])
def test_every_algorithm_that_is_taken_is_right_on_other_operands_too(name):
    given, epilogue, plain = case(name)
    tuned = cublaslt.Matmul(matmul.shape_of(given, epilogue))
    run = matmul.trial_runner(tuned, given, plain)
    same = partial(close, added=given.added)
    algorithms = autotune.same_as_torch(tuned.algorithms(), run, same)
    assert algorithms, "none is offered"
    given.left.copy_(draw(*given.left.shape, scale=0.5))
    wanted = run(None).clone()
    first = run(algorithms[0]).clone()
    assert same(first, wanted)
    assert all(torch.equal(run(each), first) for each in algorithms)


@pytest.mark.parametrize(
    "text",
    [
        "gpt:layers=2,hidden=512,heads=8,vocab=512,sequence=256,tied=1",
        "llama:layers=2,hidden=512,heads=8,kv_heads=4,ffn=1024,vocab=512,sequence=256,tied=1",
    ],
)
def test_a_run_learns_as_one_without(text, monkeypatch):
    ends = []
    for chosen in (True, False):
        torch.manual_seed(0)
        run = start(text, "bf16-master compile=on kernels=on")
        if not chosen:
            monkeypatch.setattr(matmul, "tuned_for", lambda *_: None)
        tokens = torch.randint(0, 512, (40, 257), generator=torch.Generator().manual_seed(1))
        ends.append([float(run.step((tokens[:, :-1], tokens[:, 1:])).loss) for _ in range(8)])
        if chosen:
            shapes = [shape for _, shape in matmul.TUNED]
            assert any(shape.addend == "other" for shape in shapes)
            epilogues = {shape.epilogue for shape in shapes}
            assert {"gelu", "gelu_backward"} <= epilogues or text.startswith("llama")
    torch.testing.assert_close(torch.tensor(ends[0]), torch.tensor(ends[1]), rtol=2e-3, atol=0)


@pytest.fixture
def poisoned():
    """Memory that nobody writes is NaN."""
    with deterministic(True):
        yield


@pytest.mark.parametrize("precision", ["bf16", "bf16-master"])
@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_a_step_is_the_eager_plans_step(kind, precision, poisoned):
    """Autocast's residual stream is float32, not fused. By gradients, which show a wrong scale."""
    text = f"{kind}:layers=2,hidden=512,heads=8,vocab=33000,sequence=256,tied=1"
    tokens = torch.randint(0, 33000, (40, 257), generator=torch.Generator().manual_seed(1))
    found = []
    for rest in ("", " compile=on kernels=on"):
        torch.manual_seed(0)
        run, grads = start(text, precision + rest), {}
        for name, parameter in run.module.named_parameters():
            keep = partial(grads.__setitem__, name)
            parameter.register_post_accumulate_grad_hook(lambda p, keep=keep: keep(p.grad.clone()))
        assert 10 < run.step((tokens[:, :-1], tokens[:, 1:])).loss < 11
        found.append(grads)
    assert len(found[0]) == len(found[1]) > 10
    for name, wanted in found[0].items():
        if name.endswith("key.bias"):  # softmax supports out what all keys share: roundings alone
            continue
        error = (found[1][name].float() - wanted.float()).norm()
        assert error <= 3e-2 * wanted.float().norm(), name


def test_gradients_under_plain_descent_are_those_of_the_parts():
    """SGD hides no wrong scale: one step of a block, compiled with epilogues and eager."""
    torch.manual_seed(0)
    net = (
        sl.build("gpt:layers=1,hidden=512,heads=8,vocab=512,sequence=256,tied=1").cuda().bfloat16()
    )
    tokens = torch.randint(0, 512, (40, 256), device="cuda")
    ends = []
    for call in (net, torch.compile(net, options=pass_options())):
        net.zero_grad()
        call(tokens).float().logsumexp(-1).mean().backward()
        ends.append([p.grad.float() for p in net.parameters()])
    for a, b in zip(*ends, strict=True):
        assert (a - b).norm() <= 2e-2 * a.norm() + 1e-6
