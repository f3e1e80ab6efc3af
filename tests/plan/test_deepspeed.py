"""DeepSpeed's keys as words of a plan, and what of them is left."""

import json
from pathlib import Path

import pytest

from stepladder.errors import PlanError
from stepladder.plan import read_deepspeed

CONFIGS = Path(__file__).parent / "configs"


def read(name):
    return read_deepspeed(json.loads((CONFIGS / f"{name}.json").read_text()))


@pytest.mark.parametrize(
    ("name", "plan", "rate"),
    [
        (
            "zero1_sgd",
            "fp32 zero1 shard=-1 batch=8 micro=2 "
            "'optimizer=sgd lr=0.01 wd=0.0005 momentum=0.9 clip=0.5'",
            "",
        ),
        ("zero2_auto", "fp32 zero2 shard=-1", ""),
        (
            "zero2_offload",
            "bf16 zero2 shard=-1 micro=1 accumulate=2 offload=optimizer "
            "'optimizer=adamw lr=3e-05 wd=3e-07 betas=0.8,0.999'",
            "constant warmup=500",
        ),
        (
            "zero3_fp16",
            "fp16 zero3 shard=-1 batch=8 recompute=blocks 'optimizer=adamw lr=0.001 wd=0.01'",
            "",
        ),
        (
            "zero3_offload_all",
            "bf16 zero3 shard=-1 micro=2 offload=parameters "
            "'optimizer=adamw lr=0.0002 wd=0.1 clip=1.0'",
            "cosine warmup=100 steps=1000 floor=0.1",
        ),
        ("tensor", "fp32 replicate=-1 tensor=2 batch=4 'optimizer=adamw lr=0.001'", ""),
    ],
)
def test_a_file_becomes_a_plan(name, plan, rate):
    carried = read(name)
    assert str(carried.plan) == plan
    assert carried.rate == rate
    assert carried.whole


def test_what_its_trainer_would_fill_in_is_told_as_open():
    left = {one.key: one.why for one in read("zero2_auto").left}
    assert left["optimizer.params.lr"] == left["train_batch_size"] == "open"
    assert left["scheduler.params.total_num_steps"] == "open"


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"zzz": 1}, "zzz"),
        ({"zero_optimization": {"stage": 3, "zzz": 1}}, "zero_optimization.zzz"),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
            "zero_optimization.offload_param.device",
        ),
        (
            {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}},
            "zero_optimization.zero_hpz_partition_size",
        ),
        (
            {"zero_optimization": {"stage": 3, "zero_quantized_weights": True}},
            "zero_optimization.zero_quantized_weights",
        ),
        ({"optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3}}}, "optimizer.type"),
        (
            {"optimizer": {"type": "Adam", "params": {"freeze_step": 3}}},
            "optimizer.params.freeze_step",
        ),
        ({"fp16": {"enabled": True, "loss_scale": 128}}, "fp16.loss_scale"),
        ({"amp": {"enabled": True}}, "amp"),
        ({"scheduler": {"type": "OneCycle", "params": {}}}, "scheduler.type"),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "log"}}},
            "scheduler.params.warmup_type",
        ),
        (
            {"activation_checkpointing": {"cpu_checkpointing": True}},
            "activation_checkpointing.cpu_checkpointing",
        ),
    ],
)
def test_what_is_not_here_is_named_and_the_plan_is_not_whole(config, key):
    carried = read_deepspeed(config)
    assert [one.key for one in carried.left if one.why == "unsupported"] == [key]
    assert not carried.whole


def test_its_adam_decays_as_adamw_unless_told_not_to():
    adam = {"type": "Adam", "params": {"lr": 1e-3}}
    assert read_deepspeed({"optimizer": adam}).plan.optimizer.name == "adamw"
    adam["params"]["adam_w_mode"] = False
    assert read_deepspeed({"optimizer": adam}).plan.optimizer.name == "adam"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ([], "deepspeed: holds a list, not a table of keys. Give its configuration file."),
        ({"bf16": 3}, "bf16: 3 is not a table. Write one."),
        ({"bf16": {"enabled": 3}}, "bf16.enabled: 3 is neither true nor false. Write one."),
        ({"train_batch_size": "x"}, "train_batch_size: 'x' is not a number. Write one."),
        (
            {"zero_optimization": {"stage": 4}},
            "zero_optimization.stage: 4 is not a stage of ZeRO. Use 0, 1, 2 or 3.",
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"betas": 0.9}}},
            "optimizer.params.betas: 0.9 is not two numbers. Write [0.9, 0.95].",
        ),
    ],
)
def test_a_broken_value_is_named(config, problem):
    with pytest.raises(PlanError) as raised:
        read_deepspeed(config)
    assert str(raised.value) == problem
