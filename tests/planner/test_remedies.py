"""What to change of a plan that does not fit: forecast, ranked, and never what has just failed."""

import json
from dataclasses import replace

import pytest

from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.planner import forecast, plan, plan_problems
from stepladder.planner.plan_changes import CHANGES
from stepladder.planner.remedies import find_remedies
from stepladder.workload import find_facts

GPT2 = find_facts("gpt2", 1024)
LLAMA = find_facts("llama3-8b", 4096)
A100 = Cluster.parse("1 x A100-40GB")
NODE = Cluster.parse("8 x H100-80GB")
WANTED = "fp32 micro=32 batch=32"  # on an A100 of 40 GB one row fits, and 32 do not


def shorter(tokens):
    return find_facts("gpt2", tokens)


def words(remedies):
    return [each.words for each in remedies]


def test_every_kind_is_tried_where_one_row_fits_and_32_are_wanted():
    found = find_remedies(GPT2, Plan.parse(WANTED), A100, shorter=shorter)
    kinds = {each.kinds for each in found if len(each.kinds) == 1}
    assert kinds == {
        ("accumulation",), ("recomputation",), ("precision",), ("offload",), ("sequence",),
        ("devices",),
    }  # fmt: skip
    assert {"bf16", "micro=16", "recompute=selective", "sequence=512"} <= {*words(found)}


def test_each_is_as_it_would_be_forecast():
    for each in find_remedies(GPT2, Plan.parse(WANTED), A100, shorter=shorter):
        told = forecast(each.case.facts, each.case.plan, each.case.cluster)
        assert told.fits == each.fits
        assert told.memory.peak_bytes == each.forecast.memory.peak_bytes
        assert told.time.step_seconds == each.forecast.time.step_seconds
        assert each.cost > 0 and each.to_dict()["plan"] == told.plan
        json.dumps(each.to_dict())


@pytest.mark.parametrize(
    ("facts", "text", "cluster"),
    [(GPT2, WANTED, A100), (LLAMA, "bf16 ddp micro=1 batch=64", NODE)],
)
def test_what_fits_comes_first_and_the_cheapest_of_it(facts, text, cluster):
    found = find_remedies(facts, Plan.parse(text), cluster)
    order = [(not each.fits, each.loses_digits, each.cost) for each in found]
    assert order == sorted(order) and found[0].fits
    assert not any(plan_problems(e.case.facts, e.case.plan, e.case.cluster) for e in found)


def test_copies_are_sliced_over_the_ranks_that_hold_them():
    found = find_remedies(LLAMA, Plan.parse("bf16 ddp micro=1 batch=64"), NODE)
    best = found[0].case.plan
    assert best.zero in (2, 3) and best.layout.shard == 8
    assert best.batch.sequences == 64, "the batch, and so the result, stays"


def test_more_devices_take_what_no_change_of_the_plan_can():
    facts = find_facts("llama3-70b", 8192)
    found = find_remedies(facts, Plan.parse("bf16 zero3 micro=1 batch=64"), NODE)
    assert found[0].kinds == ("devices",) and found[0].case.cluster.num_devices == 32
    assert "fp" not in found[0].words and found[0].besides == "32 devices"


def test_weights_in_16_bits_come_last_of_what_fits():
    facts = find_facts("llama3-8b", 2048)
    found = find_remedies(facts, Plan.parse("bf16 micro=1 batch=8"), Cluster.parse("1 x H200"))
    fitting = [each for each in found if each.fits]
    losing = [each.loses_digits for each in fitting]
    assert any(losing) and losing == sorted(losing)


STATE = "bf16-master micro=1 batch=8"


@pytest.mark.parametrize(
    ("gib", "word", "besides"),
    [
        (23.5, "state=14", "the same results"),
        (20, "state=10", "moments in 16 bits"),
        (17, "state=7", "masters in 24 bits and moments in 8"),
    ],
)
def test_bytes_of_state_give_way_from_those_that_keep_every_bit(gib, word, besides):
    facts = find_facts("llama3.2-1b", 512)
    plan = replace(Plan.parse(STATE), memory_bytes=int(gib * 2**30))
    found = find_remedies(facts, plan, Cluster.parse("1 x H100-80GB"))
    chosen = next(each for each in found if each.kinds == ("state",))
    assert (chosen.words, chosen.besides, chosen.fits) == (word, besides, True)


def test_a_plan_of_autocast_is_offered_masters_and_told_what_they_narrow():
    facts = find_facts("llama3.2-1b", 512)
    plan = replace(Plan.parse("bf16 micro=1 batch=8"), memory_bytes=int(23.5 * 2**30))
    found = find_remedies(facts, plan, Cluster.parse("1 x H100-80GB"))
    chosen = next(each for each in found if each.kinds == ("state",))
    assert chosen.words == "bf16-master state=14" and not chosen.loses_digits
    assert chosen.besides == "weights and gradients in bf16 beside fp32 masters"


def test_what_has_failed_is_not_advised_whatever_its_forecast_was():
    """A plan that was forecast to fit and did not: everything is taken to need as much more."""
    small = Plan.parse("fp32 micro=4 batch=4")
    told = forecast(GPT2, small, A100)
    assert told.fits
    found = find_remedies(GPT2, small, A100, failed=True)
    factor = told.memory_limit_bytes / told.memory.peak_bytes
    for each in found:
        assert each.forecast.memory.peak_bytes < told.memory.peak_bytes
        if each.fits:
            assert each.forecast.memory.peak_bytes * factor <= told.memory_limit_bytes
    assert str(small) not in [str(each.case.plan) for each in found]


def test_a_micro_batch_of_one_is_not_made_smaller():
    found = find_remedies(GPT2, Plan.parse("fp32 micro=1 batch=4"), A100, failed=True)
    assert not [each for each in found if "accumulation" in each.kinds]


def test_what_a_plan_does_already_is_not_advised():
    text = "bf16-pure zero3 micro=1 batch=64 recompute=blocks offload=optimizer,activations"
    facts = find_facts("llama3-70b", 8192)
    settled = Plan.parse(text).settle(8)
    every = [change for kind in CHANGES.values() for change in kind(settled, NODE)]
    assert every == []
    assert {each.kinds for each in find_remedies(facts, settled, NODE)} <= {("devices",)}


def test_any_teller_of_memory_and_time_will_do():
    """Another one than the formulas, such as a rehearsal of the module."""

    def twice(facts, plan, cluster, calibration):
        told = forecast(facts, plan, cluster, calibration)
        memory = replace(told.memory, activations=2 * told.memory.activations)
        limit = told.memory_limit_bytes
        return replace(told, memory=memory, fits=memory.peak_bytes <= limit)

    plain = find_remedies(GPT2, Plan.parse(WANTED), A100)
    strict = find_remedies(GPT2, Plan.parse(WANTED), A100, forecast_plan=twice)
    assert next(e.words for e in plain if e.kinds == ("recomputation",)) == "recompute=selective"
    assert next(e.words for e in strict if e.kinds == ("recomputation",)) == "recompute=blocks"


def test_the_library_names_what_would_fit():
    result = plan("gpt2", "1 x A100-40GB", plan=WANTED, sequence=1024)
    assert not result.fits and result.remedies[0].words == "bf16"
    assert "would fit: bf16 (" in str(result)
    assert result.to_dict()["remedies"][0]["change"] == "bf16"
    assert plan("gpt2", "1 x A100-40GB", plan="bf16 micro=1 batch=8").remedies == ()
