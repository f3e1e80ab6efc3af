"""Evaluation and prediction on one process: outputs of any structure, and what is refused."""

import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from stepladder.errors import DataError
from stepladder.train import climb, fit
from tests.ranks import run as on_ranks
from tests.train.toys import gpt, net, pairs, ragged, same_bits

Pair = namedtuple("Pair", "logits hidden")


@dataclass
class Answer:
    logits: torch.Tensor
    cache: Any = None


@dataclass
class Named(OrderedDict):
    """A dataclass that is a dict as well, as Hugging Face's outputs are."""

    logits: torch.Tensor

    def __post_init__(self):
        self["logits"] = self.logits


WAYS = {
    "tensor": lambda logits: logits,
    "dict": lambda logits: {"logits": logits, "note": "text"},
    "tuple": lambda logits: (logits, [logits.sum(1)]),
    "named tuple": lambda logits: Pair(logits, None),
    "dataclass": lambda logits: Answer(logits, cache=object()),
    "dict of fields": Named,
}


def logits_of(outputs):
    if isinstance(outputs, torch.Tensor):
        return outputs
    if isinstance(outputs, dict):
        return outputs["logits"]
    return outputs.logits if hasattr(outputs, "logits") else outputs[0]


class Returning(nn.Module):
    def __init__(self, way) -> None:
        super().__init__()
        self.inner, self.way = net(), way

    def forward(self, x):
        return self.way(self.inner(x))


def loss(outputs, targets):
    return nn.functional.cross_entropy(logits_of(outputs), targets)


def start(way, plan="fp32", loss=loss):
    return climb(Returning(way), loss=loss, plan=plan, device="cpu")


def last_smaller(num=3):
    made = pairs(num)
    return [*made[:-1], (made[-1][0][:5], made[-1][1][:5])]


def plain(data):
    x, y = (torch.cat(parts) for parts in zip(*data))
    with torch.no_grad():
        return net()(x), y


@pytest.mark.parametrize("name", WAYS)
def test_a_metric_is_given_what_the_module_returns(name):
    data, given = last_smaller(), []

    def metric(outputs, targets):
        given.append(outputs)
        return (logits_of(outputs).argmax(-1) == targets).float().mean()

    run = start(WAYS[name], "fp32 micro=3" if name == "dict" else "fp32")
    found = run.evaluate(data, metrics={"accuracy": metric})
    logits, targets = plain(data)
    assert found["accuracy"] == pytest.approx((logits.argmax(-1) == targets).float().mean().item())
    assert len(given) == 1, "once, for all rows"
    predicted = run.predict([x for x, _ in data])
    for outputs in (given[0], predicted):
        assert type(outputs) is type(WAYS[name](logits))
        assert torch.allclose(logits_of(outputs), logits, atol=1e-6)


def test_only_tensors_are_kept_and_a_number_is_the_mean_over_rows():
    run = start(lambda logits: {"logits": logits, "top": logits.max(), "note": "text"})
    predicted = run.predict(DataLoader(TensorDataset(plain(pairs(1))[1].float().expand(16, 8).T)))
    assert predicted["note"] is None and predicted["logits"].shape == (8, 5)
    assert predicted["top"] == pytest.approx(predicted["logits"].amax(1).mean().item())


def test_rows_of_unequal_length_are_padded():
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4)

        def forward(self, tokens):
            return self.table(tokens)

    def by_token(outputs, targets):
        return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    torch.manual_seed(0)
    data = [(torch.randint(0, 9, (2, n)), torch.randint(0, 4, (2, n))) for n in (3, 5)]
    seen = {}

    def metric(outputs, targets):
        seen.update(outputs=outputs, targets=targets)
        return (outputs.argmax(-1) == targets)[targets != -100].float().mean()

    module = Tagger()
    run = climb(module, loss=by_token, plan="fp32", device="cpu")
    found = run.evaluate(data, metrics={"accuracy": metric})
    hits = torch.cat([(module(x).argmax(-1) == y).flatten() for x, y in data])
    assert found["accuracy"] == pytest.approx(hits.float().mean().item())
    assert (seen["targets"][:2, 3:] == -100).all() and (seen["outputs"][:2, 3:] == 0).all()
    assert torch.equal(seen["targets"][2:], data[1][1])
    flat = run.predict(data, keep=lambda outputs: outputs.flatten(0, 1))
    assert torch.equal(flat, seen["outputs"].flatten(0, 1))


