"""Tests run alone: one thread a process, no network, no hub."""

import os
import socket

import pytest
import torch


def test_a_process_has_one_thread():
    assert torch.get_num_threads() == 1


def test_no_test_reaches_another_machine():
    with socket.socket() as one, pytest.raises(OSError, match=r"a test may not reach 192\.0\.2\.1"):
        one.connect(("192.0.2.1", 80))


def test_processes_of_one_test_reach_each_other():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as one:
        one.connect(server.getsockname())


def test_hubs_are_off():
    assert os.environ["HF_HUB_OFFLINE"] == os.environ["TRANSFORMERS_OFFLINE"] == "1"
