"""Achievable speeds of a device: the constants of the time forecast, each with its reason.

A datasheet's peak is an instruction rate. Three things keep a training step below it:

    issue   kernels cannot feed the matrix units in every cycle (`ISSUE`)
    watts   at its power limit a chip lowers its clock, and with it the voltage, so that the rate
            falls with the square root of the watts it lacks (`JOULES_PER_TERAFLOP`)
    edges   a product also moves its operands, some of them more than once (`EDGES`), and at the
            edges of tiles nothing hides that: its time is work / rate + bytes / bandwidth, a sum
            and not the larger of the two, so that narrow products are slower

Energy per operation is taken in proportion to the bits, so the share of the peak that watts allow
is the same in every type. A `Calibration` replaces what it has measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stepladder.hardware import Device
from stepladder.hardware.power import usual_watts
from stepladder.plan import Precision
from stepladder.plan.precision import BYTES
from stepladder.record import Calibration
from stepladder.record.calibration import HOST

ISSUE = 0.85  # of all cycles, by the best library kernels on large square matmuls

# Energy of 10^12 16-bit operations at the peak's own clock, by the process a family is made in:
# 12 nm, 7-8 nm, 4-5 nm, 4 nm of 2024. Large dense matmuls hold 0.81 of peak on an A100 at 400 W,
# 0.66 on an H100 at 700 W, 0.54 on one at 350 W: one number per process gives them.
PROCESSES = {
    3.0: ("P100", "V100", "T4", "MI210", "MI250"),
    1.95: ("A100", "A800", "A10", "A30", "A40", "A6000", "RTX3090"),
    1.6: ("H", "GH", "L4", "RTX4090", "RTX6000", "MI3", "Gaudi", "TPU"),
    1.05: ("B", "GB", "RTX5090", "MI35"),
}
USUAL_JOULES_PER_TERAFLOP = 1.6  # of a device whose process is not listed

LIBRARIES = {"AMD": 0.5}  # of what NVIDIA's reach, in published training runs of 2024-25

EDGES = 1.5  # times an operand is read or written: neighbouring tiles read the same rows
BANDWIDTH = 0.85  # of the datasheet's, by a kernel that only streams

# Attention forward, as a share of the 16-bit peak; backward does 2.5 times the work. The flash
# kernels keep an Ampere busier than a Hopper, whose asynchronous units they were not written for;
# on a Blackwell they gain no more than its 148 processors over 132, 1.12 of what a Hopper does.
FLASH = {"A": 0.50, "H": 0.36, "G": 0.36, "B": 0.18}
USUAL_FLASH = 0.36
# Time of its softmax over that of its products, heads 128 wide: flash attention 2 does 265 and 328
# TFLOP/s on an H100, forward and backward, with heads of 64 and of 128.
EXPONENTIALS = 0.31

# Kernels that do not stream, as shares of the bandwidth they have: by rows, across strides or
# between types half of it or less is reached; where bytes do not set the pace, elements a second.
# Read off an H200's kernels one by one (benchmarks/results/planner_gpu.md).
NON_STREAMING = {2: 0.38, 4: 0.5}  # by an element's bytes
GROUP_ELEMENTS, POOL_ELEMENTS = 0.1, 0.035  # a second, per byte/s of bandwidth
CHANNEL_ELEMENTS = 1.5e9  # a second, of one channel's group of threads

# Convolutions, as shares of what matmuls reach. For matrix units a library moves images into the
# order its kernels read and back again, unless they are stored so; vector units read them as they
# are. Few channels, colours, fill no matrix unit: 26 of the 45 TFLOP/s that an H200 has in fp32.
CONVOLUTION_SHARE, CHANNELS_LAST_SHARE, FEW_CHANNEL_SHARE = 0.35, 0.8, 0.6
FEW_CHANNELS = 8  # below which matrix units read padding

LAUNCH_SECONDS = 12e-6  # of the host, per kernel of eager torch with autograd; 26 on shared hosts
KERNEL_SECONDS = 3e-6  # of the device, until a kernel is at its pace, and after
NOMINAL = (1e12, 50e9)  # FLOP/s and bytes/s that rank plans where the device's own are unknown


@dataclass(frozen=True, slots=True)
class Speed:
    matrix: float  # FLOP/s of large matmuls in the plan's compute type
    wide: float  # the same for matmuls that stay in the work type: the head
    attention: float  # FLOP/s
    exponentials: float  # time of attention's softmax over that of its products; 0: in the rate
    bandwidth: float  # bytes/s of kernels that stream
    launch_seconds: float
    work_bytes: int  # of an activation
    operand_bytes: float  # of what the matrix units read
    casts: bool  # operands are converted before each matmul, as fp8's are
    known: bool = True  # False: rates are nominal and only compare plans
    edges: float = EDGES
    wide_edges: float = EDGES
    update_bandwidth: float = 0.0  # bytes/s of the optimizer's update; 0: as `bandwidth`
    non_streaming: Mapping[int, float] = field(
        default_factory=dict
    )  # bytes/s, by an element's bytes
    kernel_rates: Mapping[str, float] = field(
        default_factory=dict
    )  # elements/s; "channel": of a lane
    convolution: float = 0.0  # FLOP/s
    channels_last: float = 0.0  # FLOP/s of convolutions whose images have their channels innermost
    convolution_edges: float = EDGES
    few_channels: float = 0.0  # FLOP/s of convolutions of few channels
    single: float = 0.0  # FLOP/s of matmuls in fp32
    kernel_seconds: float = KERNEL_SECONDS
    launch_factors: Mapping[str, float] = field(default_factory=dict)

    def matmul(self, flops: float, elements: float, *, wide: bool = False) -> float:
        """Seconds of matmuls of so many FLOPs that read and write so many elements."""
        rate, size = (self.wide, self.work_bytes) if wide else (self.matrix, self.operand_bytes)
        edges = self.wide_edges if wide else self.edges
        return flops / rate + edges * elements * size / self.bandwidth

    def grouped(self, flops: float, elements: float, *, single: bool) -> float:
        """Seconds of grouped matmuls, in fp32 or in the work type."""
        rate, size = (self.single, BYTES["float32"]) if single else (self.wide, self.work_bytes)
        return flops / rate + self.wide_edges * elements * size / self.bandwidth

    def convolve(
        self, flops: float, elements: float, channels: int, *, channels_last: bool = False
    ) -> float:
        """Seconds of a convolution whose window is so many channels deep."""
        if channels < FEW_CHANNELS:
            return flops / self.few_channels
        rate = max(self.channels_last, self.convolution) if channels_last else self.convolution
        moved = self.convolution_edges * elements * self.work_bytes
        return flops / rate + moved / self.bandwidth

    def slow(self, kind: str, elements: float, lanes: int) -> float:
        """Seconds of a kernel that has a rate of its own; a rough one where it is unknown."""
        pace = self.kernel_rates.get(kind)
        rough = elements * self.work_bytes / self.non_streaming[self.work_bytes]
        return rough if pace is None else max(rough, elements / (pace * max(lanes, 1)))


def speed_of(device: Device, precision: Precision, calibration: Calibration | None = None) -> Speed:
    """The rates that the device achieves in this precision."""
    found = under_cap(calibration, device) if calibration else Calibration()
    work = "bf16" if precision.compute == "fp8" else precision.compute
    peak, wide = device.peak(precision.compute), device.peak(work)
    flat, stream = device.bandwidth_bytes_per_second, found.bandwidth_bytes_per_second
    measured = found.matrix_flops_per_second
    known = bool((precision.compute in measured or peak) and (stream or flat))
    share = sustained_share(device)
    half = device.peak("bf16") or device.peak("fp16") or wide or NOMINAL[0]
    matrix = measured.get(precision.compute) or (peak or NOMINAL[0]) * share
    head = measured.get(work) or (wide or NOMINAL[0]) * share
    bandwidth = stream or (flat or NOMINAL[1]) * BANDWIDTH
    plain = device.is_cpu or work == "fp32"  # no matrix unit is asked
    return Speed(
        matrix=matrix,
        wide=head,
        attention=found.attention_flops_per_second.get(work)
        or flash_rate(device, min(half, wide or half)),
        exponentials=0.0 if work in found.attention_flops_per_second else EXPONENTIALS,
        bandwidth=bandwidth,
        launch_seconds=(found.launch_seconds or LAUNCH_SECONDS) * found.correction(HOST),
        work_bytes=BYTES[precision.work],
        operand_bytes=1 if precision.compute == "fp8" else BYTES[precision.work],
        casts=precision.compute == "fp8",
        known=known,
        edges=found.matrix_edges.get(precision.compute, EDGES),
        wide_edges=found.matrix_edges.get(work, EDGES),
        update_bandwidth=found.optimizer_bytes_per_second or 0.0,
        non_streaming={**default_non_streaming(device, bandwidth), **found.rough_bytes_per_second},
        kernel_rates=found.elements_per_second or default_kernel_rates(device, bandwidth),
        convolution=found.convolution_flops_per_second.get(work)
        or head * (1.0 if plain else CONVOLUTION_SHARE),
        channels_last=head * (1.0 if plain else CHANNELS_LAST_SHARE),
        convolution_edges=found.convolution_edges.get(work, EDGES),
        single=measured.get("fp32") or (device.peak("fp32") or wide or NOMINAL[0]) * share,
        few_channels=found.colour_flops_per_second.get(work) or few_channels_rate(device, head),
        kernel_seconds=kernel_seconds_of(device, found),
        launch_factors=found.launch_factors,
    )


def few_channels_rate(device: Device, head: float) -> float:
    if device.is_cpu:
        return head
    single = device.peak("fp32")
    return FEW_CHANNEL_SHARE * (single * sustained_share(device) if single else head)


def kernel_seconds_of(device: Device, found: Calibration) -> float:
    if found.kernel_seconds is not None:
        return found.kernel_seconds
    return 0.0 if device.is_cpu else KERNEL_SECONDS


def default_non_streaming(device: Device, bandwidth: float) -> dict[int, float]:
    return {
        size: bandwidth * (1.0 if device.is_cpu else share) for size, share in NON_STREAMING.items()
    }


def default_kernel_rates(device: Device, bandwidth: float) -> dict[str, float]:
    if device.is_cpu:
        return {}
    pool, group = POOL_ELEMENTS * bandwidth, GROUP_ELEMENTS * bandwidth
    return {"pool": pool, "group": group, "channel": CHANNEL_ELEMENTS}


def sustained_share(device: Device) -> float:
    """The share of its peak that a device sustains in large matmuls, hour after hour."""
    half = device.peak("bf16") or device.peak("fp16")
    libraries = LIBRARIES.get(device.vendor, 1.0)
    if not half or not device.power_watts:
        return ISSUE * libraries
    needed_watts = joules_per_teraflop(device.name) * half / 1e12
    return min(ISSUE, (device.power_watts / needed_watts) ** 0.5) * libraries


def joules_per_teraflop(name: str) -> float:
    """By the longest family name that this device's begins with."""
    fits = [(len(f), joules) for joules, fs in PROCESSES.items() for f in fs if name.startswith(f)]
    return max(fits)[1] if fits else USUAL_JOULES_PER_TERAFLOP


