"""This machine, read and not guessed."""

from __future__ import annotations

import os

import psutil
import pytest
import torch

from stepladder.hardware import Cluster, find_device, unknown_device
from stepladder.world import detect_cluster, detect_machine
from stepladder.world.machine import machine as module
from stepladder.world.machine.machine import Accelerator, identify, inside_link, read_topology

NVLINK = """\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\t0-55\t0
GPU1\tNV18\t X \t0-55\t0

Legend:
  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""
PAIRS_ONLY = """\
\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity
GPU0\t X \tNV4\tSYS\tPIX\t0-31
GPU1\tNV4\t X \tSYS\tSYS\t0-31
GPU2\tSYS\tSYS\t X \tSYS\t0-31
NIC0\tPIX\tSYS\tSYS\t X \t
"""

on_a_processor = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def seen(name: str) -> Accelerator:
    row = find_device(name)
    return Accelerator(f"NVIDIA {name}", row.memory_bytes, "9.0", row)


def test_this_machine_is_what_the_system_says():
    machine = detect_machine()
    assert machine.torch == torch.__version__
    assert machine.logical_cores == os.cpu_count()
    assert 0 <= psutil.virtual_memory().total - machine.host_memory_bytes < 2**20
    assert machine.cpu and "gloo" in machine.backends


@on_a_processor
def test_a_machine_without_a_gpu_is_one_processor_with_all_its_memory():
    machine = detect_machine()
    assert machine.seen == () and machine.driver is None and machine.nccl is None
    assert machine.cluster.device is find_device("CPU") and machine.cluster.num_devices == 1
    assert machine.cluster.memory_bytes_per_device == machine.host_memory_bytes


@on_a_processor
def test_what_is_detected_reads_back_from_its_text():
    cluster = detect_cluster(num_nodes=2, processes=4)
    assert Cluster.parse(str(cluster)) == cluster
    assert (cluster.num_nodes, cluster.devices_per_node) == (2, 4)


def test_several_nodes_are_an_assumption_and_one_is_not():
    assert detect_cluster().assumptions == module.detect_machine().cluster.assumptions
    said = detect_cluster(num_nodes=3).assumptions[-1]
    assert said.startswith("3 nodes like this one, joined by what is usual for ")


def test_a_card_in_the_table_is_its_row_and_another_has_no_peak():
    h200 = find_device("H200")
    assert identify("NVIDIA H200", h200.memory_bytes) is h200
    other = identify("NVIDIA Foo", 10 * 2**30)
    assert (other.name, other.memory_bytes, dict(other.peaks)) == ("NVIDIA Foo", 10 * 2**30, {})
    assert not Accelerator("NVIDIA Foo", 1, "9.0", other).known and seen("H200").known


def test_several_like_cards_are_one_node_and_their_link_is_assumed():
    cluster = module._cluster((seen("H200"),) * 4, joined=None)
    assert (cluster.num_nodes, cluster.devices_per_node) == (1, 4)
    assert cluster.assumptions == ("NVLink inside the node at the rate usual for H200",)


def test_unlike_cards_are_left_out_and_that_is_said():
    cluster = module._cluster((seen("H200"), seen("L4"), seen("L4")), joined="PCIe")
    assert cluster.device is find_device("H200") and cluster.num_devices == 1
    assert cluster.assumptions == ("2 of 3 devices left out: not a H200",)


@pytest.mark.parametrize(
    ("topology", "link"), [(NVLINK, "NVLink"), (PAIRS_ONLY, "PCIe"), ("", None), ("GPU0 X", None)]
)
def test_the_drivers_matrix_says_what_joins_every_pair(topology, link):
    assert read_topology(topology) == link


def test_cards_the_driver_shows_on_pcie_are_not_given_nvlink():
    h200, l4 = find_device("H200"), find_device("L4")
    assert inside_link(h200, "NVLink") == inside_link(h200, None) == h200.link
    assert inside_link(h200, "PCIe").kind == "PCIe"
    assert inside_link(h200, "PCIe").bytes_per_second == h200.host_bytes_per_second
    assert inside_link(l4, "PCIe") == l4.link
    strange = unknown_device("Foo", "NVIDIA", 1, h200.board)
    assert inside_link(strange, "PCIe").kind == "PCIe"


def test_processor_flags_are_only_those_that_speed_up_narrow_types():
    text = "model name : X\nflags : fpu vme avx512_bf16 amx_bf16 sse\n"
    assert module._cpu_flags(text) == {"avx512_bf16", "amx_bf16"}
    assert module._cpu_flags("Features : fp asimd bf16") == {"bf16"}
    assert module._cpu_flags("") == frozenset()


def test_a_command_that_is_missing_or_fails_answers_nothing():
    assert module._run("no-such-command-here") is None
    assert module._run("false") is None
    assert module._run("echo", "550.1") == "550.1\n"
