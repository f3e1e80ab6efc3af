"""The rows of docs/coverage.md, part by part, in the order of a lecture series."""

from .cluster_rows import CLUSTER
from .cost_and_course_rows import COST_AND_COURSE
from .one_device_rows import ONE_DEVICE
from .parallel_rows import PARALLEL
from .row import Part, Row

PARTS: tuple[Part, ...] = (*ONE_DEVICE, *PARALLEL, *CLUSTER, *COST_AND_COURSE)

__all__ = ["PARTS", "Part", "Row"]
