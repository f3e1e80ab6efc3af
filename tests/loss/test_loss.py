"""What counts as a loss, and over how many targets it is a mean."""

import pytest
import torch
from torch import nn

from stepladder.errors import DataError, ModelError
from stepladder.train import climb
from tests.train.toys import distance, net, pairs


class Answers(nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.answer = answer

    def forward(self, x):
        return self.answer(self.weight * x.mean())


def message(module, loss=None, batch=None):
    run = climb(module, loss=loss, plan="fp32")
    with pytest.raises(ModelError) as raised:
        run.step(pairs(1)[0] if batch is None else batch)
    return str(raised.value)


def test_a_module_without_a_loss_is_told_how_to_get_one():
    assert message(net(), batch=torch.randn(4, 16)) == (
        "loss: Net returns a tensor of shape (4, 5) and no loss. "
        "Give climb one: loss='cross_entropy', or a function of (outputs, targets)."
    )


def test_a_loss_that_is_not_one_number_is_refused():
    wide = message(net(), loss=lambda outputs, targets: outputs)
    assert (
        wide == "loss: returned a tensor of shape (8, 5), not one number. Reduce it with .mean()."
    )


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (
            lambda loss: loss.item(),
            "loss: returned a float, which has no gradient. "
            "Return the tensor that it was read from: leave out .item() or float().",
        ),
        (lambda loss: None, "loss: returned none, not one number. Add a return to it."),
        (
            lambda loss: (loss, {"accuracy": 0.5}),
            "loss: returned a tuple, not one number. "
            "Return the loss alone, or a dict of terms, which are added up to it.",
        ),
        (
            lambda loss: [loss, loss],
            "loss: returned a list, not one number. "
            "Return the loss alone, or a dict of terms, which are added up to it.",
        ),
        (
            lambda loss: "low",
            "loss: returned a str, not one number. Return a tensor that torch computed.",
        ),
        (
            lambda loss: {"a": loss, "b": 0.0},
            "loss.b: returned a float, not a tensor. "
            "Return a tensor, such as outputs.new_zeros(()).",
        ),
        (
            lambda loss: {"a": loss, "b": None},
            "loss.b: returned none, not a tensor. Return a tensor, such as outputs.new_zeros(()).",
        ),
        (
            lambda loss: {"a": loss, "b": loss.item()},
            "loss.b: returned a float, which has no gradient. "
            "Return the tensor that it was read from: leave out .item() or float().",
        ),
    ],
)
def test_each_thing_that_is_no_loss_has_its_own_way_out(returned, told):
    def wrong(outputs, targets):
        return returned(nn.functional.cross_entropy(outputs, targets))

    assert message(net(), loss=wrong) == told


def test_a_loss_that_learns_nothing_is_refused():
    assert message(net(), loss=lambda outputs, targets: outputs.detach().mean()) == (
        "loss: does not depend on any trainable parameter. Unfreeze one, or check loss."
    )


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(
        ModelError, match="'cross_entrpy' is not a loss. Did you mean 'cross_entropy'"
    ):
        climb(net(), loss="cross_entrpy", plan="fp32")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("mse", "Did you mean 'squared_error'?"),
        ("MSELoss", "Did you mean 'squared_error'?"),
        ("ce", "Did you mean 'cross_entropy'?"),
        ("CrossEntropyLoss", "Did you mean 'cross_entropy'?"),
        ("l1", "Pass loss=torch.nn.functional.l1_loss."),
        ("bce", "Pass loss=torch.nn.functional.binary_cross_entropy_with_logits."),
        ("binary_cross_entropy", "Pass loss=torch.nn.functional.binary_cross_entropy."),
        ("smooth_l1_loss", "Pass loss=torch.nn.functional.smooth_l1_loss."),
        ("focal", "Choose one of: cross_entropy, squared_error."),
    ],
)
def test_the_word_that_others_use_leads_to_the_name(name, remedy):
    with pytest.raises(ModelError) as refused:
        climb(net(), loss=name, plan="fp32")
    assert str(refused.value) == f"loss: '{name}' is not a loss. {remedy}"


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"loss": x, "logits": x}])
def test_a_module_may_bring_its_own_loss(wrap):
    run = climb(Answers(wrap), optimizer="sgd lr=1", plan="fp32")
    assert run.step(torch.full((4, 2), 3.0)).loss == pytest.approx(3.0)


def test_squared_error_by_name():
    module = nn.Linear(3, 2)
    run = climb(module, loss="squared_error", optimizer="sgd lr=0", plan="fp32 micro=2")
    x, y = torch.randn(6, 3), torch.randn(6, 2)
    expected = ((module(x) - y) ** 2).mean().item()
    assert run.step((x, y)).loss == pytest.approx(expected, rel=1e-6)


