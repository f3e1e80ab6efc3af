"""A row of published measurements as a workload, a plan, a cluster and the software that ran it.

Only what the row says of its software is passed on: the attention kernel of its time, the type its
gradients travelled in, how its blocks were dealt to stages. Words are read as teams write them
("bf16 mixed", "ZeRO-3", "full"); a word that nobody knows is refused by name, and the other rows
go on.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import gcd

from published_images import facts_of_images, plan_of_images
from stepladder.errors import StepladderError
from stepladder.hardware import Cluster, find_device
from stepladder.plan import (
    PRECISIONS,
    BatchSplit,
    Layout,
    Optimizer,
    Plan,
    Precision,
    Recompute,
    Schedule,
)
from stepladder.workload import ElementsByType, Facts, Shape, facts_of_shape
from stepladder.workload.adapters import NAMES as ADAPTED
from stepladder.workload.adapters import with_adapters
from stepladder.workload.shape import check_shape

Row = dict[str, str]

DEVICES = {  # words of the hardware column that the device table does not read, most telling first
    "variant not stated": "H100-96GB",  # torchao's authors share torchtitan's machines
    "96GB": "H100-96GB",
    "95GB": "H100-96GB",
    "96 GB": "H100-96GB",
    "B200-class": "B200",
}

# What a team that says nothing of recomputation may have done, cheapest first: the least that fits.
UNSAID = (Recompute(), Recompute("selective"), Recompute("every", every=2), Recompute("blocks"))
USUAL_STRETCH = 4  # blocks of one, where a rank has several and a row does not say how many

GIB = 2**30


COLUMNS = (
    "id", "source", "hardware", "n_gpus", "interconnect_if_known", "model", "params_b", "layers",
    "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "tp", "pp", "dp", "cp", "sharding",
    "precision", "activation_checkpointing", "global_batch_seqs", "micro_batch_seqs", "grad_accum",
    "compile", "attention_impl", "tokens_per_s_per_gpu", "mfu_pct", "peak_mem_gb", "oom", "notes",
    "step_time_s", "ep", "experts", "topk", "expert_ffn", "shared_expert_ffn", "first_dense_layers",
    "image_size", "batch", "channels_last", "images_per_s", "step_ms",
)  # fmt: skip


def whole_row(row: dict[str, str | None]) -> Row:
    """Every column, empty where the file has none."""
    return {name: (row.get(name) or "").strip() for name in COLUMNS}


def number(row: Row, name: str, otherwise: float = 1) -> int:
    return int(real(row, name, otherwise))


def real(row: Row, name: str, otherwise: float = 0) -> float:
    try:
        return float(row[name].rstrip("B%") or otherwise)
    except ValueError as words:
        raise unreadable(row, name) from words


def unreadable(row: Row, field: str) -> StepladderError:
    problem = f"'{row[field]}' is not understood in row {row['id']}"
    return StepladderError(field, problem, "Write it as other rows do.")


def device_of_row(row: Row) -> str:
    """The table's name; longer pieces of the text tell more ("A100 80GB" than "A100")."""
    for words, name in DEVICES.items():
        if words in row["hardware"]:
            return name
    words = re.sub(r"\(.*?\)|\bSXM\d?\b|,", " ", row["hardware"]).split()
    for last in range(min(len(words), 4), 0, -1):
        try:
            return find_device(" ".join(words[:last])).name
        except StepladderError:
            continue
    raise unreadable(row, "hardware")


def facts_of_row(row: Row) -> Facts:
    """The shape whose number of parameters is nearest: that tells the family, and a tied head."""
    if row["image_size"]:
        return facts_of_images(row)
    if not (row["layers"] and row["hidden"]):
        problem = f"{row['model']} has no shape in row {row['id']}"
        raise StepladderError("model", problem, "Write layers and hidden.")
    names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len")
    heads = number(row, "heads")
    usual = {"kv_heads": heads, "ffn": 4 * number(row, "hidden")}
    numbers = [number(row, name, usual.get(name, 1)) for name in names]
    head = re.search(r"head_dim (\d+)", row["notes"])
    mixture = mixture_of_row(row)
    if mixture and not row["ffn"]:
        usual["ffn"] = mixture["expert_ffn"]
    shapes = [
        Shape(family, *numbers, tied=tied, head=int(head[1]) if head else 0, **mixture)
        for family in (("llama",) if mixture else families_of_row(row))
        for tied in (False, True)
    ]
    parameters = real(row, "params_b") * 1e9
    shape = min(shapes, key=lambda each: abs(each.parameters - parameters))
    if not parameters:
        grouped = row["kv_heads"] not in ("", row["heads"])
        shape = shapes[0 if grouped else -2]
    facts = facts_of_shape(check_shape(shape), name=row["model"])
    facts = written_out(row, shape, facts)
    rank, products = adapters_of_row(row, 7 if shape.gated else 6)
    return with_adapters(facts, rank, products) if rank else facts


