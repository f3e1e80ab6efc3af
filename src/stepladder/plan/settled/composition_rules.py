"""Legality rules: options that exclude each other on any model and device.

Each rule looks at a plan without open axes and answers with the problem or with None.
"""

from __future__ import annotations

from stepladder.errors import PlanError
from stepladder.plan.optimizer import PYTHON
from stepladder.plan.plan import Plan

from .settled_plan import SettledPlan


def compression_needs_copies(plan: Plan) -> PlanError | None:
    if plan.compress.kind == "none" or (plan.zero == 0 and plan.layout.replicate > 1):
        return None
    problem = f"{plan.compress} shrinks gradients that whole copies exchange, and there are none"
    return PlanError("compress", problem, "Use ddp with several ranks, or compress=none.")


def compression_needs_whole_matrices(plan: Plan) -> PlanError | None:
    layout = plan.layout
    if plan.compress.kind == "none" or layout.tensor * layout.pipeline * layout.experts == 1:
        return None
    problem = f"{plan.compress} works on whole modules, and {layout} cuts them"
    return PlanError("compress", problem, "Use ddp alone, or compress=none.")


def experts_stay_on_the_device(plan: Plan) -> PlanError | None:
    experts = plan.layout.experts
    if experts == 1 or "parameters" not in plan.offload:
        return None
    problem = f"parameters wait on the host in slices, and experts={experts} are held whole"
    return PlanError("offload", problem, "Use offload=optimizer, or experts=1.")


def factors_need_a_steady_scale(plan: Plan) -> PlanError | None:
    if plan.compress.kind != "powersgd" or not plan.precision.scaled:
        return None
    problem = (
        f"{plan.compress} adds to each step what earlier ones missed, "
        f"and the loss scale of {plan.precision} changes between them"
    )
    return PlanError("compress", problem, "Use bf16, or compress=fp16.")


def parameters_leave_in_slices(plan: Plan) -> PlanError | None:
    if "parameters" not in plan.offload or plan.zero == 3:
        return None
    problem = "parameters can wait on the host only where each block gathers them before use"
    return PlanError("offload", problem, "Use zero3, or offload=optimizer.")


def adafactor_needs_whole_matrices(plan: Plan) -> PlanError | None:
    layout = plan.layout
    sliced = SettledPlan(plan).state_ranks > 1
    cut = sliced or layout.tensor * layout.experts > 1
    if plan.optimizer.name != "adafactor" or not cut:
        return None
    problem = f"adafactor averages rows and columns of whole matrices, and {layout} slices them"
    return PlanError("optimizer", problem, "Use adamw, or ddp with whole copies.")


def whole_modules_stay_whole(plan: Plan) -> PlanError | None:
    pipeline = plan.layout.pipeline
    if plan.compile != "whole" or (pipeline == 1 and plan.zero < 2):
        return None
    stops = f"pipeline={pipeline} cuts it" if pipeline > 1 else f"zero{plan.zero} gathers blocks"
    problem = f"whole takes the module in one piece, and {stops} one by one"
    return PlanError("compile", problem, "Use compile=on or compile=blocks.")


def graphs_need_one_rank(plan: Plan) -> PlanError | None:
    layout = plan.layout
    if not plan.graphs or layout.num_ranks == 1:
        return None
    why = [
        (layout.pipeline > 1, f"pipeline={layout.pipeline} sends and receives between kernels"),
        (plan.zero >= 2, f"zero{plan.zero} gathers parameters to other addresses in every step"),
        (layout.tensor > 1, f"tensor={layout.tensor} has ranks wait for each other inside blocks"),
        (layout.context > 1, f"context={layout.context} gathers keys inside attention"),
        (layout.experts > 1, f"experts={layout.experts} sends as many rows as routers choose"),
        (True, f"ranks of {layout} exchange gradients from hooks that no replay calls"),
    ]
    because = next(reason for present, reason in why if present)
    return PlanError(
        "graphs", f"replay kernels of one rank alone, and {because}", "Leave them out."
    )


def graphs_offload_nothing(plan: Plan) -> PlanError | None:
    if not plan.graphs or not plan.offload:
        return None
    problem = f"keep what they read where it was, and offload={plan.offload[0]} moves it"
    return PlanError("graphs", problem, "Leave offload or graphs out.")


