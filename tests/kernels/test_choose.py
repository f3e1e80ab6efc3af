"""Faster kernels change only what wins on the device at hand, and every choice says why."""

import pytest
import torch
from torch import nn

from stepladder.kernels import Chosen, choose
from stepladder.kernels.choose import compile_options
from stepladder.loss import make_loss
from stepladder.model import build, find_anatomy
from stepladder.plan import Plan, SettledPlan
from stepladder.train import climb
from tests.train.toys import gpt

GPT = "gpt:layers=1,hidden=8,heads=1,vocab=32768,sequence=4"


def chosen_for(module, words="", *, device="cpu"):
    anatomy, loss = find_anatomy(module), make_loss("cross_entropy", module)
    blocks = [block for _, block in anatomy.blocks_of(module)]
    settled = SettledPlan(Plan.parse(words), device)
    return choose(module, anatomy, blocks, loss, settled)


def test_nothing_changes_where_nothing_is_asked_for():
    found = chosen_for(build("resnet-tiny"))

    def keep(x):
        return x

    assert found.reading(keep) is keep
    assert found.around(keep) is keep
    assert found.loss is found.unfused
    assert found.notes == [] and all(not choice.used for choice in found.choices)


def test_images_are_read_as_they_are_stored():
    found = Chosen(make_loss("cross_entropy", nn.Linear(1, 1)), channels_last=True)
    image = torch.randn(1, 3, 2, 2)
    assert found.reading(lambda x: x)(image).stride() == (12, 1, 6, 3)


@pytest.mark.parametrize(
    ("words", "fused"),
    [
        ("kernels=on", 1),
        ("kernels=head", 1),
        ("kernels=layout,matmuls", 0),
        ("kernels=on replicate=2", 1),
        ("kernels=on zero1 shard=2", 1),
        ("kernels=on zero2 shard=2", 1),
        ("kernels=on context=2", 1),
        ("", 0),
    ],
)
def test_the_head_is_fused_where_it_is_asked_for_in_every_layout(words, fused):
    found = chosen_for(build(GPT), words)
    assert (found.head is not None) == fused


@pytest.mark.parametrize(
    ("hidden", "asked", "float8"), [(1024, "fp8", 1), (256, "fp8", 0), (1024, "", 0)]
)
def test_the_head_multiplies_in_fp8_where_the_plan_does_and_it_pays(hidden, asked, float8):
    module = build(GPT.replace("hidden=8", f"hidden={hidden}"), device="meta")
    found = chosen_for(module, f"{asked} kernels=on")
    assert found.head.float8 == float8


@pytest.mark.parametrize(
    ("device", "kernels", "folded"), [("cuda", "on", 1), ("cuda", "off", 0), ("cpu", "on", 0)]
)
def test_a_first_convolution_is_folded_on_a_gpu_where_it_is_asked_for(device, kernels, folded):
    module = build("resnet18", device="meta")
    found = chosen_for(module, f"kernels={kernels}", device=device)
    note = "kernels: folded first convolution on: stem.0 then fills"
    assert any(line.startswith(note) for line in found.notes) == folded
    changed = [name for name, part in module.named_modules() if "_conv_forward" in vars(part)]
    assert changed == ["stem.0"] * folded


def test_every_choice_that_has_a_place_is_a_line_with_its_reason():
    found = chosen_for(build(GPT), "bf16-master kernels=on compile=on")
    assert found.notes == [
        "kernels: fused output layer and cross-entropy on: "
        "32,768 classes, whose logits then never exist whole",
        "kernels: torch.compile of the whole module on: it has no list of blocks",
        "kernels: matmul autotuning and epilogues off: cuBLASLt does not run on cpu",
        "kernels: fused AdamW for fp32 masters off: Triton does not run on cpu",
    ]


def test_a_run_reports_the_choices_of_its_kernels():
    run = climb(gpt(), loss="cross_entropy", plan="fp32 kernels=on compile=on")
    assert [event.partition(":")[0] for event in run.events] == ["kernels"] * 3
    assert "alike blocks" in run.events[1]
    assert climb(gpt(), loss="cross_entropy", plan="fp32").events == []


@pytest.mark.parametrize(
    ("words", "compiled"),
    [
        ("bf16 compile=whole", True),
        ("bf16 compile=on", False),
        ("bf16 compile=whole kernels=head", False),
        ("bf16 compile=whole graphs=on", True),
    ],
)
def test_an_unfused_loss_is_compiled_with_the_whole_module(words, compiled):
    found = chosen_for(build(GPT), words, device="cuda")
    assert (found.loss.with_module is not None) == compiled


def test_blocks_that_zero3_keeps_out_of_the_compiler_are_told():
    said = "blocks of torch's own classes stay uncompiled where they are gathered"
    stack = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4)) for _ in range(2)))
    assert said in str(chosen_for(stack, "fp32 zero3 shard=2 compile=on").choices)
    assert said not in str(chosen_for(stack, "fp32 ddp replicate=2 compile=on").choices)


def test_what_is_compiled_for_an_exact_run_is_not_chosen_by_the_clock():
    plain = compile_options(SettledPlan(Plan.parse("fp32 compile=on"), "cpu")) or {}
    exact = SettledPlan(Plan.parse("fp32 compile=on exact=runs"), "cpu")
    assert compile_options(exact) == {**plain, "deterministic": True} != plain
