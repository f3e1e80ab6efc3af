"""Every rule is broken once on purpose, and its message read."""

from dataclasses import replace
from time import thread_time

import pytest

from stepladder.errors import PlanError, PlanErrors
from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.plan.settled.settle import RULES
from stepladder.planner import check_plan, plan_problems
from stepladder.workload import Facts, find_facts

LLAMA = find_facts("llama3-8b", 4096)
RESNET = find_facts("resnet50")


def of_modules(facts: Facts) -> Facts:
    """The same mixture, with experts that are modules in a list."""
    parts = [
        replace(part, matmuls=tuple([replace(m, narrows=m.experts > 1) for m in part.matmuls]))
        for part in facts.parts
    ]
    return replace(facts, parts=tuple(parts))


NODE = Cluster.parse("8 x H100-80GB")

BROKEN = {  # rule: (facts, plan, cluster, message)
    "whole modules stay whole": (
        LLAMA,
        "bf16 zero3 compile=whole micro=1",
        "8 x H100-80GB",
        "compile: whole takes the module in one piece, and zero3 gathers blocks one by one. "
        "Use compile=on or compile=blocks.",
    ),
    "experts ways divide the experts": (
        find_facts("olmoe-1b-7b", 4096),
        "bf16 experts=24 micro=1",
        "3 nodes x 8 H100-80GB",
        "layout.experts: 24 ways cannot hold 64 experts evenly. Use 1, 2, 4, 8, 16, 32 or 64.",
    ),
    "experts that are modules stay whole": (
        of_modules(find_facts("olmoe-1b-7b", 4096)),
        "bf16 experts=4 tensor=2 micro=1",
        "8 x H100-80GB",
        "layout.tensor: olmoe-1b-7b holds experts as modules, which 2 ways would cut. "
        "Use tensor=1 beside experts=, or stack them, as transformers does.",
    ),
    "experts stay on the device": (
        find_facts("olmoe-1b-7b", 4096),
        "bf16 zero3 shard=2 experts=4 micro=1 offload=parameters",
        "8 x H100-80GB",
        "offload: parameters wait on the host in slices, and experts=4 are held whole. "
        "Use offload=optimizer, or experts=1.",
    ),
    "tensor ways divide the heads": (
        find_facts("gpt2-xl"),
        "bf16 ddp tensor=2 micro=1",
        "8 x A100-80GB",
        "layout.tensor: 2 ways cannot cut 25 attention heads evenly. Use 1, 5 or 25.",
    ),
    "tensor ways divide the key-value heads": (
        LLAMA,
        "bf16 tensor=16 micro=1",
        "2 nodes x 8 H100-80GB",
        "layout.tensor: 16 ways cannot cut 8 key-value heads evenly. Use 1, 2, 4 or 8.",
    ),
    "tensor ways divide every width they cut": (
        find_facts("llama:layers=2,hidden=64,heads=8,kv_heads=8,ffn=100,vocab=256", 64),
        "bf16 tensor=8 micro=1",
        "8 x A100-80GB",
        "layout.tensor: 8 ways cannot cut a width of 100 in 'block' evenly",
    ),
    "tensor ways have something to cut": (
        RESNET,
        "bf16 ddp tensor=2 micro=1",
        "8 x A100-80GB",
        "layout.tensor: resnet50 has no matrices that are known to be cut in pairs",
    ),
    "tensor ways slice the sequence": (
        find_facts("llama3-8b", 4098),
        "bf16 ddp tensor=8 micro=1",
        "8 x A100-80GB",
        "layout.tensor: 4098 tokens do not divide by tensor x context = 8, which slice them. "
        "Use a sequence of 4096.",
    ),
    "context ways slice the sequence": (
        find_facts("llama3-8b", 4099),
        "bf16 zero3 context=8 micro=1",
        "8 x A100-80GB",
        "layout.context: 8 ways cannot slice 4099 tokens evenly. Use a sequence of 4096.",
    ),
    "context ways need attention": (
        replace(RESNET, tokens=16),
        "bf16 ddp context=2 micro=1",
        "8 x A100-80GB",
        "layout.context: resnet50 has no attention along which a sequence could be sliced",
    ),
    "every stage has a block": (
        find_facts("llama-tiny"),
        "bf16 pipeline=8 micro=1 accumulate=8",
        "8 x A100-80GB",
        "layout.pipeline: 8 stages for 4 blocks leaves some stages empty. Use at most 4.",
    ),
    "micro-batches fill the stages": (
        LLAMA,
        "bf16 ddp pipeline=4 micro=1 accumulate=2",
        "8 x A100-80GB",
        "batch.accumulate: 2 micro-batches cannot fill 4 stages with 1f1b. "
        "Use a batch of 8 or more, or at most 2 stages.",
    ),
    "interleaving works in whole rounds": (
        LLAMA,
        "bf16 ddp pipeline=4 micro=1 accumulate=6 schedule=interleaved:2",
        "8 x A100-80GB",
        "schedule: interleaved works in rounds of 4; 6 micro-batches are not whole rounds",
    ),
    "virtual stages need a pipeline": (
        LLAMA,
        "bf16 ddp micro=1 schedule=interleaved:2",
        "8 x A100-80GB",
        "schedule: interleaved:2 gives each rank several stages, and there is no pipeline",
    ),
    "zero-bubble keeps its parameters": (
        LLAMA,
        "bf16 zero3 pipeline=2 micro=1 accumulate=4 schedule=zero-bubble",
        "8 x A100-80GB",
        "schedule: zero-bubble splits backward, and zero3 drops parameters between its halves: "
        "gradients come out wrong. Use 1f1b, or zero1.",
    ),
    "zero-bubble runs again twice": (
        LLAMA,
        "bf16 zero1 pipeline=2 micro=1 accumulate=4 schedule=zero-bubble recompute=selective",
        "8 x A100-80GB",
        "schedule: recompute=selective computes again once, and both halves of a split backward "
        "need it. Use 1f1b, or recompute=blocks without context.",
    ),
    "zero-bubble splits what it sees": (
        LLAMA,
        "bf16 zero1 pipeline=2 micro=1 accumulate=4 schedule=zero-bubble compile=on",
        "8 x A100-80GB",
        "schedule: zero-bubble splits backward, and compiled blocks run theirs in one piece. "
        "Use 1f1b, or compile=off.",
    ),
    "a folded pipeline's ends share nothing sliced": (
        find_facts("llama3.2-1b"),
        "bf16 zero2 pipeline=2 micro=1 accumulate=4 schedule=zero-bubble",
        "8 x A100-80GB",
        "schedule: zero-bubble has the head and the embedding, one matrix, in two stages of a "
        "rank, and zero2 slices each stage by itself. Use zero1, or 1f1b.",
    ),
    "the device multiplies in that type": (
        LLAMA,
        "fp8 zero3 micro=1",
        "8 x A100-80GB",
        "precision: fp8 needs matrix units this device (A100-80GB) does not have. "
        "bf16 and fp16 run on it.",
    ),
    "flash attention works in 16 bits": (
        LLAMA,
        "fp32 zero3 micro=1 attention=flash",
        "8 x A100-80GB",
        "attention: the flash kernel works in 16 bits, and fp32 does not",
    ),
    "flash attention needs a device": (
        LLAMA,
        "bf16 zero3 micro=1 attention=flash",
        "2 x Xeon-8480",
        "attention: the flash kernel does not run on Xeon-8480. Use attention=auto.",
    ),
    "compression needs whole copies": (
        LLAMA,
        "bf16 zero3 micro=1 compress=bf16",
        "8 x A100-80GB",
        "compress: bf16 shrinks gradients that whole copies exchange, and there are none",
    ),
    "compression needs whole matrices": (
        LLAMA,
        "bf16 ddp tensor=2 micro=1 compress=bf16",
        "8 x A100-80GB",
        "compress: bf16 works on whole modules, and replicate=4 tensor=2 cuts them",
    ),
    "powersgd needs a steady scale": (
        LLAMA,
        "fp16 ddp micro=1 compress=powersgd:4",
        "8 x A100-80GB",
        "compress: powersgd:4 adds to each step what earlier ones missed, and the loss scale of "
        "fp16 changes between them. Use bf16, or compress=fp16.",
    ),
    "adafactor needs whole matrices": (
        LLAMA,
        "bf16 zero1 micro=1 optimizer=adafactor",
        "8 x A100-80GB",
        "optimizer: adafactor averages rows and columns of whole matrices, and shard=8 slices them",
    ),
    "masters need an optimizer that keeps them": (
        LLAMA,
        "bf16-master micro=1 optimizer=sgd",
        "1 x H100-80GB",
        "optimizer: sgd keeps no masters, and bf16-master needs them. "
        "Use adamw, or precision=bf16.",
    ),
    "compact state needs masters": (
        LLAMA,
        "bf16 micro=1 state=14",
        "1 x H100-80GB",
        "state: state=14 says how masters are kept, and bf16 keeps none. "
        "Use bf16-master, or leave state out.",
    ),
    "compact state is Adam's": (
        LLAMA,
        "bf16-master micro=1 state=14 optimizer='muon lr=0.02'",
        "1 x H100-80GB",
        "state: state=14 is a form of Adam's moments, and muon keeps a momentum. "
        "Leave state out, or use adamw.",
    ),
    "backward updates one by one": (
        LLAMA,
        "bf16-master update=backward micro=1 batch=1 optimizer='adamw clip=1'",
        "1 x H100-80GB",
        "update: update=backward frees each gradient, and clip=1.0 needs all gradients' norm. "
        "Use clip=none, or use update=step.",
    ),
    "float8 masters need one rank": (
        LLAMA,
        "fp8-master zero3 micro=1",
        "8 x H100-80GB",
        "precision: fp8-master runs on one rank, and shard=8 has 8. "
        "Use bf16-master or fp8, whose parameters are sliced.",
    ),
    "graphs need a CUDA device": (
        LLAMA,
        "fp32 micro=1 graphs=on",
        "1 Xeon-8480",
        "graphs: cpu records none; CUDA devices do. Leave graphs out.",
    ),
    "graphs need one rank": (
        LLAMA,
        "bf16 ddp micro=1 graphs=on",
        "8 x H100-80GB",
        "graphs: replay kernels of one rank alone, and ranks of replicate=8 exchange gradients "
        "from hooks that no replay calls. Leave them out.",
    ),
    "exact ranks cut no layer": (
        LLAMA,
        "bf16 ddp tensor=2 exact=ranks",
        "8 x H100-80GB",
        "exact: tensor=2 cuts the sums inside a layer or a sequence. "
        "Use ddp, zero1, zero2 or zero3 alone.",
    ),
    "exact ranks shard over all": (
        LLAMA,
        "bf16 hsdp shard=4 exact=ranks",
        "8 x H100-80GB",
        "exact: replicate=2 shard=4 adds up gradients in two rounds, within shards and between "
        "their copies. Use zero3 shard=-1, or zero1.",
    ),
    "exact ranks run the same kernels": (
        LLAMA,
        "bf16 zero3 compile=on exact=ranks",
        "8 x H100-80GB",
        "compile: fuses whole modules on one rank and blocks on several, and rounds as it fuses; "
        "exact=ranks asks for the same bits. Leave it or exact=ranks out.",
    ),
    "exact ranks store float32": (
        LLAMA,
        "fp8 zero3 exact=ranks",
        "8 x H100-80GB",
        "precision: fp8 is not proved to give the same bits on any number of ranks. "
        "Use fp32, tf32, bf16 or fp16.",
    ),
    "exact ranks send whole gradients": (
        LLAMA,
        "bf16 ddp compress=bf16 exact=ranks",
        "8 x H100-80GB",
        "compress: bf16 rounds what travels between ranks, and one rank sends nothing. "
        "Leave it or exact=ranks out.",
    ),
    "rechecked steps repeat": (
        LLAMA,
        "bf16 ddp recheck=100",
        "8 x H100-80GB",
        "recheck: recheck=100 compares bits, and without exact a step may round otherwise. "
        "Add exact=runs or exact=ranks, or leave recheck out.",
    ),
    "prefetching needs slices": (
        LLAMA,
        "bf16 ddp prefetch=2",
        "8 x H100-80GB",
        "prefetch: prefetch=2 gathers blocks from slices, and ddp holds them whole. "
        "Use zero3 on several ranks, or leave prefetch out.",
    ),
    "a limit of whole blocks needs zero3": (
        LLAMA,
        "bf16 zero2 gathered=4",
        "8 x H100-80GB",
        "gathered: gathered=4 limits the blocks gathered from slices, and zero2 keeps every block "
        "until the batch's last backward. Use zero3 on several ranks, or leave gathered out.",
    ),
    "a limit of whole blocks holds what is ahead": (
        LLAMA,
        "bf16 zero3 gathered=1",
        "8 x H100-80GB",
        "gathered: 1 whole at a time leave no room for the one that computes and 1 gathered ahead "
        "by default. Use gathered=2 or prefetch=0.",
    ),
    "a limit of whole blocks needs turns": (
        LLAMA,
        "bf16 zero3 pipeline=2 gathered=4 micro=1 accumulate=8",
        "8 x H100-80GB",
        "gathered: pipeline=2 mixes forward and backward passes, so that more would be whole. "
        "Leave gathered out, or use shard instead of pipeline.",
    ),
    "graphs offload nothing": (
        LLAMA,
        "bf16 micro=1 graphs=on offload=activations",
        "1 x H100-80GB",
        "graphs: keep what they read where it was, and offload=activations moves it. "
        "Leave offload or graphs out.",
    ),
    "offloading needs a device": (
        LLAMA,
        "fp32 zero3 micro=1 offload=optimizer",
        "2 x Xeon-8480",
        "offload: optimizer already in host memory on Xeon-8480",
    ),
    "parameters leave in slices": (
        LLAMA,
        "bf16 zero1 micro=1 offload=parameters",
        "8 x A100-80GB",
        "offload: parameters can wait on the host only where each block gathers them before use",
    ),
    "the ceiling is below the device": (
        LLAMA,
        "bf16 zero3 micro=1 memory=90GiB",
        "8 x A100-80GB",
        "memory: a ceiling of 90 GiB on a device that has 80",
    ),
}


