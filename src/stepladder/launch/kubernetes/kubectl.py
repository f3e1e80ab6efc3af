"""Follows a Kubernetes job with kubectl: applies it, prints its logs, deletes it on a signal."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TextIO

from stepladder.errors import WorldError
from stepladder.launch.cancel_job import Asked
from stepladder.launch.external_programs import ask, find_program, reason
from stepladder.launch.local.first_failure import FAILED
from stepladder.launch.run_request import Request
from stepladder.launch.slurm.slurm_script import TAKEN_OFF
from stepladder.launch.ssh.ssh_hosts import verdict

from .manifests import KubernetesChoice, manifests
from .yaml_text import to_yaml

POLL_SECONDS = 3.0
# What it says, between much else, where nobody is at the other end.
UNREACHED = re.compile(r"dial tcp [^;\n]*|no configuration has been provided|i/o timeout")
GOOD, BAD = ("Complete", "Succeeded"), ("Failed",)


def kubectl(choice: KubernetesChoice, *words: str) -> list[str]:
    return ["kubectl", "--namespace", choice.namespace, *words]


def apply(request: Request, choice: KubernetesChoice) -> None:
    """Hand everything in."""
    remedy = "Install it and name a cluster, or add --dry-run to see the manifests."
    find_program("kubectl", "kubernetes", remedy)
    answer = ask(
        kubectl(choice, "apply", "--filename", "-"), given=to_yaml(manifests(request, choice))
    )
    if cut := UNREACHED.search(answer.stderr) if answer.returncode else None:
        remedy = "Name one: 'kubectl config use-context NAME'; --dry-run shows the job."
        raise WorldError("kubernetes", f"no cluster answers kubectl ({cut[0]})", remedy)
    if answer.returncode:
        raise WorldError(
            "kubernetes",
            f"the cluster refused the job ({reason(answer)})",
            "'kubectl auth can-i create jobs' says what this user may; --dry-run shows the job.",
        )


def follow_pods(
    request: Request, choice: KubernetesChoice, tell: Callable[[str], None], stream: TextIO
) -> int:
    """Show what the first machine says until the job ends; its exit code."""
    reported = ""
    voice: subprocess.Popen[bytes] | None = None
    with Asked() as asked:
        deleted = False
        while True:
            state = condition(request, choice)
            if state != reported and state:
                tell(f"{choice.kind} {request.name}: {state}")
                reported = state
            if state in (*GOOD, *BAD) or (deleted and not state):
                break
            if asked and not deleted:
                deleted = True
                tell(f"deleting {choice.kind} {request.name}")
                # In the foreground: the job is there until its pods, which save, are gone.
                how = ("--cascade=foreground", "--wait=false")
                ask(kubectl(choice, "delete", choice.kind, request.name, *how))
            if voice is None or voice.poll() is not None:
                voice = listen(request, choice, stream, again=voice is not None)
            asked.wait(POLL_SECONDS)
        if voice is not None:
            with suppress(subprocess.TimeoutExpired):
                voice.wait(POLL_SECONDS)  # its last words
            voice.kill()
    if asked:
        return asked.code
    return 0 if state in GOOD else worst(request, choice)


def condition(request: Request, choice: KubernetesChoice) -> str:
    """The job's last condition that holds; empty: it is not there."""
    answer = ask(kubectl(choice, "get", choice.kind, request.name, "--output", "json"))
    if answer.returncode:
        return ""
    status: Mapping[str, Any] = json.loads(answer.stdout).get("status", {})
    held = [one["type"] for one in status.get("conditions", ()) if one["status"] == "True"]
    ended = [name for name in held if name in (*GOOD, *BAD)]
    return (ended or held or ["Running" if status.get("active") else "Pending"])[-1]


def listen(
    request: Request, choice: KubernetesChoice, stream: TextIO, *, again: bool
) -> subprocess.Popen[bytes]:
    """The logs of the pods: all of them, or only new lines if some were printed before."""
    which = f"--selector=app.kubernetes.io/instance={request.name}"
    begin = f"--since={POLL_SECONDS + 1:.0f}s" if again else "--tail=-1"
    words = ("logs", "--follow", "--ignore-errors", begin, "--max-log-requests=200", which)
    return subprocess.Popen(
        kubectl(choice, *words), stdout=stream, stderr=subprocess.DEVNULL, start_new_session=True
    )


def worst(request: Request, choice: KubernetesChoice) -> int:
    """The exit code of a job that failed, out of its pods' own."""
    which = f"--selector=app.kubernetes.io/instance={request.name}"
    answer = ask(kubectl(choice, "get", "pods", which, "--output", "json"))
    found: list[int] = []
    for pod in json.loads(answer.stdout)["items"] if not answer.returncode else ():
        for container in pod.get("status", {}).get("containerStatuses", ()):
            ended = container.get("state", {}).get("terminated", {})
            found.append(int(ended.get("exitCode", 0)))
    return verdict([code for code in found if code not in (0, TAKEN_OFF)]) or FAILED
