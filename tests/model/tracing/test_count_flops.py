"""FLOPs counted off modules, against closed forms and published numbers."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from stepladder.model import build, count_flops, set_attention
from stepladder.workload.flops_per_token import shape_flops
from stepladder.workload.presets import PRESETS

torch.set_num_threads(1)


def tokens_of(batch, length):
    return torch.zeros(batch, length, dtype=torch.long)


@pytest.mark.parametrize("attention", ["auto", "flash", "plain"])
@pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny"])
def test_the_count_is_the_closed_form(name, attention):
    model = build(name)
    set_attention(model, attention)
    flops, token = count_flops(model, tokens_of(2, 64)), shape_flops(PRESETS[name], 64)
    assert flops.forward == 128 * token.forward
    assert flops.attention == 128 * token.attention
    assert flops.model == flops.hardware == 128 * token.training


@pytest.mark.parametrize("attention", ["auto", "plain"])
def test_packed_documents_count_as_one_causal_sequence(attention):
    model = build("llama-tiny")
    set_attention(model, attention)
    inputs = {"tokens": tokens_of(2, 64), "documents": tokens_of(2, 64)}
    assert count_flops(model, inputs) == count_flops(model, tokens_of(2, 64))


def test_a_wide_model_costs_six_per_parameter_and_token():
    shape = replace(PRESETS["llama3-8b"], layers=4)
    flops = count_flops(build(shape, device="meta"), tokens_of(1, 128).to("meta"))
    looked_up = shape.embedding_parameters
    assert flops.model == pytest.approx(6 * (shape.parameters - looked_up) * 128, rel=0.02)


@pytest.mark.parametrize(
    ("name", "multiply_adds"),
    [("resnet18", 1.814e9), ("resnet50", 4.09e9), ("vit-base", 17.58e9)],
)
def test_published_multiply_adds_of_image_models(name, multiply_adds):
    flops = count_flops(build(name, device="meta"), torch.zeros(1, 3, 224, 224))
    assert flops.forward == pytest.approx(2 * multiply_adds, rel=0.005)


def test_the_first_layer_owes_its_input_no_gradient():
    net = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Linear(4, 2, bias=False))
    flops = count_flops(net, torch.zeros(10, 8))
    first, second = 2 * 10 * 8 * 4, 2 * 10 * 4 * 2
    assert flops.forward == first + second
    assert flops.backward == first + 2 * second


def test_frozen_weights_want_no_gradient():
    net = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Linear(4, 2, bias=False))
    net[0].requires_grad_(False)
    assert count_flops(net, torch.zeros(10, 8)).backward == 2 * 10 * 4 * 2


def test_the_counted_backward_is_the_one_autograd_runs():
    flop_counter = pytest.importorskip("torch.utils.flop_counter")
    model, images = build("resnet-tiny"), torch.randn(2, 1, 8, 8)
    with flop_counter.FlopCounterMode(display=False) as counter:
        model(images).sum().backward()
    assert count_flops(model, images).model == counter.get_total_flops()


def test_forward_is_split_by_the_anatomys_names():
    flops = count_flops(build("gpt-tiny"), tokens_of(1, 8))
    assert set(flops.parts) == {"blocks.0", "blocks.1", "blocks.2", "blocks.3", "head"}
    assert sum(flops.parts.values()) == flops.forward
    assert flops.parts["head"] == 2 * 8 * 128 * 256


def test_a_loss_is_counted_where_given():
    net, extra = nn.Linear(4, 4, bias=False), torch.zeros(4, 5)
    flops = count_flops(
        net, torch.zeros(3, 4), targets=extra, loss=lambda out, target: (out @ target).sum()
    )
    assert flops.forward == 2 * 3 * 4 * 4 + 2 * 3 * 4 * 5


def test_a_real_module_is_left_as_it_was():
    model = build("resnet-tiny")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    count_flops(model, torch.zeros(2, 1, 8, 8))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny"])  # a tied matrix, a shared table
def test_what_a_model_shares_is_real_again_afterwards(name):
    model = build(name)
    before = [*model.parameters(), *model.buffers()]
    count_flops(model, tokens_of(1, 8))
    after = [*model.parameters(), *model.buffers()]
    assert all(one is other for one, other in zip(before, after, strict=True))
    assert model(tokens_of(1, 8)).isfinite().all()


def test_a_compiled_module_counts_as_written():
    model = build("gpt-tiny")
    expected = count_flops(model, tokens_of(1, 8))
    for block in model.blocks:
        block.compile(backend="eager")
    assert count_flops(model, tokens_of(1, 8)) == expected
    whole = torch.compile(build("gpt-tiny"), backend="eager")
    assert count_flops(whole, tokens_of(1, 8)).model == expected.model


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_hugging_face_models_count_as_ours_of_the_same_shape(attention):
    transformers = pytest.importorskip("transformers", reason="foreign models need transformers")
    gpt = transformers.GPT2Config(n_layer=4, n_embd=128, n_head=4, vocab_size=256)
    llama = transformers.LlamaConfig(
        num_hidden_layers=4, hidden_size=128, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=384, vocab_size=256,
    )  # fmt: skip
    for name, config in {"gpt-tiny": gpt, "llama-tiny": llama}.items():
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(
                config, attn_implementation=attention
            )
        flops = count_flops(model, {"input_ids": tokens_of(2, 64)})
        token = shape_flops(PRESETS[name], 64)
        turning = flops.parts.get("model.rotary_emb", 0)  # some versions make angles by a product
        assert flops.forward - turning == 128 * token.forward
        assert flops.backward == 256 * token.forward
        assert flops.attention == 128 * token.attention


@pytest.mark.soak
def test_70_billion_parameters_are_counted_without_memory():
    model = build("llama3-70b", device="meta")
    flops = count_flops(model, tokens_of(1, 8192).to("meta"))
    assert flops.forward == 8192 * shape_flops(PRESETS["llama3-70b"], 8192).forward


def test_a_row_is_multiplied_by_the_experts_it_goes_to_and_by_no_others():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}

    def forward(experts, each):
        config = transformers.MixtralConfig(
            **sizes, **heads, num_local_experts=experts, num_experts_per_tok=each
        )
        return count_flops(transformers.MixtralForCausalLM(config), tokens_of(2, 16)).forward

    routing, expert = 2 * 32 * 32, 2 * 32 * 3 * 32 * 64  # of 32 rows
    assert forward(4, 2) - forward(4, 1) == expert
    assert forward(8, 1) - forward(4, 1) == 4 * routing