@pytest.mark.parametrize(
    ("plan", "cluster", "who"),
    [
        ("bf16 zero1 prefetch=0", "8 x H100-80GB", "zero1 holds them whole"),
        ("bf16 prefetch=1", "1 x H100-80GB", "each rank holds them whole"),
        ("bf16 zero3 prefetch=3", "1 x H100-80GB", "zero3 on one rank holds them whole"),
        ("bf16 tensor=8 gathered=3", "8 x H100-80GB", "each rank holds them whole"),
    ],
)
def test_where_nothing_is_gathered_there_is_nothing_to_count(plan, cluster, who) -> None:
    (found,) = plan_problems(LLAMA, Plan.parse(f"{plan} micro=1"), Cluster.parse(cluster))
    assert who in str(found)


@pytest.mark.parametrize(
    "words", ["prefetch=0", "prefetch=3", "gathered=2", "prefetch=0 gathered=1", "gathered=99"]
)
def test_words_about_gathering_are_legal_where_ranks_hold_slices(words) -> None:
    assert plan_problems(LLAMA, Plan.parse(f"bf16 zero3 {words} micro=1"), NODE) == []


def test_every_rule_has_a_case() -> None:
    assert {rule.name for rule in RULES} == set(BROKEN)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named_with_its_way_out(name: str) -> None:
    facts, text, cluster, message = BROKEN[name]
    found = plan_problems(facts, Plan.parse(text), Cluster.parse(cluster))
    assert any(str(problem).startswith(message) for problem in found), [str(p) for p in found]


