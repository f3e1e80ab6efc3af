"""Searching for the best plan: every candidate is forecast, with early pruning.

Memory is forecast before time, and two orders save most of the work: if a micro-batch does not fit
with everything recomputed, no larger one does; if it fits with less recomputed, recomputing more
only costs. What is left out is still listed with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from stepladder.hardware import Cluster
from stepladder.plan import BF16, FP32, Plan, Precision
from stepladder.plan.precision import BF16_MASTER, FP16, TF32
from stepladder.planner.memory.forecast_memory import forecast_memory
from stepladder.planner.time.collective_time import network_of
from stepladder.planner.time.device_speed import Speed, speed_of
from stepladder.planner.time.micro_batch_time import setting_of
from stepladder.planner.time.step_time import step_time
from stepladder.record import Calibration, Memory
from stepladder.workload import Facts

from .candidates import DEPTHS, PlanSkeleton, fill_skeleton, micro_batches, plan_skeletons
from .forecast import MARGIN, forecast, host_fits, memory_limit
from .legality import plan_problems, settle_unchecked
from .parse_inputs import check_batch, check_calibration, cluster_of, facts_of, plan_of
from .search_result import GIB, Choices, RankedPlan, RejectedPlan
from .training_software import OURS

TOKENS_PER_STEP = 2**19  # of a batch that nobody gave, at least
RANKED = 20  # plans whose forecast is kept in full
# Host memory is slow: only where the device's own does not suffice.
OFFLOADS: tuple[tuple[str, ...], ...] = ((), ("optimizer",), ("optimizer", "activations"))
LARGER = ("A100-80GB", "H200", "B300")  # tried in turn where no number of the same would do
NEEDED = 0.25  # of what the leanest plan takes on all devices: with less nothing is tried
MOST_DEVICES = 16384  # where looking for a cluster that would do ends


def search(
    facts: Facts | str,
    cluster: Cluster | str,
    *,
    batch: int | None = None,
    start: Plan | None = None,
    calibration: Calibration | None = None,
    price: float | None = None,
) -> Choices:
    """Rank every legal plan that fits by its throughput; list the others with their reasons.

    Args:
        facts: of the workload, or a model's name.
        batch: sequences of one step; None: usual for the model.
        start: what is not searched: precision, optimizer, compilation.
        price: dollars of one device for one hour; None: of the table.

    >>> import stepladder as sl
    >>> choices = sl.search("gpt2", "8 x H100-80GB", batch=64)
    >>> choices.best.plan.layout.num_ranks, choices.num_plans > 10
    (8, True)
    """
    check_batch(batch)
    check_calibration(calibration)
    facts, cluster = facts_of(facts), cluster_of(cluster, price)
    base = default_plan(cluster, calibration) if start is None else plan_of(start)
    size = batch or default_batch(facts, cluster)
    found = rank_plans(Search(facts, cluster, base, size, calibration))
    if start is None and not found.ranked and base.precision == BF16:  # faster than the host
        lean = replace(base, precision=BF16_MASTER, state=14)
        less = rank_plans(Search(facts, cluster, lean, size, calibration))
        found = replace(less, rejected=found.rejected + less.rejected)
    for offload in () if cluster.device.is_cpu else OFFLOADS[1:]:
        if not found.ranked:
            away = rank_plans(
                Search(facts, cluster, replace(base, offload=offload), size, calibration)
            )
            found = replace(away, rejected=found.rejected + away.rejected)
    return found if found.ranked else replace(found, instead=smallest_cluster(found, base))


@dataclass(frozen=True, slots=True)
class Search:
    facts: Facts
    cluster: Cluster
    base: Plan
    batch: int
    calibration: Calibration | None

    def run(self) -> Iterator[RankedPlan | RejectedPlan]:
        speed = speed_of(self.cluster.device, self.base.precision, self.calibration)
        for skeleton in plan_skeletons(self.facts, self.cluster):
            ways = skeleton.layout.data_ranks
            sizes = micro_batches(self.batch, ways)
            yield from self.fill_skeleton_sizes(skeleton, sizes, speed)
            if not sizes:
                plan = fill_skeleton(self.base, skeleton, self.batch, 1, DEPTHS[0])
                yield RejectedPlan(
                    plan, f"a batch of {self.batch} does not divide by {ways} data ranks"
                )

    def fill_skeleton_sizes(
        self, skeleton: PlanSkeleton, sizes: list[int], speed: Speed
    ) -> Iterator[RankedPlan | RejectedPlan]:
        """Try micro-batches from the smallest until one does not fit."""
        for index, micro in enumerate(sizes):
            found = list(self.try_recompute(skeleton, micro, speed))
            yield from found
            if isinstance(found[-1], RejectedPlan) and found[-1].peak_bytes is not None:
                for larger in sizes[index + 1 :]:
                    plan = fill_skeleton(self.base, skeleton, self.batch, larger, DEPTHS[-1])
                    yield RejectedPlan(
                        plan, f"memory: needs more than micro={micro}, which does not fit"
                    )
                return

    def try_recompute(
        self, skeleton: PlanSkeleton, micro: int, speed: Speed
    ) -> Iterator[RankedPlan | RejectedPlan]:
        """Recompute as little as fits; the last result says whether anything did."""
        for index, depth in enumerate(DEPTHS):
            plan = fill_skeleton(self.base, skeleton, self.batch, micro, depth)
            if broken := plan_problems(self.facts, plan, self.cluster):
                yield RejectedPlan(plan, str(broken[0]))
                return
            result = self.forecast_plan(plan, speed)
            if isinstance(result, RankedPlan):
                for more in DEPTHS[index + 1 :]:
                    wasteful = replace(plan, recompute=more)
                    yield RejectedPlan(wasteful, f"recomputes what fits with recompute={depth}")
            yield result
            if isinstance(result, RankedPlan):
                return

    def forecast_plan(self, plan: Plan, speed: Speed) -> RankedPlan | RejectedPlan:
        """Forecast memory, and time only if the plan fits."""
        memory, host_bytes = forecast_memory(self.facts, plan, self.cluster, self.calibration)
        limit, peak = memory_limit(plan, self.cluster), memory.peak_bytes
        if limit is not None and peak > MARGIN * limit:
            return RejectedPlan(plan, memory_shortfall(memory, MARGIN * limit), peak)
        if not host_fits(host_bytes, self.cluster):
            return RejectedPlan(plan, f"host memory: needs {host_bytes / GIB:.1f} GiB a device")
        settled, network = (
            settle_unchecked(plan, self.cluster),
            network_of(self.cluster, self.calibration),
        )
        setting = setting_of(self.facts, settled, speed, network, OURS)
        return RankedPlan(plan, step_time(self.facts, setting, self.cluster).step_seconds, peak)


def memory_shortfall(memory: Memory, limit: float) -> str:
    owner, size = memory.largest_owner()
    needs = f"memory: needs {memory.peak_bytes / GIB:.1f} GiB of {limit / GIB:.1f}"
    return f"{needs}; {owner} {size / GIB:.1f} GiB"


def rank_plans(search_: Search) -> Choices:
    """All plans of one search, ranked."""
    found = list(search_.run())
    fitting = [each for each in found if isinstance(each, RankedPlan)]
    ranked = tuple(sorted(fitting, key=lambda choice: (choice.seconds, choice.peak_bytes)))
    facts, cluster, calibration = search_.facts, search_.cluster, search_.calibration
    best = tuple(forecast(facts, each.plan, cluster, calibration) for each in ranked[:RANKED])
    rejected = tuple(each for each in found if isinstance(each, RejectedPlan))
    return Choices(facts, cluster, search_.batch, ranked, rejected, best, calibration)


def default_plan(cluster: Cluster, calibration: Calibration | None = None) -> Plan:
    """What is not searched: compiled, and with the kernels that one device alone may use."""
    on_gpu = not cluster.device.is_cpu
    alone = on_gpu and cluster.num_devices == 1
    return Plan(precision=default_precision(cluster, calibration), compile=on_gpu, kernels=alone)


def default_precision(cluster: Cluster, calibration: Calibration | None = None) -> Precision:
    """The fastest type that trains like float32 without being asked for.

    Of a card that the table does not know, that which was measured to be; of a processor fp32.
    """
    choices = (BF16, FP16, TF32, FP32)
    measured = calibration.matrix_flops_per_second if calibration else {}
    if not cluster.device.peaks and not cluster.device.is_cpu and measured:
        known = [p for p in choices if p.compute in measured]
        return max(known, key=lambda p: measured[p.compute], default=FP32)
    return next((p for p in choices if cluster.device.peak(p.compute) is not None), FP32)


def default_batch(facts: Facts, cluster: Cluster) -> int:
    """At least one sample for each device, and half a million tokens where those are few."""
    devices = cluster.num_devices
    if facts.tokens == 1:
        return devices * 32
    return devices * max(1, TOKENS_PER_STEP // (devices * facts.tokens))


def smallest_cluster(choices: Choices, base: Plan) -> Choices | None:
    """The fewest nodes of the same kind on which something fits, or of the next larger devices."""
    leanest = min((each.peak_bytes for each in choices.rejected if each.peak_bytes), default=0)
    needed = NEEDED * leanest * choices.cluster.num_devices
    if found := fewest_nodes(choices, base, needed):
        return found
    own = choices.cluster.device
    for name in () if own.is_cpu else LARGER:
        node = Cluster.parse(name)
        node = replace(node, devices_per_node=node.device.devices_per_node)
        if (node.device.memory_bytes or 0) > (own.memory_bytes or 0):
            precise = replace(base, precision=default_precision(node))
            on_one = replace(choices, cluster=node, calibration=None)
            if found := rank_plans_on(on_one, 1, precise) or fewest_nodes(on_one, precise, needed):
                return found
    return None


def fewest_nodes(choices: Choices, base: Plan, needed: float) -> Choices | None:
    """More than there are, on which something fits: doubling, then halving between."""
    each = choices.cluster.devices_per_node
    memory = (choices.cluster.memory_bytes_per_device or 1) * each
    low = nodes = max(choices.cluster.num_nodes, int(needed / memory))
    found: Choices | None = None
    while found is None and nodes * each < MOST_DEVICES:
        low, nodes = nodes, nodes * 2
        found = rank_plans_on(choices, nodes, base)
    while found is not None and nodes - low > 1:
        middle = (low + nodes) // 2
        better = rank_plans_on(choices, middle, base)
        nodes, low = (middle, low) if better else (nodes, middle)
        found = better or found
    return found


def rank_plans_on(choices: Choices, num_nodes: int, base: Plan) -> Choices | None:
    cluster = replace(choices.cluster, num_nodes=num_nodes)
    base = replace(base, kernels=cluster.num_devices == 1 and base.kernels)
    batch = default_batch(choices.facts, cluster)
    found = rank_plans(Search(choices.facts, cluster, base, batch, choices.calibration))
    return found if found.ranked else None
