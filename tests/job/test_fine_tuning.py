"""From published weights and a file of conversations to a folder that other programs load."""

import json
import shutil

import pytest
import torch

import stepladder as sl
from stepladder.cli.main import main
from stepladder.errors import ModelError, PlanError, RecordError
from stepladder.record import Journal

transformers = pytest.importorskip("transformers", reason="their models are built by their library")
tokenizers = pytest.importorskip("tokenizers")

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FACTS = [(f"what follows {n}?", f"{n + 1} follows {n}") for n in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model's folder as it is published: weights in 16 bits, tokenizer, template; and a chat."""
    made = tmp_path_factory.mktemp("published")
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([" ".join(fact) for fact in FACTS], vocab_size=300)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(made / "model")
    tokenizer.save(str(made / "model" / "tokenizer.json"))
    settings = {"chat_template": CHATML, "eos_token": "<|im_end|>"}
    (made / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    lines = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
        for q, a in FACTS
    ]
    (made / "chat.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return made


def tuned(folder, name, *words):
    settings = {
        "model.name": folder / "model",
        "model.sequence": 48,
        "data.source": folder / "chat.jsonl",
        "data.packed": "true",
        "train.batch": 4,
        "train.steps": 4,
        "train.report_every": 1,
        "train.evaluate_every": 2,
        "train.evaluate_batches": 1,
        "optimizer.lr": "1e-2",
        "run.folder": folder / name,
    }
    given = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    return sl.train(settings=[*given, *words], plan="fp32 micro=2")


def events(folder, name, kind):
    lines = (folder / name / "journal.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


def test_a_whole_model_is_tuned_evaluated_and_loaded_by_from_pretrained(folder):
    out = folder / "whole"
    result = tuned(folder, "full", "--run.export", str(out))
    assert result.training_loss < result.losses[0][1] - 0.5
    assert len(events(folder, "full", "evaluation")) == 2
    assert result.forecast is not None  # of packed rows too
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    start = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    assert model.dtype == start.dtype == torch.bfloat16  # as it was published
    moved = (model.lm_head.weight - start.lm_head.weight).abs().max()
    assert moved > 1e-3  # and it started from the weights, not from random ones:
    assert moved < 0.5 * start.lm_head.weight.abs().max() + 0.05
    words = transformers.AutoTokenizer.from_pretrained(out)
    assert words.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)


def test_a_model_starts_from_the_weights_in_its_folder_unless_random_ones_are_asked_for(folder):
    """A rate of 0 shows what it started from."""
    published = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    for word, same in (("", True), ("random", False)):
        words = ["--optimizer.lr", "0", "--train.steps", "1", "--optimizer.wd", "0"]
        out = folder / f"still-{same}"
        words += ["--model.weights", word, "--run.export", str(out)]
        tuned(folder, f"start-{same}", *words)
        found = transformers.AutoModelForCausalLM.from_pretrained(out)
        assert torch.equal(found.lm_head.weight, published.lm_head.weight) is same


def test_a_folder_without_weights_is_refused_unless_random_ones_are_asked_for(folder):
    bare = folder / "bare"
    shutil.copytree(folder / "model", bare, ignore=shutil.ignore_patterns("*.safetensors"))
    words = ["--model.name", str(bare), "--train.steps", "1"]
    with pytest.raises(ModelError, match=r"no \*.safetensors, .*write --model.weights random"):
        tuned(folder, "from-nothing", *words)
    assert tuned(folder, "from-random", *words, "--model.weights", "random").losses


def test_a_run_that_ended_before_its_first_checkpoint_begins_anew_when_it_is_resumed(folder):
    words = ["--train.steps", "1", "--run.resume", "true"]
    with pytest.raises(RecordError, match="holds none"):
        tuned(folder, "never-begun", *words)
    Journal(folder / "cut-off").close()
    assert tuned(folder, "cut-off", *words).losses
    said = [entry["text"] for entry in events(folder, "cut-off", "event")]
    assert any(text.endswith("has no checkpoint yet: begins anew") for text in said), said


@pytest.fixture(scope="module")
def adapted(folder):
    """A run with adapters on all linears, and both of its folders."""
    pytest.importorskip("peft", reason="needs the package peft")
    words = ["--run.export", str(folder / "merged"), "--run.export_adapter", str(folder / "pair")]
    tuned(folder, "lora", "--model.lora", "r=4 alpha=8", *words)
    return folder


def test_adapters_are_merged_as_peft_merges_them(adapted):
    import peft

    base = transformers.AutoModelForCausalLM.from_pretrained(adapted / "model", dtype="float32")
    theirs = peft.PeftModel.from_pretrained(base, adapted / "pair").merge_and_unload()
    ours = transformers.AutoModelForCausalLM.from_pretrained(adapted / "merged")
    published = transformers.AutoModelForCausalLM.from_pretrained(adapted / "model")
    names = dict(ours.named_parameters())
    assert names.keys() == dict(theirs.named_parameters()).keys()
    for name, value in theirs.named_parameters():
        assert torch.equal(value.bfloat16(), names[name]), name
    changed = [n for n, p in published.named_parameters() if not torch.equal(p, names[n])]
    assert len(changed) == 14 and not [n for n in changed if "norm" in n or "embed" in n]


def test_the_command_merges_too(adapted, capsys):
    out = adapted / "by-command"
    assert main(["checkpoint", "convert", str(adapted / "lora"), str(out)]) == 0
    ours = transformers.AutoModelForCausalLM.from_pretrained(out, dtype="float32")
    merged = transformers.AutoModelForCausalLM.from_pretrained(adapted / "merged")
    assert torch.equal(ours.lm_head.weight.bfloat16(), merged.lm_head.weight)


def test_an_export_that_could_not_be_written_is_refused_before_the_first_step(folder):
    with pytest.raises(RecordError, match=r"run\.export: .*model exists\. Name a new place"):
        tuned(folder, "never", "--run.export", str(folder / "model"))
    with pytest.raises(PlanError, match="only adapters are written so, and model.lora adds none"):
        tuned(folder, "never", "--run.export_adapter", str(folder / "nothing"))
    assert not (folder / "never").exists()
