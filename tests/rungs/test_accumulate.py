"""How a module is called, alone and compiled with its loss; what packed documents mean to it."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional

from stepladder.data import text_corpus
from stepladder.errors import ModelError
from stepladder.model import build
from stepladder.model.call_module import call
from stepladder.train import climb
from tests.kernels.graph.compiling import without_machine_code
from tests.soak import soak_after


def test_inputs_are_given_the_way_they_are_shaped():
    def module(*args, **kwargs):
        return args, kwargs

    x = torch.zeros(1)
    assert call(module, x) == ((x,), {})
    assert call(module, (x, x)) == ((x, x), {})
    assert call(module, {"a": x}) == ((), {"a": x})


def test_packed_text_trains_through_every_layer(tmp_path):
    for index in range(4):
        (tmp_path / f"{index}.txt").write_text(f"document number {index} " * 9)
    source = text_corpus(tmp_path, length=32, packed=True)
    run = climb(
        build("llama:layers=2,hidden=32,heads=2,vocab=256,sequence=32"),
        loss="cross_entropy", optimizer="adamw lr=0.01", plan="fp32 micro=2",
    )  # fmt: skip
    with run.batches(source, size=4) as feed:
        reports = [run.step(next(feed)) for _ in range(8)]
    assert reports[-1].loss < reports[0].loss
    fewest = min(report.tokens for report in reports)
    assert fewest < 4 * 32, "a target across two documents does not count"


class OwnLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, inputs, labels):
        logits = self.linear(inputs)
        return {"logits": logits, "loss": functional.cross_entropy(logits, labels)}


def smoothed(outputs, targets):
    return functional.cross_entropy(outputs, targets, label_smoothing=0.1)


def for_six_rows(outputs, targets):
    return functional.cross_entropy(outputs.view(6, 3), targets)


WHOLE_LOSSES = [
    ("cross_entropy", nullcontext),
    (None, without_machine_code),
    (smoothed, without_machine_code),
    (None, nullcontext),
    (smoothed, nullcontext),
]


@pytest.mark.parametrize(("loss", "compiler"), soak_after(WHOLE_LOSSES, gate=3))
def test_a_whole_module_is_compiled_with_its_loss_in_one_graph(loss, compiler):
    torch.manual_seed(0)
    module = OwnLoss() if loss is None else nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0))
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 2] * 2)
    batch = {"inputs": x, "labels": y} if loss is None else (x, y)
    losses = []
    for plan in ("fp32", "fp32 compile=whole"):
        counters.clear()
        with compiler():
            run = climb(copy.deepcopy(module), loss=loss, optimizer="sgd lr=0.5", plan=plan)
            losses.append([run.step(batch).loss for _ in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    assert counters["stats"]["unique_graphs"] == 1


def test_a_loss_of_named_terms_is_left_out_of_the_modules_graph_and_reports_them():
    def terms(outputs, targets):
        return {"fit": smoothed(outputs, targets), "size": outputs.square().mean()}

    with without_machine_code():
        module = nn.Sequential(nn.Linear(4, 3))
        run = climb(module, loss=terms, optimizer="sgd lr=0.5", plan="fp32 compile=whole")
        reports = [run.step((torch.randn(6, 4), torch.tensor([0, 1, 2] * 2))) for _ in range(2)]
        assert all(sum(one.terms.values()) == pytest.approx(one.loss) for one in reports)
    assert list(reports[1].terms) == ["fit", "size"]
    said = "loss: not compiled with the module, because its terms are reported"
    assert run.events.count(said) == 1


def test_a_loss_that_is_compiled_with_the_module_is_still_looked_at():
    other = nn.Linear(4, 3)
    run = climb(
        nn.Linear(4, 3),
        loss=lambda o, t: functional.cross_entropy(o, t) + other.weight.square().sum(),
        plan="fp32 compile=whole",
    )
    with pytest.raises(ModelError, match="loss: "):
        run.step((torch.randn(6, 4), torch.tensor([0, 1, 2] * 2)))


def test_a_loss_that_fails_on_two_rows_is_left_out_of_the_compiled_graph():
    run = climb(nn.Linear(4, 3), loss=for_six_rows, plan="fp32 compile=whole")
    assert run.step((torch.randn(6, 4), torch.tensor([0, 1, 2] * 2))).loss > 0


def test_runs_share_no_compiled_graphs_and_no_limit_on_their_number():
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=1), without_machine_code():
        for width in (4, 5, 6):
            run = climb(nn.Linear(width, 3), loss="cross_entropy", plan="fp32 compile=whole")
            run.step((torch.randn(6, width), torch.tensor([0, 1, 2] * 2)))
    assert counters["stats"]["unique_graphs"] == 3