def flash_rate(device: Device, peak: float) -> float:
    busy = FLASH.get(device.name[:1], USUAL_FLASH)
    return peak * busy * attention_under_cap(device) * LIBRARIES.get(device.vendor, 1.0)


def under_cap(found: Calibration, device: Device) -> Calibration:
    """What was measured at the board's limit, as a cap would have it."""
    usual = usual_watts(device)
    if usual is None or device.power_watts is None or device.power_watts == usual:
        return found
    product = sustained_share(device) / sustained_share(replace(device, power_watts=usual))

    def slowed(rates: Mapping[str, float], share: float) -> dict[str, float]:
        return {compute: rate * share for compute, rate in rates.items()}

    return replace(
        found,
        matrix_flops_per_second=slowed(found.matrix_flops_per_second, product),
        convolution_flops_per_second=slowed(found.convolution_flops_per_second, product),
        colour_flops_per_second=slowed(found.colour_flops_per_second, product),
        attention_flops_per_second=slowed(
            found.attention_flops_per_second, attention_under_cap(device)
        ),
    )


def attention_under_cap(device: Device) -> float:
    """The share of its speed that attention keeps under a cap: it needs fewer watts than products,
    in proportion to how busy it keeps the matrix units."""
    usual, half = usual_watts(device), device.peak("bf16") or device.peak("fp16")
    if usual is None or device.power_watts is None or not half:
        return 1.0
    busy = FLASH.get(device.name[:1], USUAL_FLASH)
    needed_watts = busy * joules_per_teraflop(device.name) * half / 1e12
    held, before = (min(1.0, watts / needed_watts) for watts in (device.power_watts, usual))
    return (held / before) ** 0.5
