"""The optimizer and learning-rate schedule of a DeepSpeed file, as words of a plan and a recipe.

What a file leaves out is DeepSpeed's default, not ours: a plan that trains otherwise than the file
would be a change without a word.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepladder.errors import PlanError
from stepladder.plan.learning_rate import Rate

from .conversion import Section

OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "sgd": "sgd", "fusedadam": "adamw"}
SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
WARMUP = 1000  # steps of a schedule that names none


def optimizer(top: Section, peak: float | None) -> Iterator[str]:
    """The plan's words for the optimizer; `peak` is the schedule's peak learning rate."""
    section = top.section("optimizer")
    clip = top.number("gradient_clipping")
    kind = section.word("type")
    name = OPTIMIZERS.get(kind.lower())
    if kind and name is None:
        section.skip("type", "unsupported", f"{kind} is not here; adamw stands in its place")
    params = section.section("params")
    if name == "adam" and params.switch("adam_w_mode", True):
        name = "adamw"  # what DeepSpeed makes of its Adam unless told not to
    words = [name or "adamw", *rate(params, peak, named=bool(name)), *decay(params, name)]
    if name == "sgd":
        words += setting(params, "momentum")
    elif name:
        if (betas := params.pair("betas")) or "betas" not in params.table:
            words.append("betas={!r},{!r}".format(*(betas or (0.9, 0.999))))
        words += setting(params, "eps")
    if clip:
        words.append(f"clip={clip!r}")
    params.skip_all("not needed", "fused where torch has it", "torch_adam", "adam_w_mode", "fused")
    params.skip_all("unsupported", "the largest square so far; ours forgets", "amsgrad")
    if not params.switch("bias_correction", True):
        params.skip("bias_correction", "unsupported", "the first steps' means are always mended")
    params.skip_unread()
    section.skip_all("not needed", "the engine's own switch", "legacy_fusion")
    section.skip_unread()
    if len(words) > 1 or kind:
        yield f"optimizer={' '.join(words)}"


def rate(params: Section, peak: float | None, *, named: bool) -> list[str]:
    """The peak learning rate: the schedule's overrides the optimizer's."""
    lr = params.number("lr")
    if peak is not None:
        if lr not in (None, peak):
            params.skip("lr", "not needed", "the scheduler's warmup_max_lr stands in its place")
        return [f"lr={peak!r}"]
    if lr is None and named and "lr" not in params.table:
        lr = 1e-3
    return [] if lr is None else [f"lr={lr!r}"]


def decay(params: Section, name: str | None) -> list[str]:
    """Weight decay; the default is 0 in DeepSpeed's own kernels and 0.01 in torch's AdamW."""
    from_torch = params.switch("torch_adam") and name == "adamw"
    if from_torch and "weight_decay" not in params.table:
        return ["wd=0.01"]
    value = params.number("weight_decay")
    return [] if value is None else [f"wd={value!r}"]


def setting(params: Section, key: str) -> list[str]:
    value = params.number(key)
    return [] if value is None else [f"{key}={value!r}"]


def schedule(section: Section) -> tuple[str, float | None]:
    """The schedule as a recipe writes it, and its peak learning rate where the file has one."""
    kind = section.word("type")
    params = section.section("params")
    section.skip_unread()
    if kind not in SCHEDULES:
        if kind:
            known = f"{kind}; constant, linear, cosine or wsd are here"
            section.skip("type", "unsupported", known)
        params.skip_unread()
        return "", None
    warmup = params.count("warmup_num_steps", 0)
    if "warmup_num_steps" not in params.table:
        warmup = WARMUP
    steps = params.count("total_num_steps")
    peak = params.number("warmup_max_lr")
    floor = params.number("cos_min_ratio")
    skip_warmup_shape(params)
    words = [SCHEDULES[kind], *([f"warmup={warmup}"] if warmup else [])]
    if kind == "WarmupLR":
        return " ".join(words), peak
    if not steps:
        text = " ".join([*words, "steps=N"])
        section.skip("type", "open", f"where it ends is not in the file; write rate '{text}'")
        return "", peak
    words += [f"steps={steps}", *([f"floor={floor!r}"] if floor else [])]
    try:
        return str(Rate.parse(" ".join(words))), peak
    except PlanError as wrong:
        section.wrong.append(wrong)
        return "", peak


def skip_warmup_shape(params: Section) -> None:
    """Report a warmup that is not ours, which is linear from 0."""
    if params.word("warmup_type", "log") != "linear":
        words = "it rises by the logarithm unless told linear; ours is a straight line"
        params.skip("warmup_type", "unsupported", words)
    for key in ("warmup_min_lr", "warmup_min_ratio"):
        if params.number(key):
            params.skip(key, "unsupported", "ours rises from 0")
    params.skip_all("not needed", "a resumed run knows its step", "last_batch_iteration")
    params.skip_unread()
