"""`stepladder plan --page`: what its words say of the fields, and its mistakes."""

import argparse
import socket

import pytest

from stepladder.cli.commands import plan
from stepladder.cli.main import main
from stepladder.cli.planner_page.open_page import first_fields
from stepladder.errors import PlanError


def fields(*words):
    parser = argparse.ArgumentParser()
    plan.configure(parser)
    return first_fields(parser.parse_args([*words, "--page"]))


def test_the_commands_words_fill_the_fields():
    words = ("gpt2", "--on", "2 nodes x 4 A100-80GB, 200 Gb/s", "--tokens", "1e12")
    found = fields(*words, "--plan", "bf16 zero3 tensor=2 micro=2 batch=16")
    assert found["model"] == "gpt2" and found["sequence"] == "1024" and found["tokens"] == "1e+12"
    assert (found["nodes"], found["per_node"], found["links"]) == ("2", "4", "200 Gb/s")
    assert (found["data"], found["tensor"], found["accumulate"]) == ("zero3", "2", "2")


def test_without_words_the_page_begins_as_it_likes():
    assert fields() == {}


def test_a_batch_is_at_least_one_sequence_a_device():
    assert fields("llama3-8b", "--on", "64 nodes x 8 H100-80GB")["batch"] == "512"
    found = fields("llama3-8b", "--on", "8 H100-80GB", "--batch", "96")
    assert (found["batch"], found["accumulate"]) == ("96", "12")


def test_a_shape_is_numbers_of_ones_own():
    found = fields("llama:layers=3,hidden=96,heads=4,sequence=64")
    assert (found["model"], found["layers"], found["sequence"]) == ("own", "3", "64")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("mine.py:make",), "mine.py:make is traced on one batch"),
        (("llama:layers=2,experts=8,active=2",), "the page has no field for experts of"),
        (("gpt2", "--json"), "json: the page has no field for it"),
        (("gpt2", "--from-deepspeed", "ds.json"), "from-deepspeed: the page has no field"),
        (("gpt2-xxl",), "'gpt2-xxl' is not a known model"),
    ],
)
def test_what_the_page_cannot_show_is_refused(words, line):
    with pytest.raises(PlanError, match=line):
        fields(*words)


def test_without_a_page_model_and_cluster_are_needed(capsys):
    assert main(["plan", "--on", "8 x H100-80GB"]) == 2
    assert capsys.readouterr().err.startswith("model: is not given, and a forecast needs it. Write")
    assert main(["plan", "gpt2"]) == 2
    assert capsys.readouterr().err.startswith("on: is not given, and a forecast needs it. Write")


def test_a_port_that_is_taken_is_a_users_mistake(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["plan", "--page", "--port", str(port)]) == 2
    assert capsys.readouterr().err == (
        f"page: 127.0.0.1 port {port} cannot be served (Address already in use). "
        "Name another with --port, or --port 0 for any that is free.\n"
    )
    assert main(["plan", "--page", "--port", "70000"]) == 2
    assert "port 70000 cannot be served" in capsys.readouterr().err
