"""A DeepSpeed configuration as a plan: its ZeRO stage, batch, precision, optimizer and offload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .carried import Carried, Left, Section, as_table, data_word, make_plan

TUNING = "a size of buffers or an order of copies; torch chooses its own here"
OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "sgd": "sgd", "fusedadam": "adamw"}
SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
COMMUNICATION = {"fp16": "fp16", "bf16": "bf16", "bfp16": "bf16"}


def read_deepspeed(config: Any) -> Carried:
    """A plan from the table of a DeepSpeed JSON file."""
    left: list[Left] = []
    top = Section("", as_table(config, "deepspeed"), left)
    words = [
        *precision(top),
        *zero(top.section("zero_optimization")),
        *batch(top),
        *axes(top),
        *activations(top.section("activation_checkpointing")),
        *optimizer(top),
    ]
    if kind := COMMUNICATION.get(str(top.take("communication_data_type"))):
        words.append(f"compress={kind}")
    compiled = top.section("compile")
    if compiled.switch("deepcompile") or compiled.switch("enabled"):
        words.append("compile=on")
    rate = schedule(top.section("scheduler"))
    top.leave_all(
        "elsewhere", "what is logged, and where: the recipe's [run] section",
        "steps_per_print", "wall_clock_breakdown", "dump_state", "tensorboard", "wandb",
        "csv_monitor", "comet", "memory_breakdown",
    )  # fmt: skip
    top.leave_all("elsewhere", "measured by 'stepladder profile'", "flops_profiler", "comms_logger")
    top.leave_all(
        "not needed", "any optimizer here works with any stage",
        "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
    )  # fmt: skip
    top.leave_all("elsewhere", "ranks may come and go by --ranks MIN:MAX", "elasticity")
    top.leave_all("elsewhere", "'stepladder plan' searches without trials", "autotuning")
    top.leave_all("not needed", "gradients are averaged over valid targets", "prescale_gradients")
    top.leave_all("elsewhere", "how checkpoints are written: always whole, by all", "checkpoint")
    top.leave_all("not needed", "workers read ahead by themselves", "dataloader_drop_last")
    top.rest()
    return Carried(make_plan(words), rate, tuple(left))


def precision(top: Section) -> Iterator[str]:
    fp16, bf16 = top.section("fp16"), top.section("bf16")
    half, brain = fp16.switch("enabled"), bf16.switch("enabled")
    if fp16.number("loss_scale"):
        fp16.leave("loss_scale", "unsupported", "a fixed scale; ours is found as it goes")
    fp16.leave_all(
        "not needed", "the rule by which the scale moves; ours starts at 65,536 and doubles after "
        "2,000 good steps", "loss_scale_window", "initial_scale_power", "hysteresis",
        "consecutive_hysteresis", "min_loss_scale", "auto_cast",
    )  # fmt: skip
    bf16.leave_all(
        "not needed", "gradients of several passes add up in fp32 here",
        "immediate_grad_update", "check_grad_overflow",
    )  # fmt: skip
    types = top.section("data_types")
    types.leave_all("not needed", "gradients add up in fp32 here", "grad_accum_dtype")
    autocast = top.section("torch_autocast")
    if autocast.switch("enabled"):
        kind = str(autocast.take("dtype", "bfloat16"))
        half, brain = half or "bf" not in kind, brain or "bf" in kind
    autocast.leave_all("not needed", "torch's own lists", "lower_precision_safe_modules")
    top.leave_all("unsupported", "Apex; write fp16 or bf16 instead", "amp")
    for section in (fp16, bf16, types, autocast):
        section.rest()
    yield "fp16" if half else "bf16" if brain else "fp32"


def zero(section: Section) -> Iterator[str]:
    yield data_word(section, "stage")
    yield from offload(section)
    section.leave_all(
        "not needed", TUNING, "overlap_comm", "contiguous_gradients", "reduce_scatter",
        "reduce_bucket_size", "allgather_partitions", "allgather_bucket_size", "sub_group_size",
        "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
        "stage3_max_live_parameters", "stage3_max_reuse_distance", "round_robin_gradients",
        "stage3_model_persistence_threshold", "use_multi_rank_bucket_allreduce", "memory_efficient_"
        "linear", "ignore_unused_parameters", "legacy_stage1", "stage3_use_all_reduce_for_fetch_"
        "params", "load_from_fp32_weights", "elastic_checkpoint", "use_node_local_storage",
    )  # fmt: skip
    section.leave_all(
        "elsewhere", "'stepladder checkpoint convert' writes whole weights",
        "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save",
        "gather_16bit_weights_on_model_save",
    )  # fmt: skip
    if (size := section.number("zero_hpz_partition_size")) not in (None, 1):
        section.leave(
            "zero_hpz_partition_size", "unsupported", f"write hsdp shard={size} for copies between "
            "groups of ranks",
        )  # fmt: skip
    section.leave_all(
        "unsupported", "parameters or gradients travel in fewer bits than they have",
        "zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights",
        "mics_shard_size", "mics_hierarchical_params_gather",
    )  # fmt: skip
    section.rest()


def offload(section: Section) -> Iterator[str]:
    """What lies in host memory."""
    homes = {
        "optimizer": section.section("offload_optimizer"),
        "parameters": section.section("offload_param"),
    }
    moved = []
    for what, home in homes.items():
        device = str(home.take("device", "none"))
        if device == "nvme":
            home.leave("device", "unsupported", "disks; host memory (cpu) is as far as it goes")
        if device == "cpu":
            moved.append(what)
        home.leave_all(
            "not needed", TUNING, "pin_memory", "buffer_count", "buffer_size", "max_in_cpu",
            "fast_init", "pipeline_read", "pipeline_write", "nvme_path",
        )  # fmt: skip
        if home.number("ratio") not in (None, 1, 1.0):
            home.leave("ratio", "unsupported", "part of the state; ours is moved whole")
        home.rest()
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
        if (value := top.number(key)) is not None:
            yield f"{word}={int(value)}"


def axes(top: Section) -> Iterator[str]:
    tensor = top.section("tensor_parallel")
    ways = tensor.number("autotp_size") or tensor.number("tp_size")
    if ways and ways > 1:
        yield f"tensor={int(ways)}"
    tensor.leave_all("not needed", "cuts are found in the model", "tp_grain_size", "preset_model")
    tensor.rest()
    if (ways := top.number("sequence_parallel_size")) and ways > 1:
        yield f"context={int(ways)}"
    line = top.section("pipeline")
    stages = line.number("stages")
    if stages and stages > 1:
        yield f"pipeline={int(stages)}"
    line.leave_all(
        "not needed", "stages are weighed by what they cost", "partition", "seed_layers",
        "activation_checkpoint_interval", "pipe_partitioned", "grad_partitioned",
    )  # fmt: skip
    line.rest()


def activations(section: Section) -> Iterator[str]:
    if section.switch("cpu_checkpointing"):
        yield "recompute=blocks"
        section.leave(
            "cpu_checkpointing", "unsupported", "inputs of recomputed blocks stay on the device; "
            "offload=activations moves all activations instead",
        )  # fmt: skip
    elif section.table:
        yield "recompute=blocks"
    section.leave_all(
        "not needed", "which blocks are recomputed is the plan's recompute=",
        "partition_activations", "contiguous_memory_optimization", "number_checkpoints",
        "synchronize_checkpoint_boundary", "profile",
    )  # fmt: skip
    section.rest()


def optimizer(top: Section) -> Iterator[str]:
    section = top.section("optimizer")
    clip = top.number("gradient_clipping")
    kind = section.take("type")
    words = ["adamw"]
    if kind is not None:
        name = OPTIMIZERS.get(str(kind).lower())
        if name is None:
            section.leave("type", "unsupported", f"{kind} is not here; adamw stands in its place")
        words = [name or "adamw"]
    params = section.section("params")
    if words[0] == "adam" and params.switch("adam_w_mode", True):
        words = ["adamw"]  # what DeepSpeed makes of its Adam unless told not to
    for key, word in (("lr", "lr"), ("weight_decay", "wd"), ("eps", "eps")):
        if (value := params.number(key)) is not None:
            words.append(f"{word}={value!r}")
    if (value := params.number("momentum")) is not None:
        words.append(f"momentum={value!r}")
    if betas := params.pair("betas"):
        words.append(f"betas={betas[0]!r},{betas[1]!r}")
    if clip:
        words.append(f"clip={clip!r}")
    params.leave_all(
        "not needed", "fused where torch has it", "torch_adam", "adam_w_mode", "bias_correction",
        "amsgrad", "fused",
    )  # fmt: skip
    params.rest()
    section.leave_all("not needed", "the engine's own switch", "legacy_fusion")
    section.rest()
    if len(words) > 1 or kind is not None:
        yield f"optimizer={' '.join(words)}"


def schedule(section: Section) -> str:
    """The learning rate's way as a recipe writes it."""
    kind = section.take("type")
    params = section.section("params")
    warmup, steps = params.number("warmup_num_steps"), params.number("total_num_steps")
    params.leave_all("open", "the top rate is the optimizer's lr", "warmup_max_lr")
    straight = params.take("warmup_type", "linear") == "linear"
    if not straight:
        params.leave("warmup_type", "unsupported", "a rise that bends; ours is a straight line")
    params.leave_all("not needed", "the rise begins near 0", "warmup_min_lr", "warmup_min_ratio")
    floor = params.number("cos_min_ratio")
    params.leave_all("not needed", "a resumed run knows its step", "last_batch_iteration")
    params.rest()
    section.rest()
    if kind is None:
        return ""
    if kind not in SCHEDULES:
        section.leave("type", "unsupported", f"{kind}; constant, linear, cosine or wsd are here")
        return ""
    words = [SCHEDULES[str(kind)]]
    words += [f"warmup={int(warmup)}"] if warmup else []
    if words[0] != "constant":
        if not steps:
            return ""  # left open: nobody knows where it ends
        words.append(f"steps={int(steps)}")
    words += [f"floor={floor!r}"] if floor else []
    return " ".join(words)
