"""Hugging Face models from files: from a config alone, or with weights that must all be there."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import stepladder as sl
from stepladder.errors import ModelError, PlanError
from stepladder.model.huggingface.pretrained import is_pretrained_path

transformers = pytest.importorskip("transformers", reason="their models are built by their library")

LLAMA = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, LLAMA)
    return tmp_path


def write(folder, table):
    (folder / "config.json").write_text(json.dumps(table))


def test_a_folder_or_a_file_is_built_and_the_seed_decides_its_first_values(folder):
    one = sl.build(str(folder), seed=1)
    assert type(one).__name__ == "LlamaForCausalLM"
    again, other = sl.build(str(folder / "config.json"), seed=1), sl.build(str(folder), seed=2)
    assert torch.equal(one.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


def test_building_leaves_the_random_numbers_of_others_alone(folder):
    torch.manual_seed(0)
    sl.build(str(folder), seed=1)
    after = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(1))


def test_on_meta_it_has_a_shape_and_no_values(folder):
    module = sl.build(str(folder), device="meta")
    assert all(parameter.is_meta for parameter in module.parameters())


def test_the_class_is_the_one_the_config_names_else_the_one_its_kind_is_trained_as(folder):
    write(folder, LLAMA | {"architectures": ["LlamaForSequenceClassification"]})
    assert type(sl.build(str(folder), device="meta")).__name__ == "LlamaForSequenceClassification"
    write(folder, {"model_type": "resnet", "depths": [1], "hidden_sizes": [8]})
    assert type(sl.build(str(folder), device="meta")).__name__ == "ResNetForImageClassification"


def test_weights_are_loaded_in_float32_whatever_they_were_stored_in(folder):
    saved = sl.build(str(folder), seed=1).to(torch.bfloat16)
    saved.save_pretrained(folder / "saved")
    module = sl.build(str(folder), weights=str(folder / "saved"))
    assert module.training and module.lm_head.weight.dtype == torch.float32
    assert torch.equal(module.lm_head.weight, saved.lm_head.weight.float())


def test_weights_that_lack_a_tensor_are_refused_by_its_name(folder):
    sl.build(str(folder)).save_pretrained(folder / "saved")
    write(folder, LLAMA | {"num_hidden_layers": 3})
    with pytest.raises(ModelError, match=r"lacks 9 tensors of this model, such as 'model.layers.2"):
        sl.build(str(folder), weights=str(folder / "saved"))


def test_weights_of_another_width_are_refused(folder):
    sl.build(str(folder)).save_pretrained(folder / "saved")
    write(folder, LLAMA | {"intermediate_size": 64})
    said = r"has 'model.layers.0.mlp.down_proj.weight' of shape \(32, 48\), and this model of"
    with pytest.raises(ModelError, match=said):
        sl.build(str(folder), weights=str(folder / "saved"))


def test_weights_that_are_not_this_models_or_not_whole_are_refused(folder):
    sl.build(str(folder)).save_pretrained(folder / "saved")
    place = folder / "saved" / "model.safetensors"
    tensors = load_file(place)
    save_file({**tensors, "other": torch.ones(2)}, place, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"has, beyond this model's, 1 tensors, such as 'other'"):
        sl.build(str(folder), weights=str(folder / "saved"))
    save_file({key: value.to(torch.int8) for key, value in tensors.items()}, place)
    with pytest.raises(ModelError, match=r"holds '.*weight' in I8, which are not whole weights"):
        sl.build(str(folder), weights=str(folder / "saved"))
    place.write_bytes(place.read_bytes()[:500])
    with pytest.raises(ModelError, match=r"saved cannot be loaded \(.*\). Write it again."):
        sl.build(str(folder), weights=str(folder / "saved"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "lama"}, "is of no known model_type (lama). Did you mean 'llama'?"),
        ({"hidden_size": "wide"}, "no config of a llama"),
        ({"architectures": ["Nobody"]}, "names the class 'Nobody', which transformers does not"),
        ({"hidden_act": "nobody"}, "config.json cannot be built"),
        ({"model_type": "banana"}, "model_type (banana). Name a config.json of a Hugging Face"),
        ({"num_hidden_layers": -1}, "has -1 layers (num_hidden_layers). Write 1 or more."),
        ({"num_attention_heads": 3}, "is not a multiple of the number of attention heads"),
        ({"model_type": "bert"}, "a bert sees what comes after each token"),
    ],
)
def test_what_is_wrong_with_a_config_is_a_line(folder, change, said):
    write(folder, LLAMA | change)
    with pytest.raises((PlanError, ModelError)) as wrong:
        sl.build(str(folder / "config.json"))
    assert said in str(wrong.value) and "\n" not in str(wrong.value)


def test_a_config_that_is_none_is_refused(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(PlanError, match="config.json cannot be read"):
        sl.build(str(folder))
    write(folder, {"model_type": "t5"})
    with pytest.raises(PlanError, match="a t5 is no language model or classifier"):
        sl.build(str(folder))


def test_longer_sequences_and_dropout_are_refused(folder):
    with pytest.raises(PlanError, match=r"model.sequence: 32 tokens, and .* is made for 16"):
        sl.build(str(folder), sequence=32)
    with pytest.raises(PlanError, match="model.dropout: a config says its own"):
        sl.build(str(folder), dropout=0.1)


def test_weights_are_for_folders_and_must_be_there(folder):
    with pytest.raises(PlanError, match="is for a model that is a folder, and 'gpt2' is none"):
        sl.build("gpt2", weights=str(folder))
    with pytest.raises(ModelError, match="holds no safetensors"):
        sl.build(str(folder), weights=str(folder))


def test_a_folder_that_only_has_a_presets_name_does_not_hide_the_preset(tmp_path, monkeypatch):
    (tmp_path / "gpt2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert not is_pretrained_path("gpt2")
    write(tmp_path / "gpt2", LLAMA)
    assert is_pretrained_path("gpt2") and is_pretrained_path("./gpt2")


def test_without_their_library_the_package_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match="needs the package 'transformers'"):
        sl.build(str(folder))
