"""Built-in mixtures in Hugging Face's files, as transformers reads them, and back."""

import json
from functools import cache

import pytest
import torch

import stepladder as sl
from stepladder.cli.main import main
from tests.soak import soak_after

SIZES = "llama:layers=2,hidden=32,heads=4,vocab=48,ffn=16,sequence=16,experts=4,active=2"
SHAPES = {
    "Mixtral": f"{SIZES},kv_heads=2",
    "Olmoe": f"{SIZES},kv_heads=4,raw=1,extra=64",
    "Qwen3Moe": f"{SIZES},kv_heads=2,head=16,expert_ffn=24,dense=1,extra=32",
}
TOKENS = torch.arange(12)[None] % 48


@cache
def model(kind):
    made, generator = sl.build(SHAPES[kind]), torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return made


@pytest.fixture(params=SHAPES)
def kind(request):
    return request.param


@pytest.fixture
def converted(kind, tmp_path):
    """A run's folder, Hugging Face's files of it, and the way back."""
    run = sl.climb(model(kind), loss="cross_entropy", plan="fp32", device="cpu")
    run.save(tmp_path / "run")
    there, back = tmp_path / "there", tmp_path / "back"
    assert main(["checkpoint", "convert", str(tmp_path / "run"), str(there), "--json"]) == 0
    words = ["checkpoint", "convert", str(there), str(back), "--to", "checkpoint", "--json"]
    assert main(words) == 0
    return tmp_path


def test_what_is_converted_and_back_has_the_same_bits(kind, converted):
    config = json.loads((converted / "there" / "config.json").read_text())
    assert config["architectures"] == [f"{kind}ForCausalLM"]
    run = sl.climb(sl.build(SHAPES[kind]), loss="cross_entropy", plan="fp32", device="cpu")
    run.load(converted / "back")
    for name, parameter in model(kind).named_parameters():
        assert torch.equal(run.module.get_parameter(name), parameter), name


@pytest.mark.parametrize("kind", soak_after(SHAPES))
def test_transformers_computes_the_same(kind, converted):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(converted / "there").eval()
    assert type(theirs).__name__ == f"{kind}ForCausalLM"
    with torch.no_grad():
        torch.testing.assert_close(theirs(TOKENS).logits, model(kind).eval()(TOKENS))
