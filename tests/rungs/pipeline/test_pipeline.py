"""A pipeline computes what one device computes, under every schedule and beside other rungs."""

from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from stepladder.errors import DataError, PlanError
from stepladder.train import climb
from tests.ranks import run
from tests.soak import soak_after
from tests.train.toys import llama, ragged

from .chains import ALL, BETWEEN, CHAINS, SHARING, gpt, tokens

SGD = "sgd lr=0.1"
SCHEDULES = ("gpipe", "1f1b", "interleaved:2", "zero-bubble")


def mine(batch, taken, micro):
    """This rank's rows: pass by pass, the stretch its data index names."""
    ways, index = taken.world.layout.data_ranks, taken.world.data_index

    def rows(tensor):
        return tensor[(torch.arange(len(tensor)) // micro) % ways == index]

    if isinstance(batch, dict):
        return {name: rows(tensor) for name, tensor in batch.items()}
    return tuple(rows(tensor) for tensor in batch)


def learn(name, plan, micro=2, optimizer=SGD, sizes=(8, 8)):
    """Losses, norms, the loss of an evaluation, and the parameters and buffers in the end."""
    make, batches, loss = ALL[name]
    sample = batches(1)[0]
    taken = climb(
        make(), loss=loss, optimizer=optimizer, plan=f"{plan} micro={micro}", device="cpu",
        sample=sample,
    )  # fmt: skip
    numbers = []
    for step, rows in enumerate(sizes):
        batch = mine(batches(step + 1, rows=rows)[-1], taken, micro)
        report = taken.step(batch, rows="rank")
        numbers += [report.loss, report.grad_norm]
    numbers.append(taken.evaluate([mine(sample, taken, micro)], rows="rank"))
    named = dict(taken.module.named_parameters(remove_duplicate=False))
    tensors = {**named, **dict(taken.module.named_buffers(remove_duplicate=False))}
    return numbers, {
        name: (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone()
        for name, t in tensors.items()
    }


def assert_same(name, plan, ranks, *, base="fp32", limit=1e-5, **how):
    """Every rank's numbers are one device's, and together they hold every parameter."""
    expected, whole = learn(name, base, **how)
    found = run(learn, ranks, name, plan, *how.values(), init=False)
    for numbers, parts in found:
        assert numbers == pytest.approx(expected, rel=limit)
        for part, value in parts.items():
            scale = whole[part].abs().max().clamp(min=1e-6)
            assert (value - whole[part]).abs().max() <= limit * scale, part
    held = [set(parts) for _, parts in found]
    assert set().union(*held) == set(whole)
    return held


@pytest.mark.parametrize("schedule", soak_after(reversed(SCHEDULES), gate=2))
def test_a_tied_gpt_learns_the_same_on_two_stages(schedule):
    first, second = assert_same("gpt", f"fp32 pipeline=2 schedule={schedule}", 2)
    assert not {name for name in first & second if name.startswith("blocks.")}


@pytest.mark.parametrize(
    "name", soak_after(["mlp", "resnet", "hf_llama", "odd", "layer_drop", "hf_gpt2"], gate=-1)
)
def test_any_chain_of_blocks_learns_the_same_on_two_stages(name):
    assert_same(name, "fp32 pipeline=2", 2)


@pytest.mark.parametrize("name", soak_after(["shuffled", *SHARING], gate=3))
def test_parts_that_several_stages_read_learn_from_all_of_them(name):
    assert_same(name, "fp32 pipeline=2", 2)


@pytest.mark.parametrize("schedule", soak_after(["zero-bubble", "interleaved:2"]))
def test_an_odd_chain_learns_the_same_in_turns(schedule):
    assert_same("odd", f"fp32 pipeline=2 schedule={schedule}", 2)


@pytest.mark.parametrize(
    "name", soak_after(sorted(BETWEEN, key=["translator", "residual"].count, reverse=True), gate=2)
)
def test_what_happens_between_blocks_is_learned_from_all_of_it(name):
    assert_same(name, "fp32 pipeline=2", 2)


@pytest.mark.parametrize(
    ("name", "words"),
    soak_after(
        [
            ("two_streams", "pipeline=2 schedule=zero-bubble"),
            ("unet", "pipeline=4 schedule=gpipe"),
            ("post_norm", "pipeline=2 schedule=interleaved:2"),
            ("in_place", "pipeline=2 schedule=zero-bubble"),
            ("choosing", "pipeline=2 schedule=zero-bubble"),
            ("residual", "pipeline=2 zero3 shard=2"),
            ("reminded", "pipeline=2 ddp replicate=2 schedule=interleaved:2"),
            ("reminding", "pipeline=2 ddp replicate=2 schedule=zero-bubble"),
            ("first_ones_bias", "pipeline=4"),
            ("encoder", "pipeline=2 recompute=blocks"),
        ]
    ),
)
def test_several_tensors_may_flow_under_every_schedule(name, words):
    ranks = 4 if "=2 ddp" in words or "shard" in words or "pipeline=4" in words else 2
    assert_same(name, f"fp32 {words}", ranks)


def test_ends_that_are_one_matrix_may_lie_four_ranks_apart():
    held = assert_same("gpt", "fp32 pipeline=4", 4)
    assert [len(names) for names in held] == [18, 16, 16, 19]


@pytest.mark.parametrize(
    ("name", "words"),
    soak_after(
        [
            ("llama", "zero1 shard=2 schedule=interleaved:2"),
            ("gpt", "zero3 shard=2"),
            ("gpt", "ddp replicate=2 schedule=zero-bubble"),
            ("gpt", "ddp replicate=2"),
            ("llama", "zero2 shard=2 schedule=zero-bubble"),
        ],
    ),
)
def test_stages_may_be_copied_and_sliced(name, words):
    assert_same(name, f"fp32 pipeline=2 {words}", 4)


@pytest.mark.parametrize("words", soak_after(["schedule=zero-bubble", ""]))
def test_blocks_of_a_stage_may_be_recomputed(words):
    assert_same("gpt", f"fp32 pipeline=2 recompute=blocks {words}", 2)


@pytest.mark.parametrize("precision", soak_after(["bf16", "fp16", "bf16-pure"]))
def test_activations_between_stages_have_the_precisions_type(precision):
    assert_same("llama", f"{precision} pipeline=2", 2, base=precision)


def test_adam_and_clipping_see_a_tied_matrix_once():
    how = {"micro": 2, "optimizer": "adamw lr=1e-3 clip=0.5"}
    assert_same("tied", "fp32 pipeline=2", 2, **how)


def test_batches_may_change_in_size_between_steps():
    how = {"micro": 2, "optimizer": SGD, "sizes": (8, 6, 5, 8)}
    assert_same("llama", "fp32 pipeline=2", 2, **how)


def frozen(words):
    """A model whose entry and first block are not trained."""
    model = gpt()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(("blocks.1", "blocks.3", "norm")))
    taken = climb(model, loss="cross_entropy", optimizer=SGD, plan=words, device="cpu")
    reports = [taken.step(batch) for batch in tokens(2)]
    return [(report.loss, report.grad_norm) for report in reports]


def test_what_is_frozen_passes_on_and_learns_nothing():
    expected = frozen("fp32 micro=2")
    for found in run(frozen, 2, "fp32 micro=2 pipeline=2", init=False):
        for pair, wanted in zip(found, expected):
            assert pair == pytest.approx(wanted, rel=1e-5)


def refused(name, words, rows=8):
    make, batches, loss = CHAINS[name]
    taken = climb(make(), loss=loss, plan=words, device="cpu", sample=batches(1)[0])
    taken.step(batches(1, rows=rows)[0])


@pytest.mark.parametrize(
    ("name", "words", "rows", "kind", "message"),
    [
        ("gpt", "fp32 pipeline=2 micro=8", 8, DataError,
         "batch.micro: 8 rows in micro-batches of 8 cannot fill 2 stages with 1f1b. Use micro=4."),
        ("gpt", "fp32 pipeline=2", 1, DataError,
         "batch.micro: 1 rows in micro-batches of 1 cannot fill 2 stages with 1f1b. "
         "Use 2 rows or more on a rank."),
        ("gpt", "fp32 pipeline=2 micro=1 schedule=interleaved:4", 8, PlanError,
         "layout.pipeline: 8 stages for 4 blocks leaves some stages empty. Use at most 1."),
        ("gpt", "fp32 pipeline=2 micro=1 accumulate=1", 1, PlanError,
         "batch.accumulate: 1 micro-batches cannot fill 2 stages with 1f1b"),
    ],
)  # fmt: skip
def test_what_a_schedule_cannot_do_is_one_line(name, words, rows, kind, message):
    with pytest.raises(kind) as raised:
        run(refused, 2, name, words, rows, init=False)
    assert str(raised.value).startswith(message)


def without_sample():
    make, _, loss = CHAINS["mlp"]
    climb(make(), loss=loss, plan="fp32 pipeline=2 micro=2", device="cpu")


def test_stages_of_a_model_that_reads_no_tokens_are_weighed_on_a_sample():
    with pytest.raises(
        PlanError, match="stages are weighed on one row, and nothing says what MLP reads"
    ):
        run(without_sample, 2, init=False)


def folded_and_sliced():
    words = "fp32 zero2 shard=2 pipeline=2 micro=2 schedule=zero-bubble"
    climb(gpt(), loss="cross_entropy", plan=words, device="cpu")


def test_a_tied_matrix_is_not_sliced_in_two_stages_of_a_rank():
    with pytest.raises(PlanError, match="one matrix, in two stages of a rank"):
        run(folded_and_sliced, 4, init=False)


def shared_and_sliced():
    make, batches, loss = SHARING["reminding"]
    words = "fp32 zero2 shard=2 pipeline=2 micro=2 schedule=interleaved:2"
    climb(make(), loss=loss, plan=words, device="cpu", sample=batches(1)[0])


def test_a_part_of_every_stage_is_not_sliced_in_two_stages_of_a_rank():
    with pytest.raises(PlanError) as raised:
        run(shared_and_sliced, 4, init=False)
    assert str(raised.value).startswith(
        "schedule: with interleaved:2 several stages of a rank use one part, and zero2 slices each "
        "stage by itself. Use zero1, or 1f1b."
    )


def flat_cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def uneven_batch(loss: Any) -> list[str]:
    from stepladder.data import Batch

    plan = "fp32 ddp replicate=2 pipeline=2 micro=1"
    taken = climb(llama(), loss=loss, plan=plan, device="cpu", timeout_seconds=100)
    tokens, targets = ragged(1)[0]
    found, index = [], taken.world.data_index
    fewer, few = slice(0, 6 - index), slice(0, 6 - 4 * index)
    uneven = Batch.of((tokens[fewer], targets[fewer]), position=0, size=11)
    for batch in (uneven, (tokens[few], targets[few])):
        try:
            taken.step(batch, rows="rank")
        except DataError as refused:
            found.append(str(refused))
    return found


@pytest.mark.parametrize("loss", soak_after([flat_cross_entropy, "cross_entropy"]))
def test_a_batch_that_does_not_divide_is_refused_by_every_rank(loss):
    for first, second in run(uneven_batch, 4, loss, init=False):
        assert first.startswith("batch: 11 rows do not divide by the 2 ranks that share them, and")
        assert second.startswith("batch: a rank has 6 of 8 rows, and every pipeline of the 2 needs")
