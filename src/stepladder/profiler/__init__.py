"""Where time and memory go, measured; and proofs that a change changed nothing."""

from .bench import Row, Workload, best_batch, device_name, measure_plans, with_batch
from .calibrate import calibrate
from .gradients import LayerGradient, advise, measure_gradients
from .graphs import find_retained_graphs
from .kernels import CASES, KernelCase, KernelTiming, measure_kernels
from .leaks import LeakWatch, LengthWatch, measure_fragmentation
from .loading import LoaderRow, measure_loaders
from .memory import MemoryMeter, measure_memory
from .parity import ADAMW, SGD, Sameness, compare_plans
from .precision import Comparison, Trained, Verdict, compare, verdict
from .subjects import Subject, find_subject
from .team import Team
from .team import run as run_team
from .workloads import make_workload

__all__ = [
    "ADAMW",
    "CASES",
    "SGD",
    "Comparison",
    "KernelCase",
    "KernelTiming",
    "LayerGradient",
    "LeakWatch",
    "LengthWatch",
    "LoaderRow",
    "MemoryMeter",
    "Row",
    "Sameness",
    "Subject",
    "Team",
    "Trained",
    "Verdict",
    "Workload",
    "advise",
    "best_batch",
    "calibrate",
    "compare",
    "compare_plans",
    "device_name",
    "find_retained_graphs",
    "find_subject",
    "make_workload",
    "measure_fragmentation",
    "measure_gradients",
    "measure_kernels",
    "measure_loaders",
    "measure_memory",
    "measure_plans",
    "run_team",
    "verdict",
    "with_batch",
]
