"""A Hugging Face folder trained, saved and given back in its layout; adapters in peft's."""

import json

import pytest
import torch

import stepladder as sl
from stepladder.checkpoint import find_checkpoints, read_manifest
from stepladder.cli.main import main
from tests.ranks import run as on_ranks

transformers = pytest.importorskip("transformers", reason="their models are built by their library")
tokenizers = pytest.importorskip("tokenizers")

LLAMA = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
TOKENS = torch.randint(0, 300, (4, 16), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model's folder as it would be downloaded, without weights, and some text."""
    made = tmp_path_factory.mktemp("theirs")
    (made / "model").mkdir()
    (made / "model" / "config.json").write_text(json.dumps(LLAMA))
    (made / "text").mkdir()
    texts = [f"every rung leaves the mathematics of number {n} alone. " * 9 for n in range(30)]
    for number, text in enumerate(texts):
        (made / "text" / f"{number}.txt").write_text(text)
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=300)
    tokenizer.save(str(made / "model" / "tokenizer.json"))
    return made


def trained(folder, name, *words):
    settings = {
        "model.name": folder / "model",
        "model.sequence": 16,
        "data.source": f"text:{folder / 'text'}",
        "train.batch": 4,
        "train.steps": 2,
        "train.report_every": 1,
        "train.evaluate_every": 0,
        "train.evaluate_batches": 1,
        "run.folder": folder / name,
    }
    given = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    return main(["train", "--plan", "fp32 micro=2", "--json", *given, *words])


def journal(folder, name, kind):
    lines = (folder / name / "journal.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


@pytest.fixture(scope="module")
def converted(folder):
    """What came out of a run, in Hugging Face's layout."""
    assert trained(folder, "first") == 0
    assert main(["checkpoint", "convert", str(folder / "first"), str(folder / "out")]) == 0
    return folder / "out"


def test_a_folder_is_trained_with_its_own_tokenizer_and_forecast(folder, converted):
    losses = [entry["loss"] for entry in journal(folder, "first", "step")]
    assert len(losses) == 2 and abs(losses[0] - 5.7) < 0.3  # the logarithm of 300
    assert journal(folder, "first", "forecast")


def test_transformers_loads_what_was_converted(folder, converted):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(converted)
    assert type(theirs).__name__ == "LlamaForCausalLM"
    ours = sl.climb(sl.build(str(folder / "model")), loss="cross_entropy", plan="fp32")
    ours.load(folder / "first")
    with torch.no_grad():
        assert torch.equal(theirs.eval()(TOKENS).logits, ours.module.eval()(TOKENS).logits)


def test_a_run_starts_from_weights_and_packs_documents(folder, converted, capsys):
    words = ("--model.weights", str(converted), "--data.packed", "true", "--optimizer.lr", "0")
    assert trained(folder, "second", *words) == 0
    kept = sl.build(str(folder / "model"), weights=str(converted))
    run = sl.climb(sl.build(str(folder / "model")), loss="cross_entropy", plan="fp32")
    run.load(folder / "second")
    assert torch.equal(run.module.model.embed_tokens.weight, kept.model.embed_tokens.weight)


def keep(folder):
    run = sl.climb(sl.build(str(folder / "model")), plan="fp32 zero3 shard=2", device="cpu")
    run.save(folder / "sliced")


def test_what_is_kept_names_the_class_as_it_was_before_slicing(folder):
    on_ranks(keep, 2, folder, init=False)
    state = read_manifest(next(find_checkpoints(folder / "sliced"))).state
    assert state["config"]["architectures"] == ["LlamaForCausalLM"]


def adapted(folder):
    peft = pytest.importorskip("peft", reason="needs the package peft")
    torch.manual_seed(3)
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False, task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(sl.build(str(folder / "model")), config)


def learn(folder, plan):
    """Two steps with adapters, on however many ranks, and a checkpoint of them."""
    run = sl.climb(adapted(folder), optimizer="adamw lr=1e-2", plan=plan, device="cpu")
    rows = [{"input_ids": row, "labels": row} for row in TOKENS]
    with run.batches(rows, size=4, workers=0) as batches:
        losses = [report.loss for report in sl.fit(run, batches, steps=2)]
    run.save(folder / "lora")
    return losses


def test_adapters_saved_by_two_ranks_are_read_by_peft_and_by_one(folder):
    peft = pytest.importorskip("peft", reason="needs the package peft")
    on_ranks(learn, 2, folder, "fp32 zero3 shard=2", init=False)
    out = folder / "adapter"
    assert main(["checkpoint", "convert", str(folder / "lora"), str(out), "--to", "adapters"]) == 0
    theirs = peft.PeftModel.from_pretrained(sl.build(str(folder / "model")), out).eval()
    ours = sl.climb(adapted(folder), optimizer="adamw lr=1e-2", plan="fp32", device="cpu")
    ours.load(folder / "lora")
    with torch.no_grad():
        assert torch.equal(theirs(TOKENS).logits, ours.module.eval()(TOKENS).logits)
    trainable = sum(p.numel() for p in ours.module.parameters() if p.requires_grad)
    assert len(ours.optimizer.state) == 8 and trainable == 2 * (4 * 64 + 4 * 80)


def test_a_whole_model_of_both_computes_what_the_pair_does(folder):
    pytest.importorskip("peft", reason="needs the package peft")
    learn(folder, "fp32")
    out = str(folder / "merged")
    assert main(["checkpoint", "convert", str(folder / "lora"), out]) == 0
    ours = sl.climb(adapted(folder), optimizer="adamw lr=1e-2", plan="fp32", device="cpu")
    ours.load(folder / "lora")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(TOKENS).logits, ours.module.eval()(TOKENS).logits)


def test_a_checkpoint_without_adapters_is_refused(folder, converted, capsys):
    first, out = str(folder / "first"), str(folder / "none")
    assert main(["checkpoint", "convert", first, out, "--to", "adapters"]) == 2
    assert "holds no adapters" in capsys.readouterr().err


def test_a_folder_is_compared_on_ranks_like_any_model(folder):
    from tests.parity.pool import compare

    found = compare(folder, str(folder / "model"), "fp32 tensor=2")
    assert (found.verdict, found.problem) == ("same", "")