@pytest.mark.parametrize("name", BROKEN)
def test_no_rule_complains_of_a_good_plan(name: str) -> None:
    rule = next(rule for rule in RULES if rule.name == name)
    assert rule.name and plan_problems(LLAMA, Plan.parse("bf16 zero3 micro=2 batch=64"), NODE) == []


def test_stages_of_a_model_without_blocks_are_not_forecast() -> None:
    bare = replace(RESNET, parts=(RESNET.parts[0], RESNET.parts[-1]))
    plan = Plan.parse("fp32 pipeline=2 micro=1 accumulate=8")
    problems = [str(one) for one in plan_problems(bare, plan, Cluster.parse("2 x A100-80GB"))]
    assert problems == [
        "layout.pipeline: resnet50 has no list of blocks, and only a run sees between which parts "
        "it can be cut. Use 1 to forecast it; climb takes the plan."
    ]


def test_a_legal_plan_comes_back_settled() -> None:
    plan = check_plan(LLAMA, Plan.parse("bf16 zero3 micro=2 batch=64"), NODE)
    assert plan.layout.shard == 8 and plan.batch.micro_batches == 4


def test_all_problems_come_at_once() -> None:
    text = "fp8 zero3 shard=2 tensor=3 pipeline=40 micro=1 compress=bf16"
    with pytest.raises(PlanErrors) as raised:
        check_plan(LLAMA, Plan.parse(text), Cluster.parse("8 x A100-80GB"))
    fields = {problem.field for problem in raised.value.problems}
    assert {"layout", "layout.tensor", "layout.pipeline", "precision", "compress"} <= fields


