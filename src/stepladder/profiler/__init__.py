"""Where time and memory go, measured; and proofs that a change changed nothing."""

from .accumulation import AccumulationRow, measure_accumulation
from .bench import Row, Workload, best_batch, device_name, measure_plans, with_batch
from .calibrate import calibrate
from .calibrate import device_name as table_name
from .collectives import (
    COLLECTIVES,
    CollectiveRow,
    Line,
    Use,
    every_use,
    fit_line,
    fit_link,
    measure_collective,
    uses_of,
)
from .compression import CompressionRow, measure_compression
from .continuation import Resumption
from .dataparallel import DataParallelRow, Trial, measure_data_parallel
from .gradients import LayerGradient, advise, measure_gradients
from .kernels import CASES, KernelCase, KernelTiming, measure_kernels
from .leaks import LeakWatch, LengthWatch, measure_fragmentation
from .ledger import Ledger
from .links import Cable
from .loading import LoaderRow, measure_loaders
from .memory import MemoryMeter, measure_memory
from .parity import ADAMW, SGD, compare_plans
from .pipeline import SCHEDULES, Case, Timeline, measure_schedules
from .precision import Comparison, Trained, Verdict, compare, verdict
from .resumption import RESUMED, Journey, check_journeys, compare_journeys, make_journey
from .ring import RingRow, measure_ring, ring_all_reduce, ring_bytes, ring_hops, ring_states
from .sameness import Sameness
from .scaling import Load, ScalingRow, measure_scaling
from .stragglers import RankNotes, RankTimes, StragglerWatch
from .subjects import Subject, find_subject
from .team import Team
from .team import run as run_team
from .timeline import Holder, MemoryTimeline, record_timeline
from .workloads import make_workload
from .zero import ENOUGH, ZeroRow, measure_zero

__all__ = [
    "ADAMW",
    "CASES",
    "COLLECTIVES",
    "ENOUGH",
    "RESUMED",
    "SCHEDULES",
    "SGD",
    "AccumulationRow",
    "Cable",
    "Case",
    "CollectiveRow",
    "Comparison",
    "CompressionRow",
    "DataParallelRow",
    "Holder",
    "Journey",
    "KernelCase",
    "KernelTiming",
    "LayerGradient",
    "LeakWatch",
    "Ledger",
    "LengthWatch",
    "Line",
    "Load",
    "LoaderRow",
    "MemoryMeter",
    "MemoryTimeline",
    "RankNotes",
    "RankTimes",
    "Resumption",
    "RingRow",
    "Row",
    "Sameness",
    "ScalingRow",
    "StragglerWatch",
    "Subject",
    "Team",
    "Timeline",
    "Trained",
    "Trial",
    "Use",
    "Verdict",
    "Workload",
    "ZeroRow",
    "advise",
    "best_batch",
    "calibrate",
    "check_journeys",
    "compare",
    "compare_journeys",
    "compare_plans",
    "device_name",
    "every_use",
    "find_subject",
    "fit_line",
    "fit_link",
    "make_journey",
    "make_workload",
    "measure_accumulation",
    "measure_collective",
    "measure_compression",
    "measure_data_parallel",
    "measure_fragmentation",
    "measure_gradients",
    "measure_kernels",
    "measure_loaders",
    "measure_memory",
    "measure_plans",
    "measure_ring",
    "measure_scaling",
    "measure_schedules",
    "measure_zero",
    "record_timeline",
    "ring_all_reduce",
    "ring_bytes",
    "ring_hops",
    "ring_states",
    "run_team",
    "table_name",
    "uses_of",
    "verdict",
    "with_batch",
]
