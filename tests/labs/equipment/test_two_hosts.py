"""Two hosts where the kernel allows them; elsewhere one, with the reason."""

import shutil

import pytest
import torch
import torch.distributed as dist

from stepladder.labs.equipment import two_hosts as place
from stepladder.labs.equipment.deepspeed import train_with_deepspeed
from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.equipment.two_hosts import two_hosts


def addresses():
    """The two ranks' networks, told to both."""
    import socket

    names = [None, None]
    dist.all_gather_object(names, sorted(name for _, name in socket.if_nameindex()))
    return names


def test_two_ranks_on_two_hosts_communicate_over_the_virtual_link():
    with two_hosts("100mbit") as hosts:
        found = on_ranks(hosts.at(addresses), 2, join=False)
        assert found[0] == found[1]
        if hosts.cable is None:
            assert "link" in hosts.reason
        else:
            first, second = hosts.cable.devices
            assert first in found[0][0] and second in found[0][1]
            assert second not in found[0][0]


def test_without_a_virtual_link_the_reason_is_given_and_ranks_still_communicate(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with two_hosts("100mbit") as hosts:
        assert hosts.cable is None
        assert "there is no 'ip' to make one" in hosts.reason

        def add():
            total = torch.ones(1)
            dist.all_reduce(total)
            return total.item()

        assert on_ranks(hosts.at(add), 2, join=False) == [2.0, 2.0]


def test_a_namespace_that_is_not_there_is_an_error():
    with pytest.raises(OSError, match="nowhere"):
        place.enter("nowhere")


def test_where_deepspeed_is_missing_the_row_says_so(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (row,) = train_with_deepspeed(None, None, 1, 0.1)
    assert "not installed" in row["who"]
