"""An Accelerate configuration as a plan: its FSDP, DeepSpeed or Megatron section and precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .carried import Carried, Left, Section, as_table, data_word, make_plan

STRATEGIES = {
    "1": "FULL_SHARD",
    "2": "SHARD_GRAD_OP",
    "3": "NO_SHARD",
    "4": "HYBRID_SHARD",
    "5": "HYBRID_SHARD_ZERO2",
    "TRUE": "FULL_SHARD",
    "FALSE": "SHARD_GRAD_OP",
}
PRECISIONS = {"no": "fp32", "None": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
SECTIONS = ("fsdp_config", "deepspeed_config", "megatron_lm_config")
PLAIN = ("NO", "MULTI_GPU", "MULTI_CPU", "MULTI_NPU", "MULTI_XPU", "None")
LAUNCH = "where and how ranks are started: 'stepladder train --ranks' or 'launch'"


def read_accelerate(config: Any) -> Carried:
    """A plan from the table of an Accelerate YAML file."""
    left: list[Left] = []
    top = Section("", as_table(config, "accelerate"), left)
    kind = str(top.take("distributed_type", "NO"))
    words = [*precision(top), *compilation(top)]
    if passes := top.number("gradient_accumulation_steps"):
        words.append(f"accumulate={int(passes)}")
    axes = parallelism(top.section("parallelism_config"))
    ranks = int(top.number("num_processes") or 0)
    nodes = int(top.number("num_machines") or 1)
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
        top.leave("distributed_type", "unsupported", f"{kind} is not here; ddp stands in its place")
        words.append("ddp")
    unused = [key for key in SECTIONS if key != chosen.name]
    top.leave_all("not needed", f"distributed_type is {kind}", *unused)
    top.leave_all(
        "elsewhere", LAUNCH, "compute_environment", "debug", "enable_cpu_affinity", "gpu_ids",
        "machine_rank", "main_process_ip", "main_process_port", "main_training_function",
        "rdzv_backend", "same_network", "use_cpu", "num_cpu_threads_per_process", "ipex_config",
        "mpirun_config", "monitor_interval", "max_restarts",
    )  # fmt: skip
    top.leave_all(
        "unsupported", "TPUs and other services", "tpu_env", "tpu_use_cluster", "tpu_use_sudo",
        "tpu_name", "tpu_zone", "downcast_bf16", "commands", "command_file",
    )  # fmt: skip
    top.rest()
    return Carried(make_plan([*words, *axes]), "", tuple(left))


def precision(top: Section) -> Iterator[str]:
    given = top.take("mixed_precision", "no")
    word = "no" if given is False else str(given)  # YAML reads a bare no as false
    if word not in PRECISIONS:
        top.leave("mixed_precision", "unsupported", f"{word} is not a precision; fp32 stands in")
    top.leave_all("not needed", "torchao's tensorwise scaling", "fp8_config")
    yield PRECISIONS.get(word, "fp32")


def compilation(top: Section) -> Iterator[str]:
    section = top.section("dynamo_config")
    backend = str(section.take("dynamo_backend", "NO")).upper()
    if backend == "INDUCTOR":
        yield "compile=on"
    elif backend != "NO":
        section.leave("dynamo_backend", "unsupported", f"{backend}; compile=on is inductor")
    section.leave_all(
        "not needed", "regions are chosen by the size of blocks", "dynamo_mode",
        "dynamo_use_fullgraph", "dynamo_use_dynamic", "dynamo_use_regional_compilation",
    )  # fmt: skip
    section.rest()


def parallelism(section: Section) -> list[str]:
    names = {"dp_replicate": "replicate", "dp_shard": "shard", "tp": "tensor", "cp": "context"}
    words = []
    for theirs, ours in names.items():
        ways = section.number(f"parallelism_config_{theirs}_size")
        if ways and ways > 1:
            words.append(f"{ours}={int(ways)}")
    section.leave_all(
        "not needed", "keys and values are gathered, or heads exchanged, as the model allows",
        "parallelism_config_cp_comm_strategy", "parallelism_config_cp_backend",
    )  # fmt: skip
    section.rest()
    return words


def fsdp(section: Section, ranks: int, nodes: int) -> Iterator[str]:
    again = section.take("fsdp_reshard_after_forward", True)  # the second version's word
    named = str(section.take("fsdp_sharding_strategy", again)).upper()
    named = STRATEGIES.get(
        named, {"TRUE": "FULL_SHARD", "FALSE": "SHARD_GRAD_OP"}.get(named, named)
    )
    if named.startswith("HYBRID"):
        stage = 2 if named.endswith("ZERO2") else 3
        if ranks and nodes > 1:
            yield from (f"zero{stage}", f"shard={ranks // nodes}", f"replicate={nodes}")
        else:
            yield f"zero{stage}"
            section.leave(
                "fsdp_sharding_strategy", "open", "copies between nodes: write shard= and "
                "replicate= once there are several",
            )  # fmt: skip
    elif named == "NO_SHARD":
        yield "ddp"
    elif named in ("FULL_SHARD", "SHARD_GRAD_OP"):
        yield "zero3" if named == "FULL_SHARD" else "zero2"
    else:
        section.leave("fsdp_sharding_strategy", "unsupported", f"{named}; zero3 stands in")
        yield "zero3"
    if section.switch("fsdp_offload_params") or section.switch("fsdp_cpu_offload"):
        yield "offload=parameters"
    if section.switch("fsdp_activation_checkpointing"):
        yield "recompute=blocks"
    section.leave_all(
        "not needed", "blocks are found in the model", "fsdp_auto_wrap_policy",
        "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params", "fsdp_version",
        "fsdp_backward_prefetch", "fsdp_backward_prefetch_policy", "fsdp_forward_prefetch",
        "fsdp_use_orig_params", "fsdp_sync_module_states", "fsdp_cpu_ram_efficient_loading",
        "fsdp_enable_memory_efficient_optimization",
    )  # fmt: skip
    section.leave_all(
        "elsewhere", "checkpoints are written by all ranks and read by any layout",
        "fsdp_state_dict_type",
    )  # fmt: skip
    section.leave_all("unsupported", "modules left out of sharding", "fsdp_ignored_modules")
    section.rest()


def deepspeed(section: Section) -> Iterator[str]:
    yield data_word(section, "zero_stage")
    if passes := section.number("gradient_accumulation_steps"):
        yield f"accumulate={int(passes)}"
    moved = [
        what
        for what, key in (("optimizer", "optimizer"), ("parameters", "param"))
        if str(section.take(f"offload_{key}_device", "none")) == "cpu"
    ]
    if moved:
        yield f"offload={'parameters' if 'parameters' in moved else 'optimizer'}"
    if clip := section.number("gradient_clipping"):
        yield f"optimizer=adamw clip={clip!r}"
    section.leave_all(
        "unsupported", "disks", "offload_optimizer_nvme_path", "offload_param_nvme_path"
    )
    section.leave_all(
        "not needed", "no rank ever holds the whole model", "zero3_init_flag",
        "zero3_save_16bit_model", "deepspeed_moe_layer_cls_names",
    )  # fmt: skip
    section.leave_all("elsewhere", LAUNCH, "deepspeed_multinode_launcher", "deepspeed_hostfile")
    section.leave_all("open", "read that file with --from-deepspeed", "deepspeed_config_file")
    section.rest()


def megatron(section: Section) -> Iterator[str]:
    ways = {"tp": "tensor", "pp": "pipeline"}
    for theirs, ours in ways.items():
        degree = section.number(f"megatron_lm_{theirs}_degree")
        if degree and degree > 1:
            yield f"{ours}={int(degree)}"
    yield "zero1" if section.switch("megatron_lm_use_distributed_optimizer") else "ddp"
    if passes := section.number("megatron_lm_num_micro_batches"):
        yield f"accumulate={int(passes)}"
    if section.switch("megatron_lm_recompute_activations"):
        yield "recompute=selective"
    if clip := section.number("megatron_lm_gradient_clipping"):
        yield f"optimizer=adamw clip={clip!r}"
    section.leave_all(
        "not needed", "tensor= cuts sequences between its products too",
        "megatron_lm_sequence_parallelism",
    )  # fmt: skip
    section.rest()
