"""An Accelerate configuration as a plan: its FSDP, DeepSpeed or Megatron section and precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepladder.errors import PlanError

from .conversion import (
    ConvertedPlan,
    Section,
    UnmappedKey,
    as_table,
    format_value,
    is_on_host,
    make_plan,
    zero_word,
)

STRATEGIES = {
    "1": "FULL_SHARD",
    "2": "SHARD_GRAD_OP",
    "3": "NO_SHARD",
    "4": "HYBRID_SHARD",
    "5": "HYBRID_SHARD_ZERO2",
    "TRUE": "FULL_SHARD",
    "FALSE": "SHARD_GRAD_OP",
}
PREFETCH = "torch's own order of copies"
BESIDE = (  # what Accelerate refuses beside a DeepSpeed file of its own
    "gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device",
    "offload_param_device", "zero3_save_16bit_model",
)  # fmt: skip
PRECISIONS = {"no": "fp32", "None": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
SECTIONS = ("fsdp_config", "deepspeed_config", "megatron_lm_config")
PLAIN = ("NO", "MULTI_GPU", "MULTI_CPU", "MULTI_NPU", "MULTI_XPU", "None")
LAUNCH = "where and how ranks are started: 'stepladder train --ranks' or 'launch'"


def read_accelerate(config: Any) -> ConvertedPlan:
    """A plan from the table of an Accelerate YAML file."""
    unmapped: list[UnmappedKey] = []
    wrong: list[PlanError] = []
    top = Section("", as_table(config, "accelerate"), unmapped, wrong)
    kind = "NO" if top.table.get("distributed_type") is False else top.word("distributed_type")
    kind = kind.upper() or "NO"
    top.used.add("distributed_type")
    words = [*precision(top), *compilation(top)]
    if passes := top.count("gradient_accumulation_steps"):
        words.append(f"accumulate={passes}")
    axes = parallelism(top.section("parallelism_config"))
    ranks = top.count("num_processes") or 0
    nodes = top.count("num_machines") or 1
    sections = {
        "FSDP": lambda s: fsdp(s, ranks, nodes),
        "DEEPSPEED": deepspeed,
        "MEGATRON_LM": megatron,
    }
    chosen = top.section(f"{kind.lower()}_config") if kind in sections else top
    if kind in sections:
        words += sections[kind](chosen)
    elif kind in PLAIN:
        words.append("ddp")
    else:
        top.skip("distributed_type", "unsupported", f"{kind} is not here; ddp stands in its place")
        words.append("ddp")
    unused = [key for key in SECTIONS if key != chosen.name]
    top.skip_all("not needed", f"distributed_type is {kind}", *unused)
    top.skip_all(
        "elsewhere", LAUNCH, "compute_environment", "debug", "enable_cpu_affinity", "gpu_ids",
        "machine_rank", "main_process_ip", "main_process_port", "main_training_function",
        "rdzv_backend", "same_network", "use_cpu", "num_cpu_threads_per_process", "ipex_config",
        "mpirun_config", "monitor_interval", "max_restarts", "num_processes", "num_machines",
    )  # fmt: skip
    top.skip_all(
        "unsupported", "TPUs and other services", "tpu_env", "tpu_use_cluster", "tpu_use_sudo",
        "tpu_name", "tpu_zone", "downcast_bf16", "commands", "command_file",
    )  # fmt: skip
    top.skip_unread()
    return ConvertedPlan(make_plan([*words, *axes], wrong), "", tuple(unmapped))


def precision(top: Section) -> Iterator[str]:
    top.used.add("mixed_precision")
    bare = top.table.get("mixed_precision") is False  # YAML reads a bare no as false
    word = "no" if bare else top.word("mixed_precision", "no")
    if word not in PRECISIONS:
        top.skip("mixed_precision", "unsupported", f"{word} is not a precision; fp32 stands in")
    if word == "fp8":
        top.skip_all("unsupported", "ours is torchao's, scaled by tensor", "fp8_config")
    else:
        top.skip_all("not needed", f"mixed_precision is {word}", "fp8_config")
    yield PRECISIONS.get(word, "fp32")


def compilation(top: Section) -> Iterator[str]:
    section = top.section("dynamo_config")
    section.used.add("dynamo_backend")
    bare = section.table.get("dynamo_backend") is False  # as above
    backend = "NO" if bare else section.word("dynamo_backend", "NO").upper()
    if backend == "INDUCTOR":
        yield "compile=on"
    elif backend != "NO":
        section.skip("dynamo_backend", "unsupported", f"{backend}; compile=on is inductor")
    section.skip_all(
        "not needed", "regions are chosen by the size of blocks", "dynamo_mode",
        "dynamo_use_fullgraph", "dynamo_use_dynamic", "dynamo_use_regional_compilation",
    )  # fmt: skip
    section.skip_unread()


def parallelism(section: Section) -> list[str]:
    names = {"dp_replicate": "replicate", "dp_shard": "shard", "tp": "tensor", "cp": "context"}
    words = []
    for theirs, ours in names.items():
        ways = section.count(f"parallelism_config_{theirs}_size")
        if ways and ways > 1:
            words.append(f"{ours}={ways}")
    section.skip_all(
        "not needed", "keys and values are gathered, or heads exchanged, as the model allows",
        "parallelism_config_cp_comm_strategy", "parallelism_config_cp_backend",
    )  # fmt: skip
    section.skip_unread()
    return words


def strategy(section: Section) -> str:
    """How parameters are sliced, in the first version's words."""
    key = "fsdp_sharding_strategy"
    if section.take(key) is None:
        key = "fsdp_reshard_after_forward"  # the second version's
    else:
        section.skip_all("not needed", f"{key} says it", "fsdp_reshard_after_forward")
    given = section.take(key, True)
    named = str(given).upper()
    named = STRATEGIES.get(named, named)
    if named not in STRATEGIES.values():
        section.skip(key, "unsupported", f"{format_value(given)}; zero3 stands in")
        return "FULL_SHARD"
    return named