def test_a_batch_that_does_not_divide_is_reported_once() -> None:
    found = plan_problems(LLAMA, Plan.parse("bf16 zero3 micro=3 batch=64"), NODE)
    assert [str(problem) for problem in found] == [
        "batch.sequences: 64 does not divide by 24 "
        "(micro-batches of 3 x 8 data ranks). Nearest that do: 48 or 72."
    ]


def test_a_problem_of_the_plan_alone_is_reported_once() -> None:
    found = plan_problems(LLAMA, Plan(layout=replace(Plan().layout, shard=8)), NODE)
    assert len(found) == 1 and isinstance(found[0], PlanError)
    assert "without a word for what is sliced" in str(found[0])


def test_checking_takes_milliseconds() -> None:
    plan = Plan.parse("bf16 zero3 micro=2 batch=64")
    start = thread_time()  # what others do meanwhile does not count
    for _ in range(20):
        plan_problems(LLAMA, plan, NODE)
    assert (thread_time() - start) / 20 < 0.01


def test_a_vocabulary_may_be_cut_unevenly() -> None:
    facts = find_facts("gpt:layers=2,hidden=64,heads=4,vocab=50257", 64)
    assert not plan_problems(facts, Plan.parse("bf16 tensor=2 micro=1"), two_devices())


def test_what_has_no_sequence_needs_none_that_divides() -> None:
    facts = replace(find_facts("gpt2"), tokens=1)
    assert not plan_problems(facts, Plan.parse("bf16 tensor=2 micro=1"), two_devices())


def two_devices() -> Cluster:
    return Cluster.parse("2 x A100-80GB")


def test_a_model_without_experts_is_refused_by_name():
    problems = plan_problems(LLAMA, Plan.parse("bf16 experts=8 micro=1 batch=8"), NODE)
    assert [str(one) for one in problems] == [
        "layout.experts: llama3-8b has no mixture whose experts 8 ranks could hold. Use 1."
    ]
