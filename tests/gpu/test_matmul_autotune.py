"""Autotuned matmuls: the same bits as torch's, in any layout."""

import pytest
import torch

import stepladder as sl
from stepladder.kernels.matmul import autotune, cublaslt, matmul
from stepladder.kernels.matmul.matmul import Operands, multiply, shape_of, torch_matmul
from stepladder.world import deterministic

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ROWS, INNER, COLUMNS = 4096, 768, 1536


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


def draw(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def operands(layout):
    made = {
        "forward": lambda: (draw(ROWS, INNER), draw(COLUMNS, INNER).t()),
        "rows": lambda: (draw(ROWS, COLUMNS), draw(COLUMNS, INNER)),
        "weights": lambda: (draw(ROWS, COLUMNS).t(), draw(ROWS, INNER)),
        "a slice": lambda: (draw(ROWS, 3 * INNER)[:, INNER : 2 * INNER], draw(COLUMNS, INNER).t()),
        "both transposed": lambda: (draw(INNER, ROWS).t(), draw(COLUMNS, INNER).t()),
    }
    return made[layout]()


@pytest.mark.parametrize("layout", ["forward", "rows", "weights", "a slice", "both transposed"])
def test_every_algorithm_that_is_taken_gives_the_same_bits(layout):
    left, right = operands(layout)
    out = draw(len(left), right.shape[1])
    given = Operands(left, right, out)
    tuned = cublaslt.Matmul(shape_of(given))
    run = matmul.trial_runner(tuned, given, torch_matmul)
    same = autotune.same_as_torch(tuned.algorithms(), run)
    assert same, "the library's own guess, at least, is torch's"
    left.copy_(draw(*left.shape) * 0.5)  # on other operands too, where it was not looked at
    right.copy_(draw(*right.shape) * 3)
    wanted = torch_matmul(given._replace(out=torch.empty_like(out)))
    for algorithm in same:
        out.fill_(float("nan"))
        matmul.launch(tuned, algorithm, given)
        assert torch.equal(out, wanted)


def test_a_bias_and_a_sum_of_more_bits():
    left, right = operands("forward")
    bias, out = draw(COLUMNS), draw(ROWS, COLUMNS)
    assert shape_of(Operands(left, right, out, bias)) is not None
    wanted = torch_matmul(Operands(left, right, torch.empty_like(out), bias))
    assert torch.equal(multiply(left, right, out, bias), wanted)
    sums = torch.randn(COLUMNS, INNER, device="cuda")
    left, right = operands("weights")
    for add in (True, False):
        wanted = multiply(left, right, sums.clone(), add=add, autotune=False)
        assert torch.equal(multiply(left, right, sums, add=add), wanted)


def test_a_choice_is_written_down_and_taken_up_again(cache):
    left, right = operands("forward")
    out = draw(ROWS, COLUMNS)
    multiply(left, right, out)
    (written,) = cache.glob("stepladder/matmul-*.json")
    before = dict(autotune.saved_choices())
    assert len(before) == 1
    autotune.saved_choices.cache_clear()
    matmul.TUNED.clear()
    stamp = written.stat().st_mtime_ns
    multiply(left, right, out)
    assert autotune.saved_choices() == before
    assert written.stat().st_mtime_ns == stamp  # nothing was autotune


@pytest.fixture
def steady():
    """Attention and embeddings sum their gradients in one order: as they come, no two runs agree to
    the bit."""
    with deterministic(True):
        yield


@pytest.mark.parametrize("optimizer", ["sgd lr=0.1", "adamw lr=1e-3"])
def test_a_run_with_autotuned_matmuls_is_the_same_run(optimizer, steady, monkeypatch):
    """Losses and parameters to the bit, whether algorithms are chosen or not.

    Of a Llama under autocast, whose matmuls have no epilogue: a fused GELU is rounded once, where
    torch rounds twice.
    """
    ends = []
    for chosen in (True, False):
        torch.manual_seed(0)
        text = "llama:layers=2,hidden=512,heads=8,kv_heads=4,ffn=1024,vocab=33000,sequence=256"
        run = sl.climb(
            sl.build(text), loss="cross_entropy", optimizer=optimizer, device="cuda",
            plan="bf16 compile=on kernels=on",
        )  # fmt: skip
        if not chosen:
            monkeypatch.setattr(matmul, "tuned_for", lambda *_: None)
        tokens = torch.randint(0, 33000, (40, 257), generator=torch.Generator().manual_seed(1))
        losses = [float(run.step((tokens[:, :-1], tokens[:, 1:])).loss) for _ in range(3)]
        ends.append((losses, [p.detach().clone() for p in run.module.parameters()]))
        if chosen:
            assert matmul.TUNED, "no matmul was large enough to be tuned"
    assert ends[0][0] == ends[1][0]
    assert all(torch.equal(a, b) for a, b in zip(ends[0][1], ends[1][1], strict=True))
