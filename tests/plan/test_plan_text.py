"""The plan's words: every mistake is named, in shorthand, in TOML and in a table alike."""

import pytest

from stepladder.errors import PlanError
from stepladder.plan import Plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keep=embed", "keep: 'embed' names nothing to keep. Write keep=fp32:embed,head."),
        ("keep=fp32:", "keep: 'fp32:' names nothing to keep. Write keep=fp32:embed,head."),
        ("keep=fp32:a,,b", "keep: 'fp32:a,,b' names nothing to keep."),
        ("offload=gradients", "offload: 'gradients' cannot be offloaded."),
        (
            "offload=optimiser",
            "offload: 'optimiser' cannot be offloaded. Did you mean 'optimizer'?",
        ),
        ("compile=yes", "compile: 'yes' is none of on, off, blocks, whole. Write compile=on."),
        ("kernels=yes", "kernels: 'yes' is not a kind of kernel."),
        (
            "kernels=head,matmul",
            "kernels: 'matmul' is not a kind of kernel. Did you mean 'matmuls'?",
        ),
        ("graphs=1", "graphs: '1' is neither on nor off. Write graphs=on."),
        ("attention=flsh", "attention: 'flsh' is not a kind. Did you mean 'flash'?"),
        ("bf16 'open", 'plan: "bf16 \'open" has an open quote. Close it.'),
        ("zro3", "plan: 'zro3' is not a word of a plan. Did you mean 'zero3'?"),
        ("BF16", "plan: 'BF16' is not a word of a plan. Did you mean 'bf16'?"),
        ("16-mixed", "plan: '16-mixed' is not a word of a plan. Did you mean 'fp16'?"),
        ("bf16-mixed", "plan: 'bf16-mixed' is not a word of a plan. Did you mean 'bf16'?"),
        ("32", "plan: '32' is not a word of a plan. Did you mean 'fp32'?"),
        ("ZeRO3", "plan: 'ZeRO3' is not a word of a plan. Did you mean 'zero3'?"),
        ("precision=BF16", "precision: 'BF16' is not a precision. Did you mean 'bf16'?"),
        ("tensr=2", "plan: 'tensr' is not a word of a plan. Did you mean 'tensor'?"),
        ("data=zer3", "data: 'zer3' is not a data rung. Did you mean 'zero3'?"),
        ("bf16 fp16", "precision: given twice, as bf16 and fp16. Keep one."),
        ("micro=1 micro=2", "micro: given twice, as 1 and 2. Keep one."),
        ("zero1 zero2", "data: given twice, as zero1 and zero2. Keep one."),
        ("hsdp", "hsdp: needs the width of one axis. Add shard=8 (ranks of a node)."),
        ("keep=fp32:a\0", "plan: 'keepfp32:a\\x00' is not text. Leave such letters out."),
        ("keep=fp32:\ud800", "plan: 'keepfp32:\\ud800' is not text. Leave such letters out."),
        ("micro=1.0", "batch.micro: '1.0' is not a whole number of 1 or more. Write a number."),
        ("shard=-2", "layout.shard: '-2' is not a whole number of 1 or more. Write a number."),
        ("memory=12", "memory: '12' is not a size. Write it in GiB, such as 12GiB."),
        ("exact", "exact: stands alone, and is written exact=VALUE. Choose none, free, runs"),
        ("fp32 tensor", "tensor: stands alone, and is written tensor=VALUE. Write tensor=2."),
        ("optimizer=adm", "optimizer: 'adm' is not an optimizer. Did you mean 'adam'?"),
    ],
)
def test_a_mistake_in_the_shorthand_is_named(text, message):
    with pytest.raises(PlanError) as caught:
        Plan.parse(text)
    assert str(caught.value).startswith(message)


def test_the_same_word_twice_is_harmless():
    assert Plan.parse("bf16 bf16 micro=2 micro=2") == Plan.parse("bf16 micro=2")


def test_offloads_are_kept_in_one_order():
    assert Plan.parse("offload=activations,optimizer").offload == ("optimizer", "activations")
    assert Plan.parse("offload=none").offload == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("micro = ", "plan.toml: is not TOML: Invalid value"),
        ("micro = 1.5", "batch.micro: '1.5' is not a whole number of 1 or more. Write a number."),
        ("micro = true", "batch.micro: 'on' is not a whole number of 1 or more. Write a number."),
        ("[micro]\na = 1", "batch.micro: 'a table' is not a whole number of 1 or more."),
        ("micro = [1, 2]", "batch.micro: '1,2' is not a whole number of 1 or more."),
        ("micro = 1979-05-27", "batch.micro: '1979-05-27' is not a whole number of 1 or more."),
        ("micro = inf", "batch.micro: 'inf' is not a whole number of 1 or more."),
        (f"micro = {'9' * 5000}", "plan.toml: is not TOML: Exceeds the limit"),
        (f"micro = 0x{'f' * 5000}", "batch.micro: 'int…' is not a whole number of 1 or more."),
        (f"micro = {'[' * 5000}", "plan.toml: is not TOML: maximum recursion depth exceeded"),
        ("nodes = 1", "plan: 'nodes' is not a word of a plan."),
    ],
)
def test_a_mistake_in_toml_is_named(text, message):
    with pytest.raises(PlanError) as caught:
        Plan.from_toml(text)
    assert str(caught.value).startswith(message)


def test_toml_takes_true_numbers_and_lists():
    text = 'precision = "bf16"\ncompile = true\nmicro = 2\noffload = ["optimizer", "activations"]'
    assert Plan.from_toml(text) == Plan.parse(
        "bf16 compile=on micro=2 offload=optimizer,activations"
    )


def test_letters_json_and_toml_escape_differently_read_back():
    plan = Plan(keep=("😀", "a\x7fb", "a'b\"c\\d", "é"))
    assert Plan.from_toml(plan.to_toml()) == plan
    assert Plan.parse(str(plan)) == plan
