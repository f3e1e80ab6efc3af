"""Clusters: what is said, what is assumed and said, and text that reads back as itself."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepladder.hardware import Cluster, Link, find_device
from stepladder.hardware.device_table import DEVICES
from stepladder.hardware.link import KINDS

kinds = {place: [k.name for k in KINDS.values() if k.inside is place] for place in (True, False)}
speeds = st.floats(1e3, 1e15, allow_nan=False)
latencies = st.floats(1e-9, 1e-1, allow_nan=False)


def links(inside: bool) -> st.SearchStrategy[Link]:
    names = st.sampled_from(kinds[inside])
    return names.flatmap(lambda name: st.builds(Link, st.just(name), _latency(name), speeds))


def _latency(name: str) -> st.SearchStrategy[float]:
    return st.just(KINDS[name].latency_seconds) | latencies


clusters = st.builds(
    Cluster,
    device=st.sampled_from(sorted(DEVICES)).map(find_device),
    num_nodes=st.integers(1, 4096),
    devices_per_node=st.integers(1, 72),
    inside=links(True),
    between=links(False),
    host_memory_bytes=st.none() | st.integers(1, 2**45),
)


@settings(max_examples=300, deadline=None)
@given(clusters)
def test_a_clusters_text_reads_back_as_the_same_cluster(cluster):
    assert Cluster.parse(str(cluster)) == cluster


@pytest.mark.parametrize("name", DEVICES)
def test_a_cluster_of_any_device_reads_back(name):
    for text in (f"1 {name}", f"1x{name}", f"2 nodes x 1 {name}"):
        cluster = Cluster.parse(text)
        assert cluster.device is DEVICES[name]
        assert Cluster.parse(str(cluster)) == cluster


def test_the_designs_own_example_is_understood():
    cluster = Cluster.parse("8 nodes x 8 H100-80GB, 400 Gb/s")
    assert cluster.device is find_device("H100-80GB")
    assert (cluster.num_nodes, cluster.devices_per_node, cluster.num_devices) == (8, 8, 64)
    assert cluster.between.bytes_per_second == 50e9
    assert cluster.assumptions == ("NVLink 900 GB/s inside a node, usual for H100-80GB",)
    assert str(cluster) == "8 nodes x 8 H100-80GB, NVLink 900 GB/s, 400 Gb/s"


def test_what_is_left_out_is_assumed_and_said():
    cluster = Cluster.parse("64 x A100-80GB")
    assert (cluster.num_nodes, cluster.devices_per_node) == (8, 8)
    assert cluster.assumptions == (
        "8 A100-80GB in a node, as is usual",
        "NVLink 600 GB/s inside a node, usual for A100-80GB",
        "InfiniBand 1600 Gb/s per node between nodes, usual for A100-80GB",
    )


def test_what_is_stated_is_not_assumed():
    cluster = Cluster.parse("2 nodes x 4 L40S, NVLink 900 GB/s, 400 Gb/s per GPU")
    assert cluster.assumptions == ()
    assert cluster.inside.bytes_per_second == 450e9
    assert cluster.between.bytes_per_second == 4 * 50e9


def test_one_device_needs_no_assumption_about_links():
    cluster = Cluster.parse("1 H200")
    assert cluster.num_devices == 1 and cluster.assumptions == ()


def test_assumptions_are_how_a_cluster_is_known_and_not_what_it_is():
    assumed, stated = Cluster.parse("4 H100"), Cluster.parse("4 H100, NVLink 900 GB/s")
    assert assumed == stated and hash(assumed) == hash(stated)
    assert assumed.assumptions != stated.assumptions


def test_a_cluster_knows_its_memory_only_where_it_was_told():
    assert Cluster.parse("8 H100").host_memory_bytes is None
    assert Cluster.parse("8 H100, 2 TiB host").host_memory_bytes == 2**41


@pytest.mark.parametrize(
    "text, num_bytes",
    [
        ("8 H100", 80 * 2**30),
        ("8 H100, 64 GiB host", 80 * 2**30),
        ("cpu x 4, 64 GiB host", 16 * 2**30),
        ("cpu x 4", None),
    ],
)
def test_processors_share_the_hosts_memory_and_devices_have_their_own(text, num_bytes):
    assert Cluster.parse(text).memory_bytes_per_device == num_bytes


def test_a_cluster_can_be_this_machine():
    from stepladder.world import detect_cluster

    assert Cluster.detect() == detect_cluster()