def fsdp(section: Section, ranks: int, nodes: int) -> Iterator[str]:
    named = strategy(section)
    if named.startswith("HYBRID"):
        yield "zero2" if named.endswith("ZERO2") else "zero3"
        if ranks % nodes:
            problem = f"{ranks} ranks do not divide among {nodes} machines"
            section.refuse("fsdp_sharding_strategy", problem, "Change num_processes.")
        elif ranks and nodes > 1:
            yield from (f"shard={ranks // nodes}", f"replicate={nodes}")
        else:
            section.skip(
                "fsdp_sharding_strategy", "open", "copies between nodes: write shard= and "
                "replicate= once there are several",
            )  # fmt: skip
    else:
        words = {"NO_SHARD": "ddp", "FULL_SHARD": "zero3", "SHARD_GRAD_OP": "zero2"}
        yield words[named]
    if section.switch("fsdp_offload_params") or section.switch("fsdp_cpu_offload"):
        yield "offload=parameters"
    if section.switch("fsdp_activation_checkpointing"):
        yield "recompute=blocks"
    section.skip_all(
        "not needed", "blocks are found in the model", "fsdp_auto_wrap_policy",
        "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params",
    )  # fmt: skip
    section.skip_all(
        "not needed", PREFETCH, "fsdp_backward_prefetch", "fsdp_backward_prefetch_policy",
        "fsdp_forward_prefetch", "fsdp_enable_memory_efficient_optimization",
    )  # fmt: skip
    section.skip_all(
        "not needed", "FSDP2 always: parameters keep their names, no rank ever holds the whole "
        "model", "fsdp_version", "fsdp_use_orig_params", "fsdp_sync_module_states",
        "fsdp_cpu_ram_efficient_loading",
    )  # fmt: skip
    section.skip_all(
        "elsewhere", "checkpoints are written by all ranks and read by any layout",
        "fsdp_state_dict_type",
    )  # fmt: skip
    section.skip_all("unsupported", "modules left out of sharding", "fsdp_ignored_modules")
    section.skip_unread()


def deepspeed(section: Section) -> Iterator[str]:
    if name := section.word("deepspeed_config_file"):
        for key in BESIDE:
            if section.take(key) is not None:
                problem = f"stands beside deepspeed_config_file ({name})"
                section.refuse(key, problem, "Accelerate takes one of them.")
        section.skip("deepspeed_config_file", "open", "read that file with --from-deepspeed")
    else:
        yield from stage(section)
    section.skip_all(
        "not needed", "no rank ever holds the whole model", "zero3_init_flag",
        "zero3_save_16bit_model", "deepspeed_moe_layer_cls_names",
    )  # fmt: skip
    section.skip_all("elsewhere", LAUNCH, "deepspeed_multinode_launcher", "deepspeed_hostfile")
    section.skip_unread()


def stage(section: Section) -> Iterator[str]:
    """The words of a file without a DeepSpeed file of its own."""
    yield zero_word(section, "zero_stage", 2)  # 2 is Accelerate's default
    if passes := section.count("gradient_accumulation_steps"):
        yield f"accumulate={passes}"
    moved = [
        what
        for what, key in (("optimizer", "optimizer"), ("parameters", "param"))
        if is_on_host(section, f"offload_{key}_device")
    ]
    if moved:
        yield f"offload={'parameters' if 'parameters' in moved else 'optimizer'}"
    if clip := section.number("gradient_clipping"):
        yield f"optimizer=adamw clip={clip!r}"
    section.skip_all(
        "unsupported", "disks", "offload_optimizer_nvme_path", "offload_param_nvme_path"
    )


def megatron(section: Section) -> Iterator[str]:
    ways = {"tp": "tensor", "pp": "pipeline"}
    for theirs, ours in ways.items():
        degree = section.count(f"megatron_lm_{theirs}_degree")
        if degree and degree > 1:
            yield f"{ours}={degree}"
    yield "zero1" if section.switch("megatron_lm_use_distributed_optimizer") else "ddp"
    if passes := section.count("megatron_lm_num_micro_batches"):
        yield f"accumulate={passes}"
    if section.switch("megatron_lm_recompute_activations"):
        yield "recompute=selective"
    if clip := section.number("megatron_lm_gradient_clipping"):
        yield f"optimizer=adamw clip={clip!r}"
    section.skip_all(
        "not needed", "tensor= cuts sequences between its products too",
        "megatron_lm_sequence_parallelism",
    )  # fmt: skip
    section.skip_unread()
