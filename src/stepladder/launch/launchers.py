"""The targets of a launch behind one interface: what would be submitted, and submitting it.

`text` is exactly what is submitted. `start` submits it, shows what its ranks say, tells of its
states, cancels it when this process is asked to stop, and returns its exit code.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from stepladder.launch.kubernetes.manifests import KubernetesChoice, manifests
from stepladder.launch.kubernetes.yaml_text import to_yaml
from stepladder.launch.ray.ray_run import run_ray
from stepladder.launch.ray.ray_script import ray_script
from stepladder.launch.slurm.slurm_script import Allocation, SlurmChoice

from .kubernetes import kubectl
from .run_request import Request
from .slurm import slurm_job as queue
from .slurm import slurm_script as slurm
from .ssh import ssh_hosts as ssh

Tell = Callable[[str], None]


class RemoteLauncher(Protocol):
    """A place: what it would be given, and the exit code of a run that was started there."""

    @property
    def request(self) -> Request: ...

    def text(self) -> str: ...

    def start(self, tell: Tell, stream: TextIO, *, detach: bool = False) -> int: ...


@dataclass(frozen=True, slots=True)
class OnSlurm:
    """A run as a Slurm job, or inside an allocation that is there already."""

    request: Request
    choice: SlurmChoice = SlurmChoice()
    allocation: Allocation | None = field(default_factory=Allocation.from_environment)

    def text(self) -> str:
        if self.allocation:
            return shlex.join(slurm.within(self.request, self.choice, self.allocation)) + "\n"
        return slurm.script(self.request, self.choice)

    def start(self, tell: Tell, stream: TextIO, *, detach: bool = False) -> int:
        if self.allocation:
            tell(f"inside job {self.allocation.job}: starting on its machines")
            return queue.run_within(self.request, self.choice, self.allocation)
        job = queue.submit(self.request, self.choice)
        tell(f"job {job}: submitted; it writes to {self.request.folder}")
        return 0 if detach else queue.follow(job, self.request, self.choice, tell, stream)


@dataclass(frozen=True, slots=True)
class OnHosts:
    request: Request
    hosts: ssh.Hosts

    def text(self) -> str:
        line = ssh.leashed(self.request, self.hosts)
        return "".join(shlex.join(self.hosts.to(host, line)) + "\n" for host in self.hosts.names)

    def start(self, tell: Tell, stream: TextIO, *, detach: bool = False) -> int:
        return ssh.run_hosts(self.request, self.hosts, tell, stream)


@dataclass(frozen=True, slots=True)
class OnKubernetes:
    """A run as Kubernetes objects, applied with kubectl."""

    request: Request
    choice: KubernetesChoice

    def text(self) -> str:
        return to_yaml(manifests(self.request, self.choice))

    def start(self, tell: Tell, stream: TextIO, *, detach: bool = False) -> int:
        kubectl.apply(self.request, self.choice)
        tell(f"{self.choice.kind} {self.request.name}: applied")
        return 0 if detach else kubectl.follow_pods(self.request, self.choice, tell, stream)


@dataclass(frozen=True, slots=True)
class OnRay:
    request: Request

    def text(self) -> str:
        return ray_script(self.request)

    def start(self, tell: Tell, stream: TextIO, *, detach: bool = False) -> int:
        return run_ray(self.request, tell, stream)
