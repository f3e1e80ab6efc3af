"""Each expert's share of a batch, counted over all ranks, against the router's own choices."""

import pytest
import torch

from stepladder.train import climb
from tests.ranks import run
from tests.soak import soak_after

from . import listed_mixtures
from .small_mixture import batch, mixture
from .test_foreign_mixtures import batch as foreign_batch
from .test_foreign_mixtures import model as foreign_model

SHAPE = "llama:layers=2,hidden=16,heads=2,vocab=32,ffn=16,experts=8,active=2,sequence=8"


def seen_by_hand():
    """By hooks on the routers, with a softmax of its own."""
    module, counts = mixture(SHAPE), {}

    def look(name, _part, _given, logits):
        chosen = logits.topk(2).indices.flatten()
        counts[name] = torch.bincount(chosen, minlength=8) / len(chosen)

    for name in ("blocks.0.mlp", "blocks.1.mlp"):
        router = module.get_submodule(name).router
        router.register_forward_hook(lambda *given, name=name: look(name, *given))
    module(batch(0)[0])
    return counts


def shares(plan, build=mixture, given=SHAPE, rows=None):
    torch.set_num_threads(1)
    trained = climb(
        build(given), loss="cross_entropy", optimizer="sgd lr=0.1", plan=plan, device="cpu"
    )
    trained.evaluate([batch(3)], rows="global")  # is not counted
    report = trained.step(batch(0), rows="global").read()
    return report.experts, report.expert_load, report.dead_experts, report.line()


def check(found):
    expected = seen_by_hand()
    table, load, dead, line = found
    assert list(table) == list(expected)
    for name, row in expected.items():
        torch.testing.assert_close(torch.tensor(table[name]), row)
    assert load == pytest.approx(max(8 * float(row.max()) for row in expected.values()))
    assert dead == sum(int((row == 0).sum()) for row in expected.values())
    assert f"busiest expert {load:.2f} x even" in line


@pytest.mark.parametrize("plan", ["fp32", "fp32 micro=2", "fp32 recompute=blocks micro=3"])
def test_one_rank_reports_each_experts_share(plan):
    check(shares(plan))


@pytest.mark.parametrize(
    "plan", ["fp32 ddp", "fp32 zero3 micro=2", "fp32 experts=2", "fp32 pipeline=2 micro=2"]
)
def test_ranks_report_the_share_of_the_global_batch(plan):
    for found in run(shares, 2, plan):
        check(found)


def sent(plan):
    torch.set_num_threads(1)
    trained = climb(mixture(SHAPE), loss="cross_entropy", plan=plan, device="cpu")
    report = trained.step(batch(0), rows="global").read()
    return report.expert_sent_bytes, report.expert_rank_load


def chosen_by_half():
    """By layer and half of the batch, how many rows go to experts 0 to 3 and to 4 to 7."""
    module, found = mixture(SHAPE), []

    def look(_part, _given, logits):
        halves = logits.topk(2).indices.flatten().chunk(2)
        found.append([[int((one // 4 == rank).sum()) for rank in (0, 1)] for one in halves])

    for block in module.blocks:
        block.mlp.router.register_forward_hook(look)
    module(batch(0)[0])
    return found


def test_ranks_count_the_bytes_that_they_send_for_their_experts():
    layers = chosen_by_half()
    leaving = sum(first[1] + second[0] for first, second in layers)
    # Rows and gradients there and back, a weight with each and its gradient, and counts.
    expected = leaving * (4 * 16 * 4 + 2 * 4) + len(layers) * 2 * 4 * 8
    shares = [[a + b for a, b in zip(first, second)] for first, second in layers]
    load = max(2 * max(row) / sum(row) for row in shares)
    found = run(sent, 2, "fp32 experts=2")
    assert sum(one for one, _ in found) == expected
    assert [rank_load for _, rank_load in found] == [pytest.approx(load)] * 2


def test_experts_that_are_on_every_rank_send_nothing():
    assert sent("fp32 micro=2") == (None, None)


def foreign_shares(plan):
    torch.set_num_threads(1)
    trained = climb(foreign_model("olmoe"), optimizer="sgd lr=0.1", plan=plan, device="cpu")
    report = trained.step(foreign_batch(0), rows="global").read()
    return report.experts


def test_mixtures_of_transformers_report_it_too():
    alone = foreign_shares("fp32")
    assert len(alone) == 2 and all(sum(row) == pytest.approx(1) for row in alone.values())
    assert run(foreign_shares, 2, "fp32 experts=2") == [alone, alone]


def listed_shares(plan, kind="Masked"):
    torch.set_num_threads(1)
    module = listed_mixtures.model(getattr(listed_mixtures, kind))
    sample = listed_mixtures.batch(0)
    trained = climb(module, loss="cross_entropy", plan=plan, device="cpu", sample=sample)
    report = trained.step(sample, rows="global").read()
    return {name: torch.tensor(row) for name, row in report.experts.items()}


def chosen_of_lists(kind="Masked"):
    """By the routers' own logits: two experts a token."""
    module, found = listed_mixtures.model(getattr(listed_mixtures, kind)), {}

    def look(name, _gate, _given, logits):
        counts = torch.bincount(logits.topk(2).indices.flatten(), minlength=4)
        found[name] = counts / counts.sum()

    for index, block in enumerate(module.blocks):
        name = f"blocks.{index}.mixture.experts"
        block.mixture.gate.register_forward_hook(lambda *given, name=name: look(name, *given))
    module(listed_mixtures.batch(0)[0])
    return found


@pytest.mark.parametrize(
    ("plan", "ranks"),
    soak_after(
        [
            ("fp32 micro=2", 1),
            ("fp32 experts=2 micro=2", 2),
            ("fp32 zero3", 2),
            ("fp32 ddp experts=2", 4),
            ("fp32 zero3 shard=2 experts=2 recompute=blocks", 4),
        ],
        gate=2,
    ),
)
def test_experts_in_a_list_are_counted_by_the_rows_they_get(plan, ranks):
    for table in run(listed_shares, ranks, plan):
        torch.testing.assert_close(table, chosen_of_lists())


class TwoLayers(torch.nn.Module):
    """As many layers as classes: by its shape alone the head might be a router."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
        self.head = torch.nn.Linear(4, 2)

    def forward(self, rows):
        for layer in self.layers:
            rows = layer(rows).tanh()
        return self.head(rows)


def test_layers_that_no_name_calls_experts_are_not_reported():
    trained = climb(TwoLayers(), loss="cross_entropy", plan="fp32", device="cpu")
    assert not trained.step((torch.randn(8, 4), torch.randint(0, 2, (8,)))).read().experts


def test_a_model_without_experts_reports_none():
    trained = climb(torch.nn.Linear(4, 2), loss="cross_entropy", plan="fp32", device="cpu")
    report = trained.step((torch.randn(8, 4), torch.randint(0, 2, (8,)))).read()
    assert report.expert_load is None and report.experts == {}
    assert "busiest" not in report.line()


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["fp32 compile=on", "fp32 compile=on recompute=blocks"])
def test_compiled_it_counts_the_same(plan):
    check(shares(plan))