def optimizer_keeps_masters(plan: Plan) -> PlanError | None:
    name = plan.optimizer.name
    if not plan.precision.masters or name in ("adamw", "adam"):
        return None
    if name == "muon":
        if plan.precision.compute != "fp8":
            return None
        problem = f"{plan.precision} has been compared with one device under Adam only"
        return PlanError("optimizer", problem, "Use adamw, or precision=bf16-master.")
    problem = f"{name.removeprefix(PYTHON)} keeps no masters, and {plan.precision} needs them"
    return PlanError("optimizer", problem, "Use adamw, or precision=bf16.")


def compact_state_needs_masters(plan: Plan) -> PlanError | None:
    if plan.state == 16 or plan.precision.masters:
        return None
    problem = f"state={plan.state} says how masters are kept, and {plan.precision} keeps none"
    return PlanError("state", problem, "Use bf16-master, or leave state out.")


def compact_state_is_adams(plan: Plan) -> PlanError | None:
    """Muon's momentum has no form in fewer bytes, nor an update of one parameter by itself."""
    if plan.optimizer.name != "muon":
        return None
    if plan.state != 16:
        problem = f"state={plan.state} is a form of Adam's moments, and muon keeps a momentum"
        return PlanError("state", problem, "Leave state out, or use adamw.")
    if plan.update == "backward":
        problem = "update=backward updates a parameter alone, and muon matrices of a shape together"
        return PlanError("update", problem, "Use update=step, or adamw.")
    return None


def backward_updates_one_by_one(plan: Plan) -> PlanError | None:
    """What needs every gradient, or the parameters before the step, excludes such updates."""
    batch, layout = plan.batch, plan.layout
    cut = next((a for a in ("tensor", "pipeline", "experts") if getattr(layout, a) > 1), "")
    kind = "zero1" if plan.zero else "ddp"
    found = [
        (not plan.precision.masters, f"{plan.precision} updates all parameters at once"),
        (plan.optimizer.clip is not None, f"clip={plan.optimizer.clip} needs all gradients' norm"),
        (bool(cut), f"{cut}= adds up some gradients over ranks after backward"),
        (layout.num_ranks > 1 and plan.zero < 2, f"{kind} has buckets of gradients that stay"),
        (
            batch.micro is not None and batch.micro * layout.data_ranks != batch.sequences,
            f"micro={batch.micro} may add up gradients of several micro-batches",
        ),
        (plan.exact.slices > 0, f"exact={plan.exact} adds up gradients of slices"),
        (plan.recheck > 0, f"recheck={plan.recheck} compares all gradients"),
        (plan.graphs, "graphs=on records backward alone"),
        ("optimizer" in plan.offload, "offload=optimizer updates on the host after backward"),
        ("parameters" in plan.offload, "offload=parameters updates on the host after backward"),
    ]
    why = next((why for present, why in found if present), "")
    if plan.update != "backward" or not why:
        return None
    word = why.split()[0].partition("=")[0]
    ways = {"clip": "Use clip=none", "zero1": "Use zero3", "ddp": "Use zero3"}
    way = ways.get(word, f"Leave {word} out")
    remedy = "Use bf16-master alone" if not plan.precision.masters else way
    problem = f"update=backward frees each gradient, and {why}"
    return PlanError("update", problem, f"{remedy}, or use update=step.")


def float8_masters_need_one_rank(plan: Plan) -> PlanError | None:
    layout, precision = plan.layout, plan.precision
    if not precision.masters or precision.compute != "fp8" or layout.num_ranks == 1:
        return None
    problem = f"{precision} runs on one rank, and {layout} has {layout.num_ranks}"
    return PlanError("precision", problem, "Use bf16-master or fp8, whose parameters are sliced.")


def flash_needs_half(plan: Plan) -> PlanError | None:
    if plan.attention != "flash" or plan.precision.work != "float32":
        return None
    problem = f"the flash kernel works in 16 bits, and {plan.precision} does not"
    return PlanError("attention", problem, "Use bf16, or attention=auto.")
