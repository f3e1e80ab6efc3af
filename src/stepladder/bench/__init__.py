"""The tables people quote, measured on this machine."""

from .collectives import CollectiveRow, Line, every_use, fit_line, fit_link
from .compression import measure_compression
from .kernel_timings import measure_kernels
from .threads_against_ddp import Trial, measure_data_parallel
from .time_plans import device_name
from .workloads import make_workload

__all__ = [
    "CollectiveRow",
    "Line",
    "Trial",
    "device_name",
    "every_use",
    "fit_line",
    "fit_link",
    "make_workload",
    "measure_compression",
    "measure_data_parallel",
    "measure_kernels",
]
