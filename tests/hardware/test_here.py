"""`here` in a cluster's text: this machine, its ranks and what is stated beside it."""

from dataclasses import replace

import pytest

import stepladder as sl
from stepladder.errors import StepladderError
from stepladder.hardware import Cluster, find_device
from stepladder.hardware.here import cluster_here, is_here

H100 = find_device("H100-80GB")
CARDS = Cluster(H100, 1, 4, H100.link, H100.network, 2**36)
CPU = find_device("CPU")
PROCESSOR = Cluster(CPU, 1, 1, CPU.link, CPU.network, 2**34)


@pytest.fixture
def machine(monkeypatch):
    def become(cluster):
        monkeypatch.setattr(Cluster, "detect", classmethod(lambda cls: cluster))

    return become


def test_what_is_about_this_machine():
    assert all(map(is_here, ("here", "Here", "here x 2", "2 x here", "here×4, 500 W", " here ")))
    assert not any(map(is_here, ("here x", "there", "2 x H100-80GB", "x here", CARDS)))


def test_ranks_of_it_and_what_is_stated_beside_them(machine):
    machine(CARDS)
    assert cluster_here("here") == CARDS
    two = cluster_here("here x 2, 500 W, 512 GiB host")
    assert two.devices_per_node == 2 and two.device.power_watts == 500
    assert two.device.name == "H100-80GB" and two.host_memory_bytes == 512 * 2**30
    assert cluster_here("2 x here") == replace(CARDS, devices_per_node=2)
    each = cluster_here("here, 400 Gb/s per GPU")
    assert each.between.bytes_per_second == 4 * 50e9
    machine(PROCESSOR)
    assert cluster_here("here x 3").memory_bytes_per_device == 2**34 // 3


@pytest.mark.parametrize(
    ("cluster", "text", "line"),
    [
        (CARDS, "here x 8", "cluster: 'here x 8' asks for 8 H100-80GB, and this machine has 4. "
         "Write 'here', or '8 x H100-80GB'."),
        (CARDS, "here x 0", "cluster: 'here x 0' counts 0. The least is 1."),
        (CARDS, "here, 5 W", "cluster.power: '5 W' is no power cap for H100-80GB, which takes 200 "
         "to 700 W. Write a number between."),
        (CARDS, "here, swift", "cluster: 'swift' is not understood. Write a link ('NVLink 900 "
         "GB/s', '400 Gb/s per GPU'), memory ('2048 GiB host') or a power cap ('500 W')."),
        (PROCESSOR, "here, 50 W", "cluster.power: '50 W' caps CPU, whose power is not known. Leave "
         "the cap out."),
        (PROCESSOR, "99999999999 nodes x 8 H100-80GB", "cluster: 99999999999 nodes x 8 are "
         "799,999,999,992 devices. The most that is planned for is 1,048,576."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_line(machine, cluster, text, line):
    machine(cluster)
    with pytest.raises(StepladderError) as refused:
        sl.plan("gpt-tiny", text, plan="fp32 micro=1", calibration="none")
    assert str(refused.value) == line
