"""Where time and memory go, measured; and proofs that a change changed nothing."""

from .bench import Row, Workload, best_batch, device_name, measure_plans, with_batch
from .gradients import LayerGradient, advise, measure_gradients
from .kernels import CASES, KernelCase, KernelTiming, measure_kernels
from .loading import LoaderRow, measure_loaders
from .memory import MemoryMeter, measure_memory
from .precision import Comparison, Trained, Verdict, compare, verdict
from .workloads import make_workload

__all__ = [
    "CASES",
    "Comparison",
    "KernelCase",
    "KernelTiming",
    "LayerGradient",
    "LoaderRow",
    "MemoryMeter",
    "Row",
    "Trained",
    "Verdict",
    "Workload",
    "advise",
    "best_batch",
    "compare",
    "device_name",
    "make_workload",
    "measure_gradients",
    "measure_kernels",
    "measure_loaders",
    "measure_memory",
    "measure_plans",
    "verdict",
    "with_batch",
]
