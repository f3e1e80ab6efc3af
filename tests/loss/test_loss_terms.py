"""A loss of several named terms: each is reported as a plain loop over whole batches has it."""

import pytest
import torch
from torch.nn import functional

import stepladder as sl
from stepladder.errors import ModelError
from tests import ranks
from tests.soak import soak_after

STEPS, ROWS, LENGTH, VOCAB = 3, 8, 16, 32
MODEL = f"llama:layers=2,hidden=16,heads=2,vocab={VOCAB},sequence={LENGTH}"


def batch(step):
    """Rows of very different numbers of targets: a mean of means would show."""
    draw = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, VOCAB, (ROWS, LENGTH), generator=draw)
    targets = torch.randint(0, VOCAB, (ROWS, LENGTH), generator=draw)
    valid = torch.randint(1, LENGTH + 1, (ROWS, 1), generator=draw)
    return tokens, targets.masked_fill(torch.arange(LENGTH) >= valid, -100)


def loss(logits, targets):
    logits, targets = logits.flatten(0, 1).float(), targets.flatten()
    size = logits.logsumexp(1)[targets != -100].square().mean()
    return {"prediction": functional.cross_entropy(logits, targets), "size": 0.1 * size}


def plain_loop():
    """Every batch whole, in torch alone: the terms of each step."""
    module = sl.build(MODEL, seed=1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    found = []
    for step in range(STEPS):
        tokens, targets = batch(step)
        terms = loss(module(tokens), targets)
        optimizer.zero_grad()
        sum(terms.values()).backward()
        optimizer.step()
        found.append({name: term.item() for name, term in terms.items()})
    return found


def train(plan, given=loss):
    module = sl.build(MODEL, seed=1)
    run = sl.climb(module, loss=given, optimizer="sgd lr=0.5", plan=plan, device="cpu")
    reports = [run.step(batch(step), rows="global").read() for step in range(STEPS)]
    return [report.to_dict() for report in reports]


@pytest.fixture(scope="module")
def expected():
    return plain_loop()


def assert_terms(found, expected):
    for report, terms in zip(found, expected, strict=True):
        assert report["terms"] == pytest.approx(terms, rel=1e-5)
        assert report["loss"] == pytest.approx(sum(terms.values()), rel=1e-5)


@pytest.mark.parametrize("plan", ["fp32", "fp32 micro=2"])
def test_one_rank_reports_each_term_as_a_plain_loop_has_it(plan, expected):
    assert_terms(train(plan), expected)


@pytest.mark.parametrize(
    "plan",
    soak_after(
        [
            "fp32 ddp replicate=2 micro=1",
            "fp32 pipeline=2 micro=2",
            "fp32 context=2 micro=4",
            "fp32 zero3 shard=2 micro=2",
            "fp32 tensor=2 micro=2",
        ],
        gate=3,
    ),
)
def test_two_ranks_report_the_terms_of_all_their_rows(plan, expected):
    for found in ranks.run(train, 2, plan):
        assert_terms(found, expected)


def one_sided(plan):
    """Rank 1 has no valid target in the first step, so its loss is not computed."""
    run = sl.climb(sl.build(MODEL, seed=1), loss=loss, optimizer="sgd lr=0.5", plan=plan)
    tokens, targets = batch(0)
    targets[ROWS // 2 :] = -100
    return [
        run.step((tokens, targets), rows="global").terms,
        run.step(batch(1), rows="global").terms,
    ]


def test_a_rank_without_targets_learns_the_names_from_the_others():
    tokens, targets = batch(0)
    expected = loss(sl.build(MODEL, seed=1)(tokens[: ROWS // 2]), targets[: ROWS // 2])
    for first, second in ranks.run(one_sided, 2, "fp32 ddp replicate=2"):
        assert first == pytest.approx({name: term.item() for name, term in expected.items()})
        assert list(second) == ["prediction", "size"]


class Noisy(torch.nn.Module):
    """Draws in every pass, as a variational autoencoder does."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = torch.nn.Linear(6, 4), torch.nn.Linear(2, 6)

    def forward(self, inputs):
        mean, spread = self.encode(inputs).chunk(2, dim=1)
        return self.decode(mean + torch.randn_like(mean) * spread.exp()), mean, spread


def test_a_module_that_draws_noise_is_trained_in_micro_batches():
    def evidence(outputs, targets):
        decoded, mean, spread = outputs
        kl = (mean.square() + (2 * spread).exp() - 1 - 2 * spread).mean()
        return {"reconstruction": functional.mse_loss(decoded, targets), "kl": kl}

    run = sl.climb(Noisy(), loss=evidence, plan="fp32 micro=2", device="cpu")
    rows = torch.randn(8, 6)
    with torch.no_grad():
        expected = evidence(run.module(rows), rows)["kl"].item()
    report = run.step((rows, rows)).read()
    assert report.terms["kl"] == pytest.approx(expected, rel=1e-5)
    assert run.step((rows, rows)).terms["reconstruction"] != report.terms["reconstruction"]


def test_a_loss_of_one_number_has_no_terms():
    found = train("fp32", "cross_entropy")
    assert all("terms" not in report for report in found)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({}, "loss: returned no terms. Return at least one, or a number."),
        (
            {"loss": 1, "kl": 1},
            "loss: returned a term called 'loss', and terms are added up to the loss. "
            "Leave a total out; use letters, digits and _ . - in a term's name.",
        ),
        (
            {"a": 1, "Total_loss": 1},
            "loss: returned a term called 'Total_loss', and terms are added up to the loss. "
            "Leave a total out; use letters, digits and _ . - in a term's name.",
        ),
        (
            {"k l": 1},
            "loss: returned a term called 'k l', and terms are added up to the loss. "
            "Leave a total out; use letters, digits and _ . - in a term's name.",
        ),
        (
            {"kl": 2},
            "loss.kl: returned a tensor of shape (2,), not one number. Reduce it with .mean().",
        ),
    ],
)
def test_what_is_no_term_is_told_in_a_line(returned, message):
    def wrong(outputs, targets):
        return {name: outputs.sum().expand(size) for name, size in returned.items()}

    run = sl.climb(torch.nn.Linear(2, 2), loss=wrong, plan="fp32", device="cpu")
    with pytest.raises(ModelError) as caught:
        run.step((torch.zeros(2, 2), torch.zeros(2)))
    assert str(caught.value) == message


@pytest.mark.parametrize("plan", ["fp32", "fp32 micro=2"])
def test_a_term_without_a_gradient_is_an_event_once(plan):
    def with_accuracy(outputs, targets):
        right = (outputs.argmax(1) == targets).float().mean()
        return {"ce": functional.cross_entropy(outputs, targets), "accuracy": right}

    run = sl.climb(torch.nn.Linear(4, 3), loss=with_accuracy, plan=plan, device="cpu")
    for _ in range(2):
        run.step((torch.randn(6, 4), torch.randint(0, 3, (6,)))).read()
    assert [event for event in run.events if "gradient" in event] == [
        "loss.accuracy: has no gradient in the first step and is added to the reported loss; "
        "to see it alone, leave it out and log it with run.log"
    ]


def test_names_that_change_are_refused():
    names = iter(["a", "b"])

    def changing(outputs, targets):
        return {next(names): outputs.mean()}

    run = sl.climb(torch.nn.Linear(2, 2), loss=changing, plan="fp32", device="cpu")
    run.step((torch.zeros(2, 2), torch.zeros(2))).read()
    with pytest.raises(ModelError) as caught:
        run.step((torch.zeros(2, 2), torch.zeros(2)))
    assert str(caught.value) == (
        "loss: returned the terms b, and the terms a before. "
        "Return the same names in the same order every time."
    )


def differing(plan):
    def own(outputs, targets):
        return {f"rank{torch.distributed.get_rank()}": outputs.square().mean()}

    run = sl.climb(torch.nn.Linear(2, 2), loss=own, plan=plan, device="cpu")
    try:
        run.step((torch.ones(4, 2), torch.zeros(4)), rows="global")
    except ModelError as refused:
        return str(refused)


def test_ranks_that_differ_in_names_are_told_so():
    told = (
        "loss: returned the terms rank0 on one rank and the terms rank1 on another. "
        "Return the same names in the same order on every rank."
    )
    assert ranks.run(differing, 2, "fp32 ddp replicate=2") == [told, told]
