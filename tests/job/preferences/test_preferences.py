"""Preference tuning against a plain loop in torch, and a reference that is computed once."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file

import stepladder as sl
from stepladder.errors import DataError, PlanError
from stepladder.job.preferences import reference_model
from tests.ranks import run as on_ranks
from tests.soak import soak_after

transformers = pytest.importorskip("transformers", reason="their models are built by their library")

PAIRS = [(f"{n} + 1?", f"it is {n + 1}", f"no, {n}!") for n in range(7)]
BETA, STEPS, LR = 0.3, 3, 0.05


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A byte-level model in a folder, and pairs of answers with one of them held out."""
    made = tmp_path_factory.mktemp("preferences")
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(made / "model")
    keys = ("prompt", "chosen", "rejected")
    (made / "data").mkdir()
    for name, part in (("train", PAIRS[:-1]), ("validation", PAIRS[-1:])):
        text = "\n".join(json.dumps(dict(zip(keys, pair, strict=True))) for pair in part)
        (made / "data" / f"{name}.jsonl").write_text(text)
    return made


def tuned(folder, name, plan="fp32 micro=2", steps=STEPS, **more):
    settings = {
        "model.name": folder / "model",
        "model.sequence": 32,
        "data.source": folder / "data",
        "train.batch": len(PAIRS) - 1,  # every pair in every step
        "train.beta": BETA,
        "train.steps": steps,
        "train.report_every": 1,
        "train.evaluate_every": 0,
        "train.device": "cpu",
        "optimizer.name": "sgd",
        "optimizer.lr": LR,
        "optimizer.wd": 0,
        "optimizer.clip": "none",
        "rate.kind": "constant",
        "rate.warmup": 0,
        "run.folder": folder / name,
        **more,
    }
    words = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    result = sl.train(settings=words, plan=plan)
    return [loss for _, loss in result.losses], result.validation_loss


def answer_log_probability(model, prompt, answer):
    """Of one answer alone, token by token, without padding: shares no code with what it judges."""
    before, after = list(f"{prompt}\n".encode()), list(f"{answer}\n".encode())
    logits = model(torch.tensor([before + after])).logits[0].log_softmax(-1)
    return sum(logits[len(before) + n - 1, token] for n, token in enumerate(after))


def oracle(folder):
    """The losses of a plain loop with two models, and of the pair that is held out."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype="float32")
    frozen = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def loss_of(pairs):
        losses = []
        for prompt, chosen, rejected in pairs:
            gained = [
                answer_log_probability(model, prompt, one)
                - answer_log_probability(frozen, prompt, one)
                for one in (chosen, rejected)
            ]
            losses.append(torch.log1p(torch.exp(-BETA * (gained[0] - gained[1]))))
        return sum(losses) / len(losses)

    losses = []
    for _ in range(STEPS):
        loss = loss_of(PAIRS[:-1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with torch.no_grad():
        return losses, loss_of(PAIRS[-1:]).item()


@pytest.fixture(scope="module")
def wanted(folder):
    return oracle(folder)


def test_losses_are_those_of_a_plain_loop_with_two_models(folder, wanted):
    losses, held_out = tuned(folder, "one")
    assert losses[0] == pytest.approx(0.6931472, abs=1e-6)  # log 2: both models are the same
    assert losses == pytest.approx(wanted[0], rel=1e-5) and losses[-1] < losses[0]
    assert held_out == pytest.approx(wanted[1], rel=1e-5)


@pytest.mark.parametrize("plan", soak_after(["fp32 zero3 shard=2", "fp32 ddp"]))
def test_ranks_tune_as_one_device_does(folder, wanted, plan):
    for losses, held_out in on_ranks(tuned, 2, folder, f"on {plan}", plan, init=False):
        assert losses == pytest.approx(wanted[0], rel=1e-5)
        assert held_out == pytest.approx(wanted[1], rel=1e-5)


def test_a_resumed_run_does_not_compute_the_reference_again(folder, monkeypatch):
    whole, _ = tuned(folder, "whole", steps=2)
    tuned(folder, "parts", steps=1)
    kept = load_file(folder / "parts" / reference_model.FILE)
    assert {name: tuple(part.shape) for name, part in kept.items()} == {
        "training": (6, 2), "validation": (1, 2)
    }  # fmt: skip

    def refuse(*_):
        raise AssertionError("computed again")

    monkeypatch.setattr(reference_model, "compute", refuse)
    rest, _ = tuned(folder, "parts", steps=2, **{"run.resume": "true"})
    assert rest == whole[1:]
    with pytest.raises(AssertionError, match="computed again"):  # of other pairs it would be
        tuned(folder, "parts", steps=3, **{"run.resume": "true", "model.sequence": 31})


@pytest.mark.soak
def test_adapters_are_tuned_against_the_model_without_them(folder):
    pytest.importorskip("peft", reason="needs the package peft")
    losses, _ = tuned(folder, "lora", **{"model.lora": "r=4 alpha=8", "optimizer.lr": 1})
    assert losses[0] == pytest.approx(0.6931472, abs=1e-6) and losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("settings", "plan", "said"),
    [
        ({}, "fp32 tensor=2", r"layout\.tensor: tensor=2 gives a rank a part of what pairs of"),
        ({"train.loss": "cross_entropy"}, "fp32", "is not read: pairs of answers have a loss of"),
        ({"train.beta": 0}, "fp32", r"train\.beta: 0\.0 holds nothing to the reference model"),
    ],
)
def test_what_cannot_compare_answers_is_refused(folder, settings, plan, said):
    with pytest.raises(PlanError, match=said):
        tuned(folder, "never", plan, **settings)


def test_pairs_are_not_packed(folder):
    with pytest.raises(DataError, match="holds pairs of answers, and packed rows would hold"):
        tuned(folder, "never", **{"data.packed": "true"})