# Of one block, per element and forward, in fp32 elements that a norm or a rotation of queries and
# keys written in Python moves beyond what one kernel does. A norm casts, squares, means, scales,
# casts and weighs: 36 bytes of which 4 are counted. A rotation casts to fp32, multiplies complex
# numbers or pairs, and casts back: 20 to 36 bytes of which 8 are counted.
NORM, ROTATION = 8.0, 5.0


def written_out(row: Row, shape: Shape, facts: Facts) -> Facts:
    """The same model with its norms or rotations written in Python, which a compiler fuses."""
    norms, rotations = written_of_row(row)
    if not (norms or rotations) or not shape.gated:
        return facts
    stream = 2 * shape.hidden * norms * NORM
    turned = (shape.query_width + shape.kv_heads * shape.head_width) * rotations * ROTATION
    more = ElementsByType(single=facts.tokens * (stream + turned))
    parts = [
        replace(p, moved=replace(p.moved, eager=p.moved.eager + more)) if p.name == "block" else p
        for p in facts.parts
    ]
    return replace(facts, parts=tuple(parts))


def written_of_row(row: Row) -> tuple[bool, bool]:
    """Whether a project writes its norms and rotations in Python, by its code."""
    source, notes = row["source"], row["notes"]
    if re.search("fms-fsdp|transformers|trl|axolotl|torchtune", source, re.I):
        return True, True
    if re.search("HF Trainer", notes):
        fused = bool(re.search("foak|liger fused", notes, re.I))
        return not fused, not fused
    # Norms were Triton's in nanotron by then, its rotations complex numbers.
    return False, "July-2024" in notes


def mixture_of_row(row: Row) -> dict[str, int]:
    """The numbers of its experts; none where it has none."""
    if number(row, "experts", 0) < 2:
        return {}
    if re.search("MLA|latent", row["notes"]) or re.search(
        "deepseek|glm-5|kimi", row["model"], re.I
    ):
        problem = f"{row['model']} has latent attention, whose shape rows do not give"
        raise StepladderError("model", problem, "Describe its module instead.")
    names = {"experts": "experts", "active": "topk", "expert_ffn": "expert_ffn"}
    more = {"shared_ffn": "shared_expert_ffn", "dense": "first_dense_layers"}
    return {name: number(row, column, 0) for name, column in {**names, **more}.items()}


def families_of_row(row: Row) -> tuple[str, ...]:
    """What the notes say of the MLP: three matrices, or two."""
    if re.search(r"two[- ]matri|of two matrices", row["notes"], re.I):
        return ("gpt",)
    return ("llama",) if re.search("SwiGLU", row["notes"]) else ("llama", "gpt")


def adapters_of_row(row: Row, products: int) -> tuple[int, tuple[str, ...]]:
    """Rank and products of LoRA: 16, and the usual ones, where a row says no more; 0: none."""
    said = re.search(r"lora(?: r(\d+))?( [a-z,]+)?", row["model"], re.I)
    if said is None and not re.search(r"\blora\b", row["notes"], re.I):
        return 0, ()
    narrow = megatron_like(row) and " all" not in row["model"]  # as its recipes have it
    usual = ("q", "k", "v") if narrow else ADAPTED[products]
    named = set(((said and said[2]) or "").strip().split(",")) & set(ADAPTED[products])
    return int((said and said[1]) or 16), tuple(sorted(named)) or usual


def cluster_of_row(row: Row, device: str) -> Cluster:
    ranks = number(row, "n_gpus")
    board = find_device(device).devices_per_node
    each = max(n for n in range(1, max(board, 1) + 1) if ranks % n == 0)
    text = f"{ranks // each} nodes x {each} {device}"
    known = row["interconnect_if_known"]
    if found := re.search(r"(\d+) ?x ?(\d+) ?Gb", known):
        text += f", {int(found[1]) * int(found[2])} Gb/s"
    elif found := re.search(r"(\d+) ?Gb(?:ps|/s|it/s)?[ /]*(?:per )?(?:/)?node", known):
        text += f", {found[1]} Gb/s"
    elif found := re.search(r"(\d+) ?Gb/s per", known):
        text += f", {found[1]} Gb/s per GPU"
    return Cluster.parse(text)


