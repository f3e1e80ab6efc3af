"""The tensor on the wrong device is named, with the way out. Meta is the second device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepladder.errors import ModelError
from stepladder.world.device_mismatch import explain_placement, tensors_of


def net(device: str) -> nn.Module:
    model = nn.Sequential()
    model.add_module("embed", nn.Embedding(8, 4, device=device))
    model.add_module("head", nn.Linear(4, 8, device=device))
    return model


def test_everything_in_its_place_is_no_error():
    batch = {"input_ids": torch.zeros(2, 3), "extra": [torch.ones(1), "text", 3, None]}
    assert explain_placement(net("cpu"), batch, "cpu") is None
    assert explain_placement(net("meta"), torch.zeros(2, 3, device="meta"), "meta") is None


def test_a_batch_tensor_elsewhere_is_named_with_the_models_first_parameter():
    batch = {"input_ids": torch.zeros(2, 3)}
    error = explain_placement(net("meta"), batch, torch.device("meta"))
    assert isinstance(error, ModelError)
    assert str(error) == (
        "batch['input_ids']: on cpu while the model's 'embed.weight' is on meta. Move it with "
        "batch['input_ids'].to('meta'), or give the batch to run.step, which does."
    )


def test_a_batch_tensor_without_values_is_to_be_built_and_not_moved():
    error = explain_placement(net("cpu"), (torch.ones(2), torch.ones(2, device="meta")), "cpu")
    assert str(error) == (
        "batch[1]: on meta while the model's 'embed.weight' is on cpu. "
        "It has no values: build it on 'cpu'."
    )


def test_a_model_without_parameters_is_spoken_of_as_the_run():
    error = explain_placement(nn.ReLU(), torch.ones(2), "meta")
    assert str(error).startswith("batch: on cpu while the run is on meta. Move it with batch.to(")


def test_a_parameter_elsewhere_is_named_before_the_batch():
    model = net("meta")
    model.head = nn.Linear(4, 8)
    error = explain_placement(model, torch.ones(2), "meta")
    assert str(error) == (
        "'head.weight': parameter on cpu while the run is on meta. "
        "Move the model with model.to('meta') before climbing."
    )


def test_a_buffer_elsewhere_is_named_with_its_usual_cause():
    model = net("meta")
    model.register_buffer("mask", torch.ones(3))
    assert str(explain_placement(model, (), "meta")) == (
        "'mask': buffer on cpu while the run is on meta. Move the model with model.to('meta'), "
        "and make the buffer on its input's device."
    )


def test_a_parameter_without_values_is_to_be_given_memory():
    model = net("cpu")
    model.head = nn.Linear(4, 8, device="meta")
    assert str(explain_placement(model, (), "cpu")) == (
        "'head.weight': parameter without values (on meta) while the run is on cpu. Give it "
        "memory with model.to_empty(device='cpu'), then load or initialise it."
    )


def test_a_lone_number_on_the_cpu_may_meet_any_device():
    model = net("meta")
    model.register_buffer("steps", torch.tensor(0))
    assert explain_placement(model, {"weight": torch.tensor(2.0)}, "meta") is None


@pytest.mark.parametrize(("wanted", "wrong"), [("meta", False), ("meta:0", False), ("cpu", True)])
def test_a_device_without_a_number_means_any_of_its_kind(wanted, wrong):
    assert bool(explain_placement(net("meta"), (), wanted)) is wrong


def test_each_tensor_comes_with_the_expression_that_reaches_it():
    one = torch.ones(1)
    batch = {"a": [one, {"b": one}], 3: (one,)}
    assert [name for name, _ in tensors_of(batch)] == [
        "batch['a'][0]",
        "batch['a'][1]['b']",
        "batch[3][0]",
    ]
    for name, tensor in tensors_of(batch):
        assert eval(name) is tensor
