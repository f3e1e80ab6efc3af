"""Names as Kubernetes takes them: those of DNS, and of images."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stepladder.errors import PlanError

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
IMAGE = re.compile(r"[\w][\w.:/@-]*", re.ASCII)


def misnamed(namespace: str, claim: str, image: str) -> Iterator[PlanError]:
    """What the cluster would refuse; a claim without a name is made with one of ours."""
    names = {"namespace": (LABEL, namespace), "claim": (NAME, claim or "made")}
    for field, (pattern, name) in names.items():
        if not pattern.fullmatch(name):
            problem = f"{name!r} is not a name of Kubernetes'"
            yield PlanError(field, problem, "Use a to z, 0 to 9 and, inside, -.")
    if not IMAGE.fullmatch(image):
        yield PlanError("image", f"{image!r} is not an image", "Write REPOSITORY/NAME:TAG.")
