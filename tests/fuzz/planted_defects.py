"""The defects to plant: a repair undone, or a line of the engine broken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """A text of a file under src/stepladder, and what takes its place."""

    file: str
    right: str
    wrong: str


@dataclass(frozen=True)
class Defect:
    words: str
    changes: tuple[Change, ...]
    where: tuple[str, ...] = ()  # patterns of the problems that have a place for it; none: all


def defect(words: str, *changes: tuple[str, str, str], where: str = "") -> Defect:
    return Defect(words, tuple(Change(*change) for change in changes), tuple(where.split()))


DEFECTS: tuple[Defect, ...] = (
    defect("parameters without dimensions or elements reach FSDP2",
           ("rungs/data_parallel/replicated_parameters.py",
            "return not (parameter.dim() and parameter.numel() and sliced)",
            "return False")),
    defect("a module that keeps a computed tensor cannot be copied",
           ("model/tracing/copy_module.py", "if value.grad_fn is not None:", "if False:"),
           where='"cached"'),
    defect("hooks on parameters are dropped by zero2 and zero3",
           ("rungs/climb.py", "if whole or self.hooks is None:", "if True:")),
    defect("recomputation updates statistics twice",
           ("rungs/memory/recompute.py", "if self.before is not None:", "if False:")),
    defect("evaluation puts frozen BatchNorms back into training",
           ("model/training_mode.py", "            part.training = mode",
            "            part.training = True"),
           where='"eval" "batch"'),
    defect("buffers of another type than the parameters are cast",
           ("rungs/precision/precision.py", "if buffer.dtype in types]", "]")),
    defect("each rank has BatchNorm statistics of its own",
           ("rungs/climb.py", 'if plan.batchnorm == "sync" and', "if False and")),
    defect("tensor cuts are not tried on random weights",
           ("rungs/prove_cuts.py", "                self.check(batch)", "                pass"),
           where='tensor='),
    defect("the fused head is not tried",
           ("kernels/fused_head.py",
            "            self.prove(partial(call, self.module), tree_map(first_row, inputs))",
            "            pass")),
    defect("buffers are broadcast as numbers, which backends do not all send",
           ("rungs/data_parallel/broadcast_parameters.py",
            "sent = [as_bytes(tensor) for tensor in bucket]",
            "sent = [tensor.reshape(-1) for tensor in bucket]")),
    defect("experts are taken for blocks",
           ("model/anatomy/find_anatomy.py", "if not are_experts(module, blocks)", ""),
           where='"experts" zero|ddp|recompute|pipeline'),
    defect("the mean over ranks is not made a sum",
           ("rungs/accumulate.py", "scale(times(weighted, self.gradient_sync.ways))",
            "scale(weighted)")),
    defect("the gradient norm misses the other ranks' shards",
           ("train/optimizer/gradient_norm.py", "each[mine] = world.sum(each[mine], *kind[1])",
            "each[mine] = each[mine]")),
    defect("tied weights of a pipeline keep one stage's gradient",
           ("rungs/pipeline/tied_parameters.py",
            "dist.all_reduce(local(parameter.grad), group=self.groups[first])", "pass"),
           where='"tied" pipeline='),
    defect("a micro-batch of ignored targets only has a loss that is not a number",
           ("rungs/accumulate.py", " if counts else self.zero(outputs, part)", "")),
    defect("every loss counts by its targets when it is cut",
           ("rungs/accumulate.py", "        if self.loss.known:\n            return\n",
            "        return\n")),
    defect("a DataLoader's batches are read whole by every rank",
           ("train/data_loader/shard_loader.py", "    return rows_of(plan, size, data_index)",
            "    return np.arange(size)")),
    defect("extra state is not loaded",
           ("train/checkpointing/rank_state.py", "part.set_extra_state(value)", "pass")),
    defect("ranks take unequal numbers of micro-batches",
           ("rungs/accumulate.py", "[(parts[-1], False)] * idle", "[]")),
    defect("embeddings that renormalise their rows are sharded as others",
           ("rungs/data_parallel/renormalised_rows.py",
            "        if problem:\n", "        if False:\n"),
           where='max_norm zero|ddp'),
    defect("calls are counted in every micro-batch",
           ("rungs/forward_effects/call_counters.py", "if not self.first:", "if False:")),
    defect("selective recomputation trusts results that were written to",
           ("rungs/memory/recompute.py", 'if depth == "cheap" and are_exposed(block):',
            "if False:"),
           where='"overwrite" recompute=selective'),
    defect("a power iteration advances in every micro-batch",
           ("rungs/forward_effects/call_counters.py", "kept += range(numbers, len(places))",
            "kept += ()"),
           where='spectral_norm accumulate='),
    defect("all stages of a pipeline write what they share",
           ("train/checkpointing/sharded_state.py",
            'if climbed.shared.homes.get(first_name, place["pipeline"]) != place["pipeline"]:',
            "if False:")),
    defect("a parameter without elements is not saved",
           ("train/checkpointing/sharded_state.py", "if not prod(shape):", "if False:")),
    defect("a slice without elements is of another model",
           ("train/checkpointing/sharded_state.py",
            "for name, tensor in (*trained, *untrained(climbed))",
            "for name, tensor in (*trained, *untrained(climbed)) if local(tensor).numel()"),
           where='"odd" zero'),
    defect("float64 targets meet outputs in float32",
           ("train/engine.py", "made.narrow() if self.climbed.narrows else made", "made"),
           where='"float64"'),
    defect("every micro-batch and rank writes running statistics on its own",
           ("rungs/climb.py", "    run.follow_statistics(module)\n", ""),
           where='"statistic" accumulate=|zero|ddp'),
    defect("a rank sends no gradient for what it did not use",
           ("rungs/data_parallel/zero2_zero3.py",
            "module.set_reduce_scatter_unused_params(True)", "pass"),
           where='"experts"|"branch" zero[23]'),
    defect("a named loss is refused only where a target is valid",
           ("rungs/accumulate.py", "self.loss.takes(outputs)", "pass"),
           where='"tuple"|"dict" "ignored"'),
    defect("parameters that share memory are cut apart",
           ("rungs/overlapping_parameters.py", "if start < end:", "if False:")),
    defect("reading the anatomy advances a power iteration",
           ("model/anatomy/find_anatomy.py",
            'parameters_of(module.get_submodule(end)).get("weight") for end',
            "module.get_submodule(end).weight for end"),
           where='spectral_norm'),
    defect("the trial of a loss leaves DDP waiting",
           ("rungs/loss_trial.py", "    @torch.no_grad()\n    def outputs_of",
            "    def outputs_of"),
           where='ddp "weighted"|"focal"|"row_mean"|"masked_mean"'),
    defect("an expanded buffer of one number cannot be sent",
           ("checkpoint/tensor_bytes.py", "if flat.stride(0) != 1:", "if False:"),
           where='expanded_one'),
    defect("a loss's parameters are each rank's own",
           ("rungs/climb.py", "        if self.loss_module:", "        if False:"),
           where='"temperature" ddp|zero'),
)  # fmt: skip
