"""Benchmarks of this machine: precisions, batch sizes, collectives, schedules, scaling."""

from .collectives import CollectiveRow, LatencyBandwidthFit, all_collectives, fit_line, fit_link
from .compression import measure_compression
from .kernel_timings import measure_kernels
from .threads_against_ddp import DataParallelWorkload, measure_data_parallel
from .time_plans import device_name
from .workloads import make_workload

__all__ = [
    "CollectiveRow",
    "DataParallelWorkload",
    "LatencyBandwidthFit",
    "all_collectives",
    "device_name",
    "fit_line",
    "fit_link",
    "make_workload",
    "measure_compression",
    "measure_data_parallel",
    "measure_kernels",
]
