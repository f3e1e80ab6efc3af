"""The words of a cluster: every way to be misunderstood has its message."""

from __future__ import annotations

import pytest

from stepladder.errors import PlanError, PlanErrors
from stepladder.hardware import Cluster, Link
from stepladder.hardware.cluster_text import write_link, write_memory

AFTER = "After a speed may stand: per GPU, per direction, at 5 us; for networks, per node."


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "lots of GPUs",
            "cluster: 'lots of GPUs' does not say how many of which device. Write, for example, "
            "'8 nodes x 8 H100-80GB, 400 Gb/s', '64 x A100-80GB' or '1 H200'.",
        ),
        (
            "8 nods x 8 H100",
            "cluster: '8 nods x 8 H100' does not say how many of which device. Write, for example, "
            "'8 nodes x 8 H100-80GB, 400 Gb/s', '64 x A100-80GB' or '1 H200'.",
        ),
        (
            "8 nodes x 8",
            "cluster: '8 nodes x 8' counts and does not say which device. Write, for example, "
            "'8 nodes x 8 H100-80GB, 400 Gb/s', '64 x A100-80GB' or '1 H200'.",
        ),
        (
            "32 gpus, 400 Gb/s",
            "cluster: '32 gpus' counts and does not say which device. Write, for example, "
            "'8 nodes x 8 H100-80GB, 400 Gb/s', '64 x A100-80GB' or '1 H200'.",
        ),
        (
            "8x H100 NVLink 900 GB/s",
            "cluster: 'H100 NVLink 900 GB/s' names more than a device. "
            "Write a comma behind the device: '8x H100, NVLink 900 GB/s'.",
        ),
        (
            "8xA100-40GB 64 GB host",
            "cluster: 'A100-40GB 64 GB host' names more than a device. "
            "Write a comma behind the device: '8xA100-40GB, 64 GB host'.",
        ),
        ("0 x H100", "cluster: '0 x H100' counts 0. The least is 1."),
        ("2 nodes x 0 H100", "cluster: '2 nodes x 0 H100' counts 0. The least is 1."),
        ("0 nodes x 8 H100", "cluster: '0 nodes x 8 H100' counts 0. The least is 1."),
        (
            "12 A100",
            "cluster: 12 A100-80GB do not fill nodes of 8, the usual number. "
            "State the nodes, for example '2 nodes x 6 A100-80GB'.",
        ),
        (
            "8 H100, 400 gb/s",
            "cluster.link: 'gb/s' in '400 gb/s' is not a speed. "
            "A small b is bits and a capital B bytes: Gb/s, GB/s, Tb/s or TB/s.",
        ),
        (
            "8 H100, 0 Gb/s",
            "cluster.link: '0 Gb/s' carries nothing. Leave it out if unknown.",
        ),
        (
            "8 H100, Warp 9 GB/s",
            "cluster.link: 'Warp' in 'Warp 9 GB/s' is not a kind of link. Links: NVLink, "
            "Infinity Fabric, PCIe, ICI, on-board RoCE, shared memory, InfiniBand, RoCE, EFA, "
            "Ethernet, network.",
        ),
        (
            "8 H100, 400 Gb/s per rack",
            f"cluster.link: 'per rack' in '400 Gb/s per rack' is not understood. {AFTER}",
        ),
        (
            "8 H100, NVLink 900 GB/s per node",
            f"cluster.link: 'per node' in 'NVLink 900 GB/s per node' is not understood. {AFTER}",
        ),
        (
            "8 H100, fast",
            "cluster: 'fast' is not understood. Write a link ('NVLink 900 GB/s', "
            "'400 Gb/s per GPU'), memory ('2048 GiB host') or a power cap ('500 W').",
        ),
        (
            "8xH100 500 W",
            "cluster: 'H100 500 W' names more than a device. "
            "Write a comma behind the device: '8xH100, 500 W'.",
        ),
        (
            "8 H100, 500 W, 400 W",
            "cluster: '400 W' states the power cap a second time. Keep one of them.",
        ),
        (
            "8 H100, 800 W",
            "cluster.power: '800 W' is no power cap for H100-80GB, which takes 200 to 700 W. "
            "Write a number between.",
        ),
        (
            "8 H100, 199 W",
            "cluster.power: '199 W' is no power cap for H100-80GB, which takes 200 to 700 W. "
            "Write a number between.",
        ),
        (
            "8 MI300X, 100 W",
            "cluster.power: '100 W' is no power cap for MI300X, which takes 188 to 750 W. "
            "Write a number between. The lower end is taken to be a quarter: no driver's is known.",
        ),
        (
            "1 CPU, 100 W",
            "cluster.power: '100 W' caps CPU, whose power is not known. Leave the cap out.",
        ),
        (
            "8 H100, 2 PB host",
            "cluster.host_memory: 'PB' in '2 PB host' is not one. "
            "Units of memory: B, GB, TB, MiB, GiB, TiB.",
        ),
        (
            "8 H100, 0 GiB host",
            "cluster.host_memory: '0 GiB host' is none. Leave it out if unknown.",
        ),
        (
            "8 H100, 400 Gb/s, InfiniBand 800 Gb/s per GPU",
            "cluster: 'InfiniBand 800 Gb/s per GPU' states the link between nodes a second time. "
            "Keep one of them.",
        ),
        (
            "8 H100, NVLink 900 GB/s, PCIe 64 GB/s",
            "cluster: 'PCIe 64 GB/s' states the link inside a node a second time. "
            "Keep one of them.",
        ),
        (
            "8 H100, 1 TB host, 2 TB ram",
            "cluster: '2 TB ram' states the host memory a second time. Keep one of them.",
        ),
        (
            "1 nodes x 100000 H100-80GB",
            "cluster: no node holds 100,000 H100-80GB. "
            "Use 1,024 or fewer in a node: '16 nodes x 8 H100-80GB'.",
        ),
        (
            "8 H100, 0.0000001 Gb/s",
            "cluster.link: '0.0000001 Gb/s' is 12.5 bytes a second, which no link of a cluster is. "
            "Write, for example, '400 Gb/s'.",
        ),
    ],
)
def test_a_text_that_is_not_understood_says_which_words_and_what_would_be(text, message):
    with pytest.raises(PlanError) as error:
        Cluster.parse(text)
    assert str(error.value) == message


