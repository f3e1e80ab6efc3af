"""Adapters merged as peft merges them, and those that only peft can merge."""

import pytest
import torch

import stepladder as sl
from stepladder.cli.main import main
from stepladder.errors import RecordError
from stepladder.job.export.export_checkpoint import export_checkpoint

peft = pytest.importorskip("peft", reason="needs the package peft")
transformers = pytest.importorskip("transformers", reason="needs the package transformers")

TOKENS = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(1))


def gpt2(**settings):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    how = {"r": 4, "init_lora_weights": False, "target_modules": ["c_attn", "c_proj"], **settings}
    model = transformers.GPT2LMHeadModel(config)
    return peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **how))


def saved(tmp_path, **settings):
    module = gpt2(**settings)
    sl.climb(module, plan="fp32", device="cpu").save(tmp_path / "run")
    return module


@pytest.mark.parametrize("settings", [{}, {"use_rslora": True, "lora_alpha": 3}])
def test_transposed_matrices_are_merged_to_the_last_bit(tmp_path, settings):
    theirs = saved(tmp_path, **settings).merge_and_unload()
    export_checkpoint(tmp_path / "run", tmp_path / "out")
    ours = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out").state_dict()
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours[name], value), name


def test_adapters_that_are_no_product_of_two_matrices_are_left_to_peft(tmp_path, capsys):
    saved(tmp_path, target_modules=["c_fc"], modules_to_save=["lm_head"])
    with pytest.raises(RecordError, match="its adapters use modules_to_save, which is merged by"):
        export_checkpoint(tmp_path / "run", tmp_path / "out")
    words = ["checkpoint", "convert", str(tmp_path / "run"), str(tmp_path / "out")]
    assert main(words) == 2 and "peft's merge_and_unload makes one" in capsys.readouterr().err


def test_several_adapters_are_not_merged_into_one(tmp_path):
    module = gpt2()
    module.add_adapter("second", module.peft_config["default"])
    sl.climb(module, plan="fp32", device="cpu").save(tmp_path / "run")
    with pytest.raises(RecordError, match=r"it holds 2 adapters \(default, second\)"):
        export_checkpoint(tmp_path / "run", tmp_path / "out")
