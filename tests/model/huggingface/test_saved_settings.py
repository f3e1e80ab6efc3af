"""What a checkpoint keeps of a foreign module: plain values, and tensors under peft's names."""

import json

import pytest
import torch
from torch import nn

from stepladder.model import base_model
from stepladder.model.huggingface.saved_settings import adapter_key, model_settings


def test_a_module_of_ones_own_has_nothing_to_note():
    assert model_settings(nn.Linear(2, 2)) == {"config": None, "adapters": None}
    assert base_model(module := nn.Linear(2, 2)) is module


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("model.q_proj.lora_A.default.weight", "model.q_proj.lora_A.weight"),
        ("model.q_proj.lora_B.default.bias", "model.q_proj.lora_B.bias"),
        ("model.embed.lora_embedding_A.default", "model.embed.lora_embedding_A"),
        ("m.q.lora_magnitude_vector.default.weight", "m.q.lora_magnitude_vector"),
        ("m.classifier.modules_to_save.default.weight", "m.classifier.weight"),
        ("model.q_proj.base_layer.weight", None),
        ("model.q_proj.lora_A.other.weight", None),
    ],
)
def test_an_adapters_tensors_lose_its_name(name, key):
    assert adapter_key(name, "default") == key


def test_names_and_settings_are_those_that_peft_writes(tmp_path):
    peft = pytest.importorskip("peft", reason="needs the package peft")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_labels": 3, "image_size": 8, "patch_size": 4}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, **heads))
    config = peft.LoraConfig(
        r=2, target_modules=["q_proj"], modules_to_save=["classifier"], use_dora=True
    )
    adapted = peft.get_peft_model(model, config)
    adapted.save_pretrained(tmp_path)
    from safetensors.torch import load_file

    theirs = load_file(tmp_path / "adapter_model.safetensors")
    ours = {
        key: tensor
        for name, tensor in adapted.state_dict().items()
        if (key := adapter_key(name, "default")) is not None
    }
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    found = json.loads(json.dumps(model_settings(adapted)))
    assert found["config"]["architectures"] == ["ViTForImageClassification"]
    written = json.loads((tmp_path / "adapter_config.json").read_text())
    known = found["adapters"]["default"]
    assert {key: known[key] for key in ("r", "target_modules", "peft_type")} == {
        key: written[key] for key in ("r", "target_modules", "peft_type")
    }