def plans_of_row(row: Row) -> list[Plan]:
    """What may have run, cheapest first: several where the row does not say what is recomputed."""
    plan = plan_of_row(row)
    if "fms-fsdp" in row["source"] and row["activation_checkpointing"] == "selective":
        return [replace(plan, recompute=each) for each in UNSAID[2:]]  # whole blocks, not how many
    unsaid = re.search("does not state recompute|recompute not stated", row["notes"])
    if plan.recompute.kind != "none" or (row["activation_checkpointing"] and not unsaid):
        return [plan]
    plans = [replace(plan, recompute=each) for each in UNSAID]
    if "torchtitan" in row["source"]:  # its own default
        plans = plans[1:]
    if megatron_like(row) and plan.zero == 3:  # its recipes for FSDP offload activations
        plans.insert(1, replace(plan, offload=("activations",)))
    return plans


def plan_of_row(row: Row) -> Plan:
    data, zero = number(row, "dp"), zero_of_row(row)
    group = re.search(r"ZeRO-1 group (?:size )?(\d+)", row["notes"])
    shard = min(int(group[1]), data) if group else data
    if hybrid(row):  # whole in every node, as is usual
        shard = max(ways for ways in range(1, min(data, 8) + 1) if data % ways == 0)
    experts = gcd(number(row, "ep"), shard if zero else data)
    cut, mixed = number(row, "tp"), bool(mixture_of_row(row))
    layout = Layout(
        pipeline=number(row, "pp"),
        replicate=data // experts if zero == 0 else data // shard,
        shard=1 if zero == 0 else shard // experts,
        experts=experts,
        context=number(row, "cp") * (cut if mixed else 1),  # experts see slices of a sequence
        tensor=1 if mixed else cut,
    )
    plain = re.search("plain|eager|unfused|standard", row["attention_impl"], re.I)
    if row["image_size"]:
        return plan_of_images(row)
    return Plan(
        precision=precision_of_row(row),
        layout=layout,
        zero=zero,  # type: ignore[arg-type]
        batch=whole_batch(row),
        recompute=recompute_of_row(row),
        compile=row["compile"][:1].lower() in ("y", "t", "1") or fuses(row),
        attention="plain" if plain else "auto",
        optimizer=Optimizer(clip=1.0),
        schedule=schedule_of_row(row),
        offload=offload_of_row(row),
    )


def offload_of_row(row: Row) -> tuple[str, ...]:
    """What notes say lives in the host's memory; a negation before it is none."""
    found = re.search(r"(activation|optimizer|param)\w*[^;,.]{0,20}offload", row["notes"], re.I)
    if found is None or re.search(r"\bno\b|without", found[0], re.I):
        return ()
    what = {"a": "activations", "o": "optimizer", "p": "parameters"}
    return (what[found[1][0].lower()],)


def fuses(row: Row) -> bool:
    """Whether neighbouring cheap operations run as one without a compiler."""
    return bool(re.search("nemo|transformer.?engine", row["source"], re.I))


def zero_of_row(row: Row) -> int:
    """Its sharding; where it says nothing, nothing is sharded beside other ways to divide."""
    said = re.sub(r"[^a-z0-9/]", "", row["sharding"].lower())
    if found := re.search(r"(?:zero|stage)(\d)", said):
        return int(found[1])
    if "fsdp" in said or hybrid(row) or "full" in said:
        return 3
    if re.search("distributedopt|distopt", said):
        return 1
    if re.fullmatch("(ddp|dp|none|no|na|n/a|tp|pp|tp/?pp|3d|megatron)?", said):
        return 0 if said or number(row, "tp") * number(row, "pp") > 1 else 3
    raise unreadable(row, "sharding")


def hybrid(row: Row) -> bool:
    return bool(re.search("hsdp|hybrid", row["sharding"], re.I))


