"""Latency and bandwidth of links."""

from __future__ import annotations

from stepladder.hardware import Link, find_device
from stepladder.hardware.link import KINDS, usual_link


def test_a_message_costs_its_latency_and_its_bytes():
    assert Link("network", 1e-5, 1e9).seconds(2e9) == 2 + 1e-5


def test_every_kind_of_link_says_where_its_latency_comes_from():
    for name, kind in KINDS.items():
        assert kind.name == name
        assert 0 < kind.latency_seconds < 1e-3
        assert len(kind.source) > 10


def test_nvlink_is_faster_to_answer_than_pcie_and_pcie_than_a_network():
    nvlink, pcie, network = (usual_link(kind, 1e9) for kind in ("NVLink", "PCIe", "InfiniBand"))
    assert nvlink.latency_seconds < pcie.latency_seconds < network.latency_seconds


def test_a_devices_link_is_one_direction_of_what_its_maker_quotes():
    assert find_device("H100-80GB").link.bytes_per_second == 450e9  # quoted: NVLink 900 GB/s
    assert find_device("A800").link.bytes_per_second == 200e9
    assert find_device("MI300X").link.bytes_per_second == 448e9
    assert find_device("L40S").link == usual_link("PCIe", 32e9)  # quoted: PCIe Gen4 64 GB/s
    assert find_device("H100-80GB").network.bytes_per_second == 400e9  # eight ports of 400 Gb/s
