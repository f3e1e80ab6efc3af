"""A DeepSpeed configuration as a plan: its ZeRO stage, batch, precision, optimizer and offload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepladder.errors import PlanError

from .conversion import (
    ConvertedPlan,
    Section,
    UnmappedKey,
    as_table,
    is_on_host,
    make_plan,
    zero_word,
)
from .deepspeed_optimizer import optimizer, schedule

TUNING = "a size of buffers or an order of copies; torch chooses its own here"
COMMUNICATION = {"fp16": ["compress=fp16"], "bf16": ["compress=bf16"], "bfp16": ["compress=bf16"]}
COMMUNICATION |= {"fp32": [], "": []}
DTYPES = {"bfloat16": "bf16", "torch.bfloat16": "bf16", "float16": "fp16", "torch.float16": "fp16"}


def read_deepspeed(config: Any) -> ConvertedPlan:
    """A plan from the table of a DeepSpeed JSON file."""
    unmapped: list[UnmappedKey] = []
    wrong: list[PlanError] = []
    top = Section("", as_table(config, "deepspeed"), unmapped, wrong)
    words = [
        *precision(top),
        *zero(top.section("zero_optimization")),
        *batch(top),
        *axes(top),
        *activations(top),
        *communication(top),
        *compilation(top.section("compile")),
    ]
    rate, peak = schedule(top.section("scheduler"))
    words += optimizer(top, peak)
    skip_top_level(top)
    return ConvertedPlan(make_plan(words, wrong), rate, tuple(unmapped))


def skip_top_level(top: Section) -> None:
    """Report the top-level keys that no plan holds."""
    top.skip_all(
        "elsewhere", "what is logged, and where: the recipe's [run] section",
        "steps_per_print", "wall_clock_breakdown", "dump_state", "tensorboard", "wandb",
        "csv_monitor", "comet", "memory_breakdown",
    )  # fmt: skip
    top.skip_all("elsewhere", "measured by 'stepladder profile'", "flops_profiler", "comms_logger")
    top.skip_all(
        "not needed", "any optimizer here works with any stage",
        "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
    )  # fmt: skip
    top.skip_all("elsewhere", "ranks may come and go by --ranks MIN:MAX", "elasticity")
    top.skip_all("elsewhere", "'stepladder plan' searches without trials", "autotuning")
    top.skip_all(
        "not needed", "gradients are averaged over valid targets",
        "prescale_gradients", "gradient_predivide_factor",
    )  # fmt: skip
    top.skip_all("not needed", "how disks are read and written", "aio")
    top.skip_all("elsewhere", "how checkpoints are written: always whole, by all", "checkpoint")
    top.skip_all("not needed", "workers read ahead by themselves", "dataloader_drop_last")
    top.skip_unread()


def communication(top: Section) -> list[str]:
    kind = top.word("communication_data_type")
    if kind not in COMMUNICATION:
        problem = f"gradients travel as {kind}; compress=bf16 or fp16 are here"
        top.skip("communication_data_type", "unsupported", problem)
    return COMMUNICATION.get(kind, [])


def compilation(section: Section) -> Iterator[str]:
    if section.switch("deepcompile") or section.switch("enabled"):
        yield "compile=on"
    section.skip_unread()


def precision(top: Section) -> Iterator[str]:
    fp16 = top.section("fp16")
    bf16 = top.section("bfloat16" if "bfloat16" in top.table else "bf16")  # the older name
    half, brain = fp16.switch("enabled"), bf16.switch("enabled")
    if fp16.number("loss_scale") and half:
        fp16.skip("loss_scale", "unsupported", "a fixed scale; ours is found as it goes")
    fp16.skip_all(
        "not needed", "the rule by which the scale moves; ours starts at 65,536 and doubles after "
        "2,000 good steps", "loss_scale_window", "initial_scale_power", "hysteresis",
        "consecutive_hysteresis", "min_loss_scale",
    )  # fmt: skip
    fp16.skip_all("not needed", "inputs are cast where a product needs it", "auto_cast")
    bf16.skip_all(
        "not needed", "gradients of several passes add up in fp32 here",
        "immediate_grad_update", "check_grad_overflow",
    )  # fmt: skip
    types = top.section("data_types")
    types.skip_all("not needed", "gradients add up in fp32 here", "grad_accum_dtype")
    autocast = top.section("torch_autocast")
    if autocast.switch("enabled"):
        kind = autocast.word("dtype", "bfloat16")
        if kind not in DTYPES:
            autocast.refuse("dtype", f"{kind!r} is not a type", "Write bfloat16 or float16.")
        half, brain = half or DTYPES.get(kind) == "fp16", brain or DTYPES.get(kind) == "bf16"
    autocast.skip_all("not needed", "torch's own lists", "lower_precision_safe_modules")
    top.skip_all("unsupported", "Apex; write fp16 or bf16 instead", "amp")
    for section in (fp16, bf16, types, autocast):
        section.skip_unread()
    if half and brain:
        top.refuse("fp16", "fp16 and bf16 are both asked for", "Leave one of them.")
    yield "fp16" if half else "bf16" if brain else "fp32"


def zero(section: Section) -> Iterator[str]:
    word = zero_word(section, "stage")
    yield word
    yield from offload(section, word)
    section.skip_all(
        "not needed", TUNING, "overlap_comm", "contiguous_gradients", "reduce_scatter",
        "reduce_bucket_size", "allgather_partitions", "allgather_bucket_size", "sub_group_size",
        "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
        "stage3_max_live_parameters", "stage3_max_reuse_distance", "round_robin_gradients",
        "stage3_model_persistence_threshold", "use_multi_rank_bucket_allreduce", "memory_efficient_"
        "linear", "ignore_unused_parameters", "legacy_stage1", "stage3_use_all_reduce_for_fetch_"
        "params", "load_from_fp32_weights", "elastic_checkpoint", "use_node_local_storage",
    )  # fmt: skip
    section.skip_all(
        "elsewhere", "'stepladder checkpoint convert' writes whole weights",
        "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save",
        "gather_16bit_weights_on_model_save",
    )  # fmt: skip
    if (size := section.number("zero_hpz_partition_size")) not in (None, 1):
        section.skip(
            "zero_hpz_partition_size", "unsupported", f"write hsdp shard={size} for copies between "
            "groups of ranks",
        )  # fmt: skip
    section.skip_all(
        "unsupported", "parameters or gradients travel in fewer bits than they have",
        "zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights",
    )  # fmt: skip
    if (size := section.number("mics_shard_size")) not in (None, -1):
        section.skip(
            "mics_shard_size", "unsupported", f"write hsdp shard={size} for copies between groups "
            "of ranks",
        )  # fmt: skip
    section.skip_all("not needed", TUNING, "mics_hierarchical_params_gather")
    section.skip_unread()


def offload(section: Section, word: str) -> Iterator[str]:
    """What lies in host memory: parameters with stage 3 alone, optimizer state with any stage."""
    homes = {
        "optimizer": section.section("offload_optimizer"),
        "parameters": section.section("offload_param"),
    }
    needs = {"optimizer": ("zero1", "zero2", "zero3"), "parameters": ("zero3",)}
    moved = []
    for what, home in homes.items():
        if is_on_host(home, "device"):
            if word in needs[what]:
                moved.append(what)
            else:
                home.skip("device", "not needed", "DeepSpeed does not move them at this stage")
        home.skip_all(
            "not needed", TUNING, "pin_memory", "buffer_count", "buffer_size", "max_in_cpu",
            "fast_init", "pipeline_read", "pipeline_write", "nvme_path",
        )  # fmt: skip
        if home.number("ratio") not in (None, 1, 1.0):
            home.skip("ratio", "unsupported", "part of the state; ours is moved whole")
        home.skip_unread()
    if section.switch("cpu_offload"):  # the word of older files
        moved.append("optimizer")
    if "parameters" in moved:  # fetched with their optimizer's state, which lies beside them
        moved = ["parameters"]
    if moved:
        yield f"offload={','.join(dict.fromkeys(moved))}"


def batch(top: Section) -> Iterator[str]:
    for key, word in (
        ("train_batch_size", "batch"),
        ("train_micro_batch_size_per_gpu", "micro"),
        ("gradient_accumulation_steps", "accumulate"),
    ):
        if (value := top.count(key)) is not None:
            yield f"{word}={value}"


def axes(top: Section) -> Iterator[str]:
    tensor = top.section("tensor_parallel")
    ways = tensor.count("autotp_size", 0) or tensor.count("tp_size", 0)  # 0 is none there
    if ways and ways > 1:
        yield f"tensor={ways}"
    tensor.skip_all("not needed", "cuts are found in the model", "tp_grain_size", "preset_model")
    tensor.skip_unread()
    if (ways := top.count("sequence_parallel_size")) and ways > 1:
        yield f"context={ways}"
    line = top.section("pipeline")
    stages = line.count("stages")
    if stages and stages > 1:
        yield f"pipeline={stages}"
    if every := line.count("activation_checkpoint_interval", 0):
        yield "recompute=blocks"
        if every > 1:
            words = f"blocks are recomputed one by one, not {every} at a time"
            line.skip("activation_checkpoint_interval", "not needed", words)
    line.skip_all(
        "not needed", "stages are weighed by what they cost", "partition", "seed_layers",
        "pipe_partitioned", "grad_partitioned",
    )  # fmt: skip
    line.skip_unread()


def activations(top: Section) -> Iterator[str]:
    section = top.section("activation_checkpointing")
    if section.table:  # DeepSpeed itself leaves it to the model's code which blocks those are
        yield "recompute=blocks"
        top.skip(
            "activation_checkpointing", "open", "taken for recompute=blocks; whether the model's "
            "code calls it is not in the file",
        )  # fmt: skip
    if section.switch("cpu_checkpointing"):
        section.skip(
            "cpu_checkpointing", "unsupported", "inputs of recomputed blocks stay on the device; "
            "offload=activations moves all activations instead",
        )  # fmt: skip
    section.skip_all(
        "not needed", "which blocks are recomputed is the plan's recompute=",
        "partition_activations", "contiguous_memory_optimization", "number_checkpoints",
        "synchronize_checkpoint_boundary", "profile",
    )  # fmt: skip
    section.skip_unread()
