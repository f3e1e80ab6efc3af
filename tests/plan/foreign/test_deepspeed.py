"""DeepSpeed's keys as words of a plan, and what of them is left."""

import json
from pathlib import Path

import pytest

from stepladder.errors import PlanError
from stepladder.plan.foreign.deepspeed import read_deepspeed

CONFIGS = Path(__file__).parent / "configs"
HOMES = "zero_optimization.offload"
NOT_HERE = {  # what of these files has no counterpart
    "zero2_auto": ["scheduler.params.warmup_type"],
    "zero3_offload_all": ["scheduler.params.warmup_type"],
    "infinity": [f"{HOMES}_optimizer.device", f"{HOMES}_param.device"],
}


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
            "infinity",
            "bf16 zero3 shard=-1 micro=4 accumulate=1 "
            "'optimizer=adamw lr=2e-05 betas=0.9,0.999 clip=1.0'",
            "",
        ),
        (
            "zero2_offload",
            "bf16 zero2 shard=-1 micro=1 accumulate=2 offload=optimizer "
            "'optimizer=adamw lr=3e-05 wd=3e-07 betas=0.8,0.999'",
            "constant warmup=500",
        ),
        (
            "zero3_fp16",
            "fp16 zero3 shard=-1 batch=8 recompute=blocks "
            "'optimizer=adamw lr=0.001 wd=0.01 betas=0.9,0.999'",
            "",
        ),
        (
            "zero3_offload_all",
            "bf16 zero3 shard=-1 micro=2 offload=parameters "
            "'optimizer=adamw lr=0.0002 wd=0.1 clip=1.0'",
            "cosine warmup=100 steps=1000 floor=0.1",
        ),
        (
            "tensor",
            "fp32 replicate=-1 tensor=2 batch=4 'optimizer=adamw lr=0.001 betas=0.9,0.999'",
            "",
        ),
    ],
)
def test_a_file_becomes_a_plan(name, plan, rate):
    carried = read(name)
    assert str(carried.plan) == plan
    assert carried.rate == rate
    missing = [one.key for one in carried.unmapped if one.why == "unsupported"]
    assert missing == NOT_HERE.get(name, [])


def test_what_a_file_leaves_out_is_deepspeeds_default():
    told = read_deepspeed({"optimizer": {"type": "AdamW"}}).plan.optimizer
    assert (told.lr, told.betas, told.wd) == (1e-3, (0.9, 0.999), 0.0)
    of_torch = {"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}
    assert read_deepspeed(of_torch).plan.optimizer.wd == 0.01
    rate = {"type": "WarmupLR", "params": {"warmup_type": "linear", "warmup_max_lr": 0.01}}
    carried = read_deepspeed({"optimizer": {"type": "Adam"}, "scheduler": rate})
    assert (carried.rate, carried.plan.optimizer.lr) == ("constant warmup=1000", 0.01)


def test_a_schedule_without_an_end_is_told_as_open():
    rate = {"type": "WarmupDecayLR", "params": {"warmup_type": "linear", "warmup_num_steps": 10}}
    carried = read_deepspeed({"scheduler": rate})
    words = "where it ends is not in the file; write rate 'linear warmup=10 steps=N'"
    assert [str(one) for one in carried.unmapped] == [f"scheduler.type (open): {words}"]


def test_what_deepspeed_would_not_move_stays_where_it_is():
    homes = {"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
    for stage, moved in ((0, ()), (2, ("optimizer",)), (3, ("parameters",))):
        carried = read_deepspeed({"zero_optimization": {"stage": stage, **homes}})
        assert carried.plan.offload == moved


def test_a_section_that_is_switched_off_does_not_count():
    off = {"amp": {"enabled": False}, "eigenvalue": {"enabled": False}, "tensorboard": {}}
    carried = read_deepspeed(off | {"fp16": {"enabled": False, "loss_scale": 128}})
    assert carried.complete
    assert {one.key: one.words for one in carried.unmapped} == {
        "amp": "switched off in the file",
        "eigenvalue": "switched off in the file",
    }


def test_what_its_trainer_would_fill_in_is_told_as_open():
    left = {one.key: one.why for one in read("zero2_auto").unmapped}
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
        ({"communication_data_type": "int8"}, "communication_data_type"),
        ({"compile": {"deepcompile": True, "debug_log": True}}, "compile.debug_log"),
        (
            {"optimizer": {"type": "AdamW", "params": {"amsgrad": True}}},
            "optimizer.params.amsgrad",
        ),
        (
            {"optimizer": {"type": "AdamW", "params": {"bias_correction": False}}},
            "optimizer.params.bias_correction",
        ),
        ({"optimizer": {"type": "SGD", "params": {"eps": 1e-8}}}, "optimizer.params.eps"),
        (
            {"zero_optimization": {"stage": 3, "mics_shard_size": 8}},
            "zero_optimization.mics_shard_size",
        ),
        ({"scheduler": {"type": "OneCycle", "params": {}}}, "scheduler.type"),
        ({"scheduler": {"type": "WarmupLR"}}, "scheduler.params.warmup_type"),
        (
            {
                "scheduler": {
                    "type": "WarmupLR",
                    "params": {"warmup_type": "linear", "warmup_min_lr": 1e-5},
                }
            },
            "scheduler.params.warmup_min_lr",
        ),
        (
            {"activation_checkpointing": {"cpu_checkpointing": True}},
            "activation_checkpointing.cpu_checkpointing",
        ),
    ],
)
def test_what_is_not_here_is_named_and_the_plan_is_not_whole(config, key):
    carried = read_deepspeed(config)
    assert [one.key for one in carried.unmapped if one.why == "unsupported"] == [key]
    assert not carried.complete


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
            {"train_batch_size": 6.5, "pipeline": {"stages": 1.5}, "fp16": 1},
            "fp16: 1 is not a table. Write one.\n"
            "train_batch_size: 6.5 is not a whole number of 1 or more. Write one.\n"
            "pipeline.stages: 1.5 is not a whole number of 1 or more. Write one.",
        ),
        ({"scheduler": {"type": ["x"]}}, "scheduler.type: ['x'] is not a word. Write one."),
        (
            {"train_batch_size": 10**5000},
            "train_batch_size: a value too long to write is not a whole number of 1 or more. "
            "Write one.",
        ),
        (
            {"fp16": {"enabled": True}, "bf16": {"enabled": True}},
            "fp16: fp16 and bf16 are both asked for. Leave one of them.",
        ),
        (
            {"torch_autocast": {"enabled": True, "dtype": "int8"}},
            "torch_autocast.dtype: 'int8' is not a type. Write bfloat16 or float16.",
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "gpu"}}},
            "zero_optimization.offload_param.device: 'gpu' is not a place. "
            "Write none, cpu or nvme.",
        ),
        (
            {
                "scheduler": {
                    "type": "WarmupCosineLR",
                    "params": {"total_num_steps": 2000, "cos_min_ratio": 5},
                }
            },
            "rate.floor: '5' is not a share from 0 to 1. Write one.",
        ),
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
