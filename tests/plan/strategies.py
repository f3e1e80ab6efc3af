"""Any plan, any layout, any text: what the laws of this folder are tried on."""

from hypothesis import strategies as st

from stepladder.plan import (
    PRECISIONS,
    BatchSplit,
    Layout,
    Optimizer,
    Plan,
    Rate,
    Recompute,
    Schedule,
)
from stepladder.plan.optimizer import Group
from stepladder.plan.options import Compress, Exact

ways = st.integers(1, 6)
counts = st.integers(1, 2**31 - 1)
sizes = st.integers(1, 2**50 - 1)
numbers = st.floats(0, 1e300, allow_subnormal=True)
shares = st.floats(0, 1, exclude_max=True)
letters = st.characters(exclude_categories=("Cs", "Zs", "Zl", "Zp", "Cc"), exclude_characters=",:")
names = st.text(letters, min_size=1, max_size=12)

layouts = st.builds(Layout, ways, ways, ways, ways, ways)


def open_one(layout: Layout, axis: str | None) -> Layout:
    named = {name: getattr(layout, name) for name in Layout.__slots__}
    return Layout(**{**named, **({axis: -1} if axis else {})})


open_layouts = st.builds(open_one, layouts, st.sampled_from([None, *Layout.__slots__]))
batches = st.builds(BatchSplit, *[st.none() | counts] * 3)

recomputes = st.one_of(
    st.sampled_from([Recompute(), Recompute("blocks"), Recompute("selective")]),
    counts.map(lambda every: Recompute("every", every=every)),
    sizes.map(lambda size: Recompute("budget", budget_bytes=size)),
)
compressions = st.one_of(
    st.sampled_from([Compress(), Compress("bf16"), Compress("fp16")]),
    counts.map(lambda rank: Compress("powersgd", rank=rank)),
)
schedules = st.one_of(
    st.sampled_from([Schedule("gpipe"), Schedule("1f1b"), Schedule("zero-bubble", 2)]),
    counts.map(lambda virtual: Schedule("interleaved", virtual)),
)
groups = st.builds(Group, names, numbers, st.none() | numbers)
shared_groups = st.builds(
    Group, names, numbers, st.none() | numbers, st.sampled_from(["", "muon", "adamw"])
)
common = {
    "lr": numbers,
    "wd": numbers,
    "clip": st.none() | numbers,
    "layers": numbers,
    "groups": st.lists(groups, max_size=3).map(tuple),
}
optimizers = st.one_of(
    st.builds(Optimizer, name=st.just("sgd"), momentum=numbers, **common),
    st.builds(Optimizer, name=st.just("adafactor"), **common),
    st.builds(
        Optimizer,
        name=st.sampled_from(["adam", "adamw"]),
        betas=st.tuples(shares, shares),
        eps=numbers,
        **common,
    ),
    st.builds(
        Optimizer,
        name=st.just("muon"),
        momentum=shares,
        adamw_lr=numbers,
        nesterov=st.sampled_from(["on", "off"]),
        ns_steps=st.integers(1, 99),
        adjust=st.sampled_from(["original", "match_rms_adamw"]),
        variant=st.sampled_from(["muon", "normuon"]),
        betas=st.tuples(shares, shares),
        eps=numbers,
        **{**common, "groups": st.lists(shared_groups, max_size=3).map(tuple)},
    ),
)
rates = st.one_of(
    st.builds(Rate, st.just("constant"), st.integers(0, 10**6)),
    st.builds(
        lambda kind, warmup, more, floor, decay: Rate(kind, warmup, warmup + more, floor, decay),
        st.sampled_from(["linear", "cosine", "wsd"]),
        st.integers(0, 500),
        st.integers(1, 500),
        st.floats(0, 1),
        st.floats(0, 1),
    ),
)
offloads = st.sets(st.sampled_from([0, 1, 2])).map(
    lambda chosen: tuple(("optimizer", "parameters", "activations")[i] for i in sorted(chosen))
)
raw_plans = st.builds(
    Plan,
    precision=st.sampled_from(list(PRECISIONS.values())),
    keep=st.lists(names, max_size=3).map(tuple),
    layout=open_layouts,
    zero=st.integers(0, 3),
    batch=batches,
    recompute=recomputes,
    offload=offloads,
    compress=compressions,
    schedule=schedules,
    compile=st.booleans() | st.sampled_from(["blocks", "whole"]),
    kernels=st.booleans()
    | st.sampled_from([("head",), ("layout", "matmuls"), ("head", "matmuls")]),
    graphs=st.booleans(),
    attention=st.sampled_from(["auto", "flash", "plain"]),
    batchnorm=st.sampled_from(["sync", "local"]),
    exact=st.sampled_from(["none", "runs", "ranks:1", "ranks:32"]).map(Exact.parse),
    recheck=st.sampled_from([0, 1, 1000]),
    update=st.sampled_from(["step", "backward"]),
    state=st.sampled_from([16, 14, 10, 7]),
    prefetch=st.none() | st.integers(0, 9),
    gathered=st.none() | st.integers(1, 99),
    memory_bytes=st.none() | sizes,
    optimizer=optimizers,
)
plans = raw_plans.filter(lambda plan: not plan.problems())  # those a user could have meant