def test_all_problems_are_reported_at_once():
    with pytest.raises(PlanErrors) as error:
        Cluster.parse("8 nodes x 8 H101-80GB, 400 gb/s, Warp 9 GB/s, fast")
    fields = [problem.field for problem in error.value.problems]
    assert fields == ["device", "cluster.link", "cluster.link", "cluster"]
    assert len(str(error.value).splitlines()) == 4


def test_too_many_for_whole_nodes_is_reported_beside_the_rest():
    with pytest.raises(PlanErrors) as error:
        Cluster.parse("12 A100, fast")
    assert len(error.value.problems) == 2


@pytest.mark.parametrize(
    "text",
    [
        "64 x A100-80GB",
        "64x A100",
        "64xA100",
        "64 A100",
        "A100 x 64",
        "64 × A100",
        "64 * a100-80gb",
    ],
)
def test_a_count_may_be_written_in_many_ways(text):
    assert Cluster.parse(text) == Cluster.parse("8 nodes x 8 A100-80GB")


@pytest.mark.parametrize("text", ["2 nodes of 4 L40S", "2 node x 4 x L40S", "2  nodes  x4  L40S"])
def test_nodes_may_be_written_in_many_ways(text):
    cluster = Cluster.parse(text)
    assert (cluster.num_nodes, cluster.devices_per_node) == (2, 4)


@pytest.mark.parametrize(
    "written, bytes_per_second",
    [
        ("400 Gb/s", 50e9),
        ("400 Gbps", 50e9),
        ("0.4 Tb/s", 50e9),
        ("50 GB/s", 50e9),
        ("50 GBps", 50e9),
        ("400 Gb/s per node", 50e9),
        ("400 Gb/s per GPU", 400e9),
        ("InfiniBand 400 Gb/s", 50e9),
        ("EFA 3200 Gb/s", 400e9),
    ],
)
def test_networks_are_quoted_in_one_direction_and_per_node_unless_said(written, bytes_per_second):
    assert Cluster.parse(f"16 H100, {written}").between.bytes_per_second == bytes_per_second