def test_batches_may_come_in_the_same_memory_each_time():
    def reused():
        x, y = torch.empty(8, 16), torch.empty(8, dtype=torch.long)
        for inputs, targets in pairs(3):
            yield x.copy_(inputs), y.copy_(targets)

    run = start(WAYS["tensor"])
    found = run.evaluate(reused(), metrics={"sum": lambda outputs, targets: targets.sum()})
    assert found["sum"] == sum(targets.sum() for _, targets in pairs(3))


def test_targets_are_nothing_to_a_prediction():
    x, y = pairs(1)[0]
    run = start(WAYS["tensor"], loss="cross_entropy")
    predicted = run.predict([(x, y), x, (x, -torch.ones(8, 3)), [x]])
    assert torch.allclose(predicted, plain(pairs(1))[0].repeat(4, 1), atol=1e-6)


def test_keep_picks_what_metrics_are_given_and_predictions_are():
    data = last_smaller()
    run = start(WAYS["tuple"])
    keep = lambda outputs: outputs[0].argmax(-1)  # noqa: E731
    found = run.evaluate(data, metrics={"sum": lambda kept, _: kept.sum()}, keep=keep)
    logits, _ = plain(data)
    assert found["sum"] == logits.argmax(-1).sum()
    assert torch.equal(run.predict(data, keep=keep), logits.argmax(-1))


def test_the_result_reads_as_a_number_and_by_name():
    run = start(WAYS["tensor"])
    rows = torch.tensor([1.0, 2.0])
    metrics = {"one": lambda o, t: 0.5, "rows": lambda o, t: rows, "all": lambda o, t: {"a": 2}}
    found = run.evaluate(pairs(2), metrics=metrics)
    assert float(found) == found.loss == found["loss"] == run.evaluate(pairs(2))
    assert found.metrics == {"one": 0.5, "rows": found["rows"], "all": {"a": 2.0}}
    assert repr(found) == (
        f"Evaluation(loss={found.loss:.4g}, one=0.5, rows=tensor([1., 2.]), all={{'a': 2.0}})"
    )


def test_16_bits_come_back_in_32_and_nothing_was_learnt():
    run = start(WAYS["tensor"], "bf16")
    before = [p.clone() for p in run.module.parameters()]
    predicted = run.predict(pairs(1))
    assert predicted.dtype == torch.float32 and not predicted.requires_grad
    assert torch.allclose(predicted, plain(pairs(1))[0], atol=0.05)
    assert all(map(torch.equal, before, run.module.parameters())) and run.index == 0


@pytest.mark.soak  # it takes a quarter of a minute to import
def test_torchmetrics_objects_and_collections_are_updated_and_reset():
    torchmetrics = pytest.importorskip("torchmetrics")
    data, how = last_smaller(), {"task": "multiclass", "num_classes": 5}
    metric = torchmetrics.Accuracy(**how)
    both = torchmetrics.MetricCollection(
        {"auc": torchmetrics.AUROC(**how), "f1": torchmetrics.F1Score(**how, average="macro")}
    )
    found = start(WAYS["tensor"]).evaluate(data, metrics={"accuracy": metric, "both": both})
    logits, targets = plain(data)
    assert metric.update_count == 0
    assert found["accuracy"] == pytest.approx(torchmetrics.Accuracy(**how)(logits, targets).item())
    auc = torchmetrics.AUROC(**how)(logits, targets).item()
    assert found["both"] == {"auc": pytest.approx(auc), "f1": both["f1"](logits, targets).item()}


def test_a_metric_may_be_a_table():
    torchmetrics = pytest.importorskip("torchmetrics")
    data = last_smaller()
    metric = torchmetrics.ConfusionMatrix(task="multiclass", num_classes=5)
    counted = {"object": metric, "function": lambda o, t: metric(o.argmax(1), t)}
    found = start(WAYS["tensor"]).evaluate(data, metrics=counted)
    expected = torchmetrics.ConfusionMatrix(task="multiclass", num_classes=5)(*plain(data))
    assert torch.equal(found["object"], expected) and torch.equal(found["function"], expected)


