"""Accelerate's keys as words of a plan, and what of them is left."""

from pathlib import Path

import pytest

from stepladder.errors import PlanError
from stepladder.plan.foreign.accelerate import read_accelerate

yaml = pytest.importorskip("yaml", reason="Accelerate's files are YAML")
CONFIGS = Path(__file__).parent / "configs"


def read(name):
    return read_accelerate(yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()))


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("fsdp1_full", "bf16 zero3 shard=-1"),
        ("fsdp2", "bf16 zero3 shard=2 tensor=2 recompute=blocks"),
        ("fsdp_hybrid", "fp32 zero3 replicate=2 shard=2 accumulate=2"),
        (
            "accelerate_deepspeed",
            "bf16 zero2 shard=-1 accumulate=2 offload=optimizer 'optimizer=adamw clip=1.0'",
        ),
        ("multi_gpu", "fp16 replicate=-1"),
        (
            "megatron",
            "bf16 zero1 pipeline=2 shard=-1 tensor=2 accumulate=4 recompute=selective "
            "'optimizer=adamw clip=1.0'",
        ),
    ],
)
def test_a_file_becomes_a_plan(name, plan):
    carried = read(name)
    assert str(carried.plan) == plan
    assert carried.complete


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (1, "zero3"),
        ("FULL_SHARD", "zero3"),
        ("SHARD_GRAD_OP", "zero2"),
        (2, "zero2"),
        ("NO_SHARD", "replicate=-1"),
        (False, "zero2"),
    ],
)
def test_every_strategy_has_a_word(strategy, words):
    table = {"fsdp_sharding_strategy": strategy}
    carried = read_accelerate({"distributed_type": "FSDP", "fsdp_config": table})
    assert words in str(carried.plan)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"zzz": 1}, "zzz"),
        ({"distributed_type": "TP_XLA"}, "distributed_type"),
        ({"mixed_precision": "int8"}, "mixed_precision"),
        ({"mixed_precision": "fp8", "fp8_config": {"backend": "TE"}}, "fp8_config"),
        (
            {"distributed_type": "FSDP", "fsdp_config": {"fsdp_reshard_after_forward": 8}},
            "fsdp_config.fsdp_reshard_after_forward",
        ),
        (
            {
                "distributed_type": "DEEPSPEED",
                "deepspeed_config": {"zero_stage": 3, "offload_param_device": "nvme"},
            },
            "deepspeed_config.offload_param_device",
        ),
        ({"dynamo_config": {"dynamo_backend": "TENSORRT"}}, "dynamo_config.dynamo_backend"),
        (
            {"distributed_type": "FSDP", "fsdp_config": {"fsdp_ignored_modules": "x"}},
            "fsdp_config.fsdp_ignored_modules",
        ),
        (
            {"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": "ODD"}},
            "fsdp_config.fsdp_sharding_strategy",
        ),
        (
            {"distributed_type": "MEGATRON_LM", "megatron_lm_config": {"megatron_lm_zzz": 1}},
            "megatron_lm_config.megatron_lm_zzz",
        ),
    ],
)
def test_what_is_not_here_is_named_and_the_plan_is_not_whole(config, key):
    carried = read_accelerate(config)
    assert [one.key for one in carried.unmapped if one.why == "unsupported"] == [key]
    assert not carried.complete


def test_a_section_of_another_kind_is_told_as_not_needed():
    carried = read_accelerate({"distributed_type": "NO", "fsdp_config": {"fsdp_version": 2}})
    assert [str(one) for one in carried.unmapped] == [
        "fsdp_config (not needed): distributed_type is NO"
    ]


def test_a_section_that_says_nothing_is_accelerates_default():
    assert read_accelerate({"distributed_type": "DEEPSPEED"}).plan.zero == 2
    assert read_accelerate({"distributed_type": "FSDP"}).plan.zero == 3


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"distributed_type": ["a"]}, "distributed_type: ['a'] is not a word. Write one."),
        ({"mixed_precision": True}, "mixed_precision: True is not a word. Write one."),
        (
            {"num_machines": 0, "gradient_accumulation_steps": 2.5},
            "gradient_accumulation_steps: 2.5 is not a whole number of 1 or more. Write one.\n"
            "num_machines: 0 is not a whole number of 1 or more. Write one.",
        ),
        (
            {
                "distributed_type": "FSDP",
                "num_machines": 3,
                "num_processes": 16,
                "fsdp_config": {"fsdp_sharding_strategy": "HYBRID_SHARD"},
            },
            "fsdp_config.fsdp_sharding_strategy: 16 ranks do not divide among 3 machines. "
            "Change num_processes.",
        ),
        (
            {
                "distributed_type": "DEEPSPEED",
                "deepspeed_config": {"deepspeed_config_file": "ds.json", "zero_stage": 2},
            },
            "deepspeed_config.zero_stage: stands beside deepspeed_config_file (ds.json). "
            "Accelerate takes one of them.",
        ),
    ],
)
def test_a_broken_value_is_named(config, problem):
    with pytest.raises(PlanError) as raised:
        read_accelerate(config)
    assert str(raised.value) == problem


def test_a_list_is_not_a_configuration():
    with pytest.raises(PlanError, match="accelerate: holds a list, not a table of keys"):
        read_accelerate([])