@pytest.mark.parametrize(
    "written, bytes_per_second",
    [
        ("NVLink 900 GB/s", 450e9),
        ("nvlink 900 GB/s per GPU", 450e9),
        ("NVLink 450 GB/s per direction", 450e9),
        ("PCIe 64 GB/s", 32e9),
        ("xGMI 896 GB/s", 448e9),
        ("ICI 300 GB/s", 300e9),
    ],
)
def test_links_inside_a_node_are_quoted_as_their_makers_do(written, bytes_per_second):
    assert Cluster.parse(f"8 H100, {written}").inside.bytes_per_second == bytes_per_second


@pytest.mark.parametrize(
    "written",
    ["500 W", "500W", "0.5 kW", "500 watts", "500 W per GPU", "500 W each", "power cap 500 W",
     "capped at 500 W", "500 W limit"],
)  # fmt: skip
def test_a_power_cap_is_each_devices(written):
    cluster = Cluster.parse(f"16 H100, {written}, 400 Gb/s")
    assert cluster.device.power_watts == 500 and cluster.device.name == "H100-80GB"
    assert str(cluster) == "2 nodes x 8 H100-80GB, NVLink 900 GB/s, 400 Gb/s, 500 W"
    assert Cluster.parse(str(cluster)) == cluster


def test_a_cap_at_the_boards_own_limit_is_none():
    assert Cluster.parse("8 H100, 700 W") == Cluster.parse("8 H100")
    assert Cluster.parse("8 H100, 500.5 W").device.power_watts == 500.5


def test_a_latency_may_be_stated():
    cluster = Cluster.parse("16 H100, 400 Gb/s at 25 us, NVLink 900 GB/s at 2e-06 s")
    assert cluster.between == Link("network", 25e-6, 50e9)
    assert cluster.inside == Link("NVLink", 2e-6, 450e9)


def test_a_link_is_written_as_its_maker_quotes_it():
    assert write_link(Link("NVLink", 3.4e-6, 450e9)) == "NVLink 900 GB/s"
    assert write_link(Link("network", 14e-6, 50e9)) == "400 Gb/s"
    assert write_link(Link("network", 5e-6, 50e9)) == "400 Gb/s at 5 us"
    assert write_memory(2**41) == "2048 GiB host"
    assert write_memory(7) == "7 B host"


@pytest.mark.parametrize(
    "written, plain",
    [
        ("H100", "1 H100-80GB"),
        ("4090", "1 RTX4090"),
        ("cpu", "1 CPU"),
        ("4x4090", "1 node x 4 RTX4090"),
        ("H100:8", "8 H100-80GB"),
        ("h100*8", "8 H100-80GB"),
        ("2x8xH100", "2 nodes x 8 H100-80GB"),
        ("8 x H100-80GB x 4 nodes", "4 nodes x 8 H100-80GB"),
        ("16 nodes with 8xH100", "16 nodes x 8 H100-80GB"),
        ("2 servers of 8 A100s", "2 nodes x 8 A100-80GB"),
        ("eight H100", "8 H100-80GB"),
        ("a single A100", "1 A100-80GB"),
        ("8,192 x H100", "8192 x H100-80GB"),
        ("8 GPUs (A100 80GB)", "8 A100-80GB"),
        ("8 x H100,", "8 x H100-80GB"),
        ("2 nodes x 8 H100, 8x400 Gb/s", "2 nodes x 8 H100-80GB, 3200 Gb/s"),
        ("2 nodes x 8 H100, IB 400 Gb/s", "2 nodes x 8 H100-80GB, InfiniBand 400 Gb/s"),
        ("dgx-h100 x4", "4 nodes x 8 H100-80GB"),
        ("2 HGX B200", "2 nodes x 8 B200"),
        ("p4d.24xlarge x 8", "8 nodes x 8 A100-40GB, EFA 400 Gb/s"),
        ("Standard_ND96isr_H100_v5", "1 node x 8 H100-80GB, InfiniBand 3200 Gb/s"),
        ("GB200 NVL72", "72 GB200"),
    ],
)
def test_other_words_for_the_same(written: str, plain: str) -> None:
    assert Cluster.parse(written) == Cluster.parse(plain)