def of_torchmetrics(plan):
    torchmetrics = pytest.importorskip("torchmetrics")
    run = start(WAYS["tensor"], plan)
    metric = torchmetrics.AUROC(task="multiclass", num_classes=5)
    found = run.evaluate(last_smaller(), metrics={"auc": metric}, rows="global")
    return found["auc"]


@pytest.mark.soak
def test_torchmetrics_combines_ranks_with_unequally_many_rows():
    alone = of_torchmetrics("fp32")
    assert on_ranks(of_torchmetrics, 2, "fp32 ddp", init=False) == pytest.approx([alone] * 2)


def test_evaluation_weighs_batches_by_targets_and_learns_nothing():
    module, other = gpt(dropout=0.5), gpt()
    run = climb(module, loss="cross_entropy", optimizer="sgd lr=1", plan="fp32")
    batches = ragged(4)
    with torch.no_grad():
        total = sum(
            nn.functional.cross_entropy(
                other(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum"
            )
            for x, y in batches
        )
    valid = sum((y != -100).sum() for _, y in batches)
    assert run.evaluate(batches) == pytest.approx((total / valid).item(), rel=1e-6)
    with pytest.raises(DataError, match="^batches: there are none to evaluate. Give at least one"):
        run.evaluate([])
    assert run.index == 0 and module.training and same_bits(module, other)


class Halting:
    def __init__(self):
        self.reset = self.compute = lambda: None

    def update(self, outputs, targets):
        raise ValueError("too many\ndetails")


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ([len], "metrics: a list does not name them. Give a dict, such as"),
        ({"loss": len}, "metrics: 'loss' is not a name for a metric: the result has the loss"),
        ({"a": nn.Linear}, "metrics.a: Linear is a class. Give one of its objects: Linear(...)."),
        ({"a": 3}, "metrics.a: 3 cannot be computed. Give a function of (outputs, targets), or"),
        (
            {"a": Halting()},
            "metrics.a: raised ValueError (too many), given outputs and targets of shape (8, 5) "
            "and (8,). The cause, which this error has, says where.",
        ),
        ({"a": lambda o, t: "much"}, "metrics.a: returned a str, which is no number. Return a"),
    ],
)
def test_a_metric_that_cannot_be_used_is_told_in_one_line(metrics, said):
    with pytest.raises(DataError) as refused:
        start(WAYS["tensor"]).evaluate(pairs(1), metrics=metrics)
    assert str(refused.value).startswith(said)


def refused_metric():
    try:
        start(WAYS["tensor"], "fp32 ddp").evaluate(
            pairs(1), metrics={"a": lambda o, t: str(tuple(o.shape))}, rows="global"
        )
    except DataError as refused:
        return str(refused)


def test_every_rank_refuses_a_metric_that_one_of_them_computes():
    one, other = on_ranks(refused_metric, 2, init=False)
    assert one == other and one.startswith("metrics.a: returned a str, which is no number")


def test_outputs_that_no_rows_can_be_told_from_are_refused():
    odd = start(lambda logits: (logits, torch.ones(7, 2)), "fp32")
    with pytest.raises(DataError) as refused:
        odd.predict(pairs(1))
    assert str(refused.value) == (
        "outputs: a tensor of shape (7, 2) has no entry for each of 8 rows. "
        "Pass keep= a function that picks what belongs to rows."
    )
    torn = start(lambda logits: logits if len(logits) > 5 else (logits,), "fp32")
    with pytest.raises(
        DataError, match=r"rows has \(5, 5\), nested otherwise than the rows before"
    ):
        torn.predict(last_smaller())


def as_they_are(outputs, targets):
    return float(outputs.sum())


def emptied(outputs, targets):
    outputs.zero_()
    return 0.0


def test_a_metric_may_write_into_what_it_is_given():
    run, data = start(WAYS["tensor"]), last_smaller()
    alone = run.evaluate(data, metrics={"sum": as_they_are})["sum"]
    both = run.evaluate(data, metrics={"empty": emptied, "sum": as_they_are})
    assert both["sum"] == alone != 0


