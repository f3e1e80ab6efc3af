"""Detecting this machine from torch, the driver and the system: devices, versions, memory, links.

What cannot be read is None, and assumptions are listed in the cluster's `assumptions`. A card that
is not in the device table has a name and memory but no peak: nothing is guessed.
"""

from __future__ import annotations

import platform
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from stepladder.hardware import Cluster, Device, Link, find_device, recognise_device, unknown_device
from stepladder.hardware.link import usual_link


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator as torch reports it."""

    name: str
    memory_bytes: int
    architecture: str  # compute capability "9.0", or AMD's "gfx942"
    device: Device

    @property
    def known(self) -> bool:
        """Whether it is in the device table."""
        return bool(self.device.peaks)


@dataclass(frozen=True, slots=True)
class DetectedMachine:
    """What was detected of this machine."""

    cluster: Cluster
    seen: tuple[Accelerator, ...]  # accelerators; none on a machine with only a processor
    driver: str | None
    runtime: str | None  # "CUDA 12.8" or "HIP 6.4"
    nccl: str | None
    torch: str
    python: str
    cpu: str
    cpu_flags: frozenset[str]  # of those that speed up narrow types
    physical_cores: int | None
    logical_cores: int | None
    host_memory_bytes: int
    backends: tuple[str, ...]  # of torch.distributed, built into this torch
    joined_by: str | None  # the link between accelerators, as the driver reports it


def detect_machine() -> DetectedMachine:
    """Detect this machine's devices, versions and memory."""
    seen, joined = list_accelerators(), _interconnect()
    return DetectedMachine(
        cluster=_cluster(seen, joined),
        seen=seen,
        driver=_driver(),
        runtime=_runtime(),
        nccl=_nccl(),
        torch=torch.__version__,
        python=platform.python_version(),
        cpu=_cpu_name(),
        cpu_flags=_cpu_flags(_cpuinfo()),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=psutil.cpu_count(),
        host_memory_bytes=_host_memory(),
        backends=_backends(),
        joined_by=joined,
    )


def detect_cluster(num_nodes: int = 1, processes: int | None = None) -> Cluster:
    """Describe this machine, or `num_nodes` like it, as a cluster.

    Args:
        processes: ranks per node; by default one per accelerator, or one on a CPU.
    """
    cluster = _cluster(list_accelerators(), _interconnect())
    said = cluster.assumptions
    if num_nodes > 1:
        said += (f"{num_nodes} nodes like this one, joined by what is usual for {cluster.device}",)
    per_node = processes or cluster.devices_per_node
    return replace(cluster, num_nodes=num_nodes, devices_per_node=per_node, assumptions=said)


def list_accelerators() -> tuple[Accelerator, ...]:
    if not torch.cuda.is_available():
        return ()
    return tuple(_read_accelerator(index) for index in range(torch.cuda.device_count()))


def _read_accelerator(index: int) -> Accelerator:
    facts = torch.cuda.get_device_properties(index)
    architecture = f"{facts.major}.{facts.minor}"
    if torch.version.hip:
        architecture = facts.gcnArchName.partition(":")[0]
    device = identify(facts.name, facts.total_memory)
    return Accelerator(facts.name, facts.total_memory, architecture, device)


def identify(name: str, memory_bytes: int) -> Device:
    """Return the table's row for a card, or a device with only its name and memory."""
    vendor = "AMD" if torch.version.hip else "NVIDIA"
    plain_cards = find_device("L4").board
    return recognise_device(name, memory_bytes) or unknown_device(
        name, vendor, memory_bytes, plain_cards
    )


def _cluster(seen: tuple[Accelerator, ...], joined: str | None) -> Cluster:
    host = _host_memory()
    if not seen:
        cpu = find_device("CPU")
        return Cluster(cpu, 1, 1, cpu.link, cpu.network, host)
    device = seen[0].device
    alike = sum(card.device == device for card in seen)
    said = []
    if alike < len(seen):
        said.append(f"{len(seen) - alike} of {len(seen)} devices left out: not a {device}")
    inside = inside_link(device, joined)
    if alike > 1:
        said.append(f"{inside.kind} inside the node at the rate usual for {device}")
    return Cluster(device, 1, alike, inside, device.network, host, tuple(said))


def inside_link(device: Device, joined: str | None) -> Link:
    """Return the device's usual link, unless the driver reports PCIe instead."""
    if joined != "PCIe" or device.link.kind == "PCIe":
        return device.link
    lane = find_device("L4").link.bytes_per_second
    return usual_link("PCIe", device.host_bytes_per_second or lane)


def _interconnect() -> str | None:
    """Ask the driver what links the accelerators, if there are several."""
    if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
        return None
    topology = _run("nvidia-smi", "topo", "-m")
    return None if topology is None else read_topology(topology)


def read_topology(topology: str) -> str | None:
    """Parse nvidia-smi's topology matrix: NVLink only if every pair of devices has it."""
    rows = [line.split() for line in topology.splitlines() if re.match(r"\s*GPU\d+\s+\S", line)]
    rows = [row for row in rows if "X" in row]  # the header has no diagonal
    if len(rows) < 2:
        return None
    pairs = [word for row in rows for word in row[1 : len(rows) + 1] if word != "X"]
    return "NVLink" if all(re.fullmatch(r"NV\d+", word) for word in pairs) else "PCIe"


def _host_memory() -> int:
    """In whole MiB, so that a cluster's text form can express it."""
    return psutil.virtual_memory().total // 2**20 * 2**20


def _driver() -> str | None:
    if torch.version.hip:
        version = Path("/sys/module/amdgpu/version")
        return version.read_text().strip() if version.exists() else None
    answer = _run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return answer.splitlines()[0].strip() if answer and answer.strip() else None


def _run(*command: str) -> str | None:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


def _runtime() -> str | None:
    if torch.version.hip:
        return f"HIP {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else None


def _nccl() -> str | None:
    if not (dist.is_available() and dist.is_nccl_available() and torch.cuda.is_available()):
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))


def _backends() -> tuple[str, ...]:
    if not dist.is_available():
        return ()
    built = {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available(),
        "mpi": dist.is_mpi_available(),
    }
    return tuple(name for name, present in built.items() if present)


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def _cpu_name() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", _cpuinfo(), re.M)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _cpu_flags(cpuinfo: str) -> frozenset[str]:
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.M)
    narrow = {"amx_bf16", "avx512_bf16", "amx_fp16", "avx512_fp16", "bf16", "fphp", "asimdhp"}
    return frozenset(found[1].split()) & narrow if found else frozenset()