def hugging_face(name):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if name == "gpt2":
        config = transformers.GPT2Config(
            n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=16,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=64, vocab_size=64, max_position_embeddings=16,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def labelled(rows=6, length=12):
    """Hugging Face batches whose rows keep very different numbers of labels."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 64, (rows, length), generator=draw)
    labels = ids.clone()
    for row in range(rows):
        labels[row, : 2 * row] = -100
    return {"input_ids": ids, "labels": labels}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_hugging_face_models_shift_their_labels_and_accumulate_exactly(name):
    whole, cut = hugging_face(name), hugging_face(name)
    one = climb(whole, optimizer="sgd lr=0.5", plan="fp32")
    many = climb(cut, optimizer="sgd lr=0.5", plan="fp32 micro=2")
    theirs = hugging_face(name).train()(**labelled()).loss.item()
    for step in range(5):
        a, b = one.step(labelled()), many.step(labelled())
        if step == 0:
            assert a.loss == pytest.approx(theirs, rel=1e-6)
        assert b.loss == pytest.approx(a.loss, rel=2e-6)
        assert a.tokens == (labelled()["labels"][:, 1:] != -100).sum().item()
    assert distance(cut, whole) < 1e-5


class Channels(nn.Module):
    """Classes in the second dimension, as torch has them."""

    def __init__(self, classes):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv1d(3, classes, 1)

    def forward(self, x):
        return self.layer(x)


def test_classes_may_be_the_second_dimension():
    module, x, y = Channels(5), torch.randn(6, 3, 4), torch.randint(0, 5, (6, 4))
    y[0] = -100
    expected = nn.functional.cross_entropy(module(x), y).item()
    run = climb(module, loss="cross_entropy", optimizer="sgd lr=0", plan="fp32 micro=2")
    assert run.step((x, y)).loss == pytest.approx(expected, rel=1e-6)


def test_classes_that_may_be_either_dimension_are_not_guessed():
    batch = torch.randn(6, 3, 4), torch.randint(0, 4, (6, 4))
    assert "outputs (6, 4, 4) for targets (6, 4) may have their classes in the second" in message(
        Channels(4), "cross_entropy", batch
    )


def test_squared_error_of_a_column_and_a_row_is_not_broadcast():
    module, x, y = nn.Linear(3, 1), torch.randn(6, 3), torch.randn(6)
    expected = nn.functional.mse_loss(module(x)[:, 0], y).item()
    run = climb(module, loss="squared_error", optimizer="sgd lr=0", plan="fp32 micro=2")
    assert run.step((x, y)).loss == pytest.approx(expected, rel=1e-6)
    wide = message(nn.Linear(3, 2), "squared_error", (x, y))
    assert wide == "loss: outputs (6, 2) and targets (6,) differ in shape. Reshape one of them."


@pytest.mark.parametrize(
    "answer",
    [
        lambda y: {"logits": y.reshape(1), "hidden": y + 1},
        lambda y: {"prediction": y.reshape(1), "name": "a"},
        lambda y: (y.reshape(1), None),
    ],
    ids=["logits", "only-one", "tuple"],
)
def test_a_named_loss_finds_the_tensor_in_a_nested_output(answer):
    run = climb(Answers(answer), loss="squared_error", plan="fp32")
    report = run.step((torch.full((1, 4), 3.0), torch.zeros(1)))
    assert report.loss == pytest.approx(9.0)


def test_a_named_loss_refuses_an_output_of_several_tensors():
    line = message(Answers(lambda y: (y, y)), "squared_error")
    assert line.startswith("loss: the module returns a tuple, and a loss given by name takes one")
    assert "lambda outputs, targets" in line


NOT_CLASSES = {
    "none": (None, "a loss given by name takes one tensor, and the batch has none"),
    "a dict": ({"a": torch.zeros(6).long()}, "and the batch has a dict"),
    "floats": (
        torch.zeros(6),
        r"are float32 of shape \(.,\) for outputs of shape .*; classes are",
    ),
    "too many": (
        torch.zeros(6, 2).long(),
        r"are int64 of shape \(., 2\) .* one output for each",
    ),
    "no such class": (torch.full((6,), 7), "target 7 is out of bounds: the loss has fewer classes"),
}


@pytest.mark.parametrize("plan", ["fp32", "bf16 micro=2", "auto"])
@pytest.mark.parametrize("targets, said", NOT_CLASSES.values(), ids=NOT_CLASSES)
def test_targets_that_cross_entropy_cannot_use_are_named(plan, targets, said):
    run = climb(nn.Linear(4, 3), loss="cross_entropy", optimizer="sgd lr=0.1", plan=plan)
    batch = torch.randn(6, 4) if targets is None else (torch.randn(6, 4), targets)
    with pytest.raises(DataError, match=said):
        run.step(batch)
    assert run.step((torch.randn(6, 4), torch.zeros(6, dtype=torch.int64))).step == 0


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.int8])
def test_classes_may_be_integers_of_any_width(dtype):
    module, inputs, targets = nn.Linear(4, 3), torch.randn(6, 4), torch.tensor([0, 1, 2] * 2)
    expected = nn.functional.cross_entropy(module(inputs), targets).item()
    run = climb(module, loss="cross_entropy", optimizer="sgd lr=0.1", plan="fp32")
    assert run.step((inputs, targets.to(dtype))).loss == pytest.approx(expected)