def test_a_mean_over_no_target_is_no_number():
    run = climb(net(), loss="cross_entropy", plan="fp32", device="cpu")
    (x, y), *_ = pairs(1)
    assert math.isnan(run.evaluate([(x, torch.full_like(y, -100))]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data": None}, "data: a NoneType is no series of batches. Give DataLoader"),
        ({"data": torch.zeros(4, 16)}, r"data: a Tensor is no series of batches. Give \[batch\]"),
        ({"data": pairs(1)[0]}, r"data: a tuple is no series of batches. Give \[batch\]"),
        ({"data": TensorDataset(*pairs(1)[0])}, "data: a TensorDataset is samples and not batches"),
        ({"keep": 3}, "keep: 3 is not a function of outputs"),
        ({"keep": lambda outputs: 1 / 0}, "keep: raised ZeroDivisionError: division by zero"),
        ({"keep": lambda outputs: None}, "keep: returned a NoneType, which holds no tensor"),
    ],
)
def test_what_is_no_data_and_picks_nothing_is_refused(given, said):
    run = climb(net(), loss="cross_entropy", plan="fp32", device="cpu")
    with pytest.raises(DataError, match=said):
        run.predict(**{"data": pairs(2), **given})


def test_batches_without_an_end_or_in_an_unknown_order_are_refused():
    run = start(WAYS["tensor"])
    rows = TensorDataset(*pairs(1)[0])
    with run.batches(rows, size=4) as endless, pytest.raises(DataError) as refused:
        run.evaluate(endless)
    assert str(refused.value) == (
        "batches: run.batches goes on epoch after epoch, and an evaluation would never end. "
        "Pass it stop=, or give a DataLoader."
    )
    with run.batches(rows, size=4, stop=8, shuffle=False) as ending:
        assert len(run.predict(ending)) == 8
    dealt = DataLoader(rows, 2, sampler=DistributedSampler(rows, num_replicas=3, rank=0))
    with pytest.raises(DataError) as refused:
        run.evaluate(dealt, metrics={})
    assert str(refused.value) == (
        "DistributedSampler: repeats 1 of 8 samples so that 3 ranks have as many, and a metric "
        "would count them twice. Leave it out: each rank then takes its rows of every batch."
    )
    with pytest.raises(DataError, match="deals samples out to 3 ranks, and predictions would not"):
        run.predict(dealt)
    with pytest.raises(DataError, match="^batches: there are none to evaluate"):
        run.predict([])


def test_batches_that_end_before_the_run_stands_say_where_it_stands():
    run = climb(net(), loss="cross_entropy", plan="fp32", device="cpu")
    rows = TensorDataset(*pairs(1)[0])
    for _ in fit(run, run.batches(rows, size=4), steps=3):
        pass
    with pytest.raises(DataError) as refused:
        run.evaluate(run.batches(rows, size=4, stop=8))
    assert str(refused.value) == (
        "batches: there are none to evaluate. run.batches goes on from the run's sample 12: "
        "give a DataLoader."
    )


def from_a_loader(plan):
    """Rows of a loader, rows that ranks read for themselves, and fewer rows than ranks."""
    run = start(WAYS["tensor"], plan)
    x, y = plain_rows()
    shared = run.predict(DataLoader(TensorDataset(x, y), 8))
    split = (x[:3], y[:3]) if run.world.data_index == 0 else (x[3:4], y[3:4])
    own = run.predict([split], rows="rank")
    few = run.predict([(x[:1], y[:1])], rows="global")
    return shared, own, few


def plain_rows():
    return (torch.cat(parts) for parts in zip(*last_smaller()))


@pytest.mark.parametrize("plan", ["fp32 ddp", "fp32 zero3 micro=2"])
def test_ranks_that_share_a_loader_predict_in_its_order(plan):
    logits, _ = plain(last_smaller())
    for shared, own, few in on_ranks(from_a_loader, 2, plan, init=False):
        assert torch.allclose(shared, logits, atol=1e-6)
        assert torch.allclose(own, logits[:4], atol=1e-6)
        assert torch.allclose(few, logits[:1], atol=1e-6)
