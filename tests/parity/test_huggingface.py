"""Hugging Face's models and peft's adapters compute on two ranks what they compute on one.

A short form of those rows of benchmarks/parity/parity_table.py. The batches are dicts as their
models read them, most with masks and rows of very different lengths.
"""

import pytest

from tests.soak import soak_after

from .pool import CLIPPED, SGD, compare, foreign

MODELS = [
    ("hf_gemma", "fp32 tensor=2"),  # a head that is the embedding, which scales what it looks up
    ("hf_mistral", "fp32 tensor=2"),
    ("hf_neox", "fp32 tensor=2"),  # queries, keys and values of one head side by side
    ("hf_vit", "fp32 tensor=2"),  # cuts that are guessed and tried
    ("hf_vit", "fp32 pipeline=2"),  # a class token put in, a type asked for, between the parts
    ("hf_resnet", "fp32 ddp"),
]
ADAPTED = [
    ("lora_llama", "fp32 ddp", SGD),
    ("lora_llama", "fp32 zero1", CLIPPED),
    ("lora_llama", "fp32 zero3", SGD),
    ("lora_llama", "fp32 tensor=2", SGD),
    ("lora_llama", "fp32 pipeline=2", SGD),
    ("lora_gpt2", "fp32 tensor=2", SGD),  # stored the other way round, cut in thirds
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("huggingface")


@pytest.mark.parametrize(("model", "plan"), soak_after(MODELS))
def test_models_built_from_a_config(model, plan, folder):
    found = compare(folder, foreign(model), plan)
    assert (found.verdict, found.problem) == ("same", "")


@pytest.mark.parametrize(("model", "plan", "optimizer"), soak_after(ADAPTED))
def test_adapters_beside_frozen_weights(model, plan, optimizer, folder):
    pytest.importorskip("peft", reason="needs the package peft")
    found = compare(folder, foreign(model), plan, optimizer)
    assert (found.verdict, found.problem) == ("same", "")