def schedule_of_row(row: Row) -> Schedule:
    """Interleaved where the notes say with how many stretches a rank."""
    found = re.search(r"(?:interleav\w*|virtual[a-z -]*|vpp|\bv)\D{0,12}(\d+)", row["notes"], re.I)
    each = number(row, "layers") // number(row, "pp")
    if number(row, "pp") > 1 and "virtual pipeline not stated" in row["notes"]:
        return Schedule("interleaved", max(each // USUAL_STRETCH, 2))
    if number(row, "pp") > 1 and found and int(found[1]) > 1:
        return Schedule("interleaved", int(found[1]))
    return Schedule()


def whole_batch(row: Row) -> BatchSplit:
    """The row's batch; where micro-batches do not divide it, the next one that they do."""
    data, sequences = number(row, "dp"), number(row, "global_batch_seqs")
    passes = number(row, "grad_accum")
    whole = sequences / data / passes if row["grad_accum"] or not megatron_like(row) else 1
    micro = max(number(row, "micro_batch_seqs", whole), 1)
    rounds = -(-sequences // (micro * data))
    return BatchSplit(micro * rounds * data, micro)


def precision_of_row(row: Row) -> Precision:
    said = row["precision"].lower().replace("bfloat16", "bf16").replace("float16", "fp16")
    said = said.replace("float8", "fp8").replace("nvfp4", "fp8").replace("mxfp4", "fp8")
    named = re.search(r"fp8|bf16|fp16|tf32|fp32", said)
    if named is None and said not in ("", "mixed", "amp", "16", "16-mixed"):
        raise unreadable(row, "precision")
    precision = PRECISIONS[named[0] if named else half_of(row)]
    autocast = re.search("bf16 autocast", row["notes"]) and zero_of_row(row) == 3
    if precision.name == "bf16" and (is_adapted(row) or ("pure" in said and not autocast)):
        return PRECISIONS["bf16-pure"]  # a frozen base needs no copy in fp32
    in_half = re.search("mp_mode=PURE|bfSixteen", row["notes"])
    in_half = in_half or re.search("InternEvo|nemo", row["source"], re.I)
    return replace(precision, reduce="bfloat16") if in_half else precision


def is_adapted(row: Row) -> bool:
    return bool(re.search(r"\blora\b", row["model"] + row["notes"], re.I))


def half_of(row: Row) -> str:
    """The 16-bit type of somebody who names none: the one that needs no scaling, if it has one."""
    return "bf16" if find_device(device_of_row(row)).peak("bf16") else "fp16"


def recompute_of_row(row: Row) -> Recompute:
    said = row["activation_checkpointing"].lower()
    if "selective layer" in row["notes"]:
        return Recompute("every", every=2)
    if re.match(r"(|n|no|none|false|off|0|-)$", said):
        return Recompute()
    if found := re.fullmatch(r"(?:every |1/)(\d+).*", said):
        return Recompute("every", every=int(found[1]))
    if "selective" in said or "partial" in said:
        # Megatron's recomputes the attention's scores alone, which flash attention never keeps.
        return Recompute() if megatron_like(row) else Recompute("selective")
    if re.match(r"full|y|yes|true|on|1|block|every|all|uniform", said):
        return Recompute("blocks")
    raise unreadable(row, "activation_checkpointing")


def megatron_like(row: Row) -> bool:
    return bool(re.search("megatron|nemo|neox|bigscience|bloom", row["source"], re.I))


def published_seconds(row: Row, facts: Facts) -> float | None:
    """Of a step; None where the row does not say of how many tokens its rate is."""
    if row["step_ms"]:
        return real(row, "step_ms") / 1e3
    if not (row["seq_len"] and row["global_batch_seqs"]):
        return None
    if row["step_time_s"]:
        return real(row, "step_time_s")
    if not row["tokens_per_s_per_gpu"]:
        return None
    tokens = number(row, "global_batch_seqs") * facts.tokens
    return tokens / (real(row, "tokens_per_s_per_gpu") * number(row, "n_gpus"))


def counts_allocated(row: Row) -> bool:
    """Whether its peak is of tensors, and not of what the allocator reserves for them."""
    return bool(re.search("max allocated|peak allocated|max GPU RAM", row["notes"], re.I))


def published_gib(row: Row) -> float | None:
    """Its peak in GiB: a GB that nobody defined is 10^9 bytes, as the letters say."""
    if not row["peak_mem_gb"]:
        return None
    decimal = re.search("definition not stated|max GPU RAM GB", row["notes"])
    return real(row, "peak_mem_gb") * (1e9 / GIB if decimal else 1.0)


def missing_fact(row: Row) -> str:
    """What the row would have to say for its peak to be forecast more closely."""
    notes = row["notes"]
    if "definition not stated" in notes:
        return "GB or GiB; what the peak counts"
    if "allocated-vs-reserved not stated" in notes:
        return "allocated or reserved"
    if "every 2nd layer or per-op not stated" in notes:
        return "which selective rule"
    if re.search("async ?tp", notes, re.I):
        return "buffers of the asynchronous collectives"
    return ""
