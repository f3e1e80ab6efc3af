"""The anatomy of modules that declare none."""

import pytest
import torch
from torch import nn

from stepladder.model import build, find_anatomy


class Block(nn.Module):
    def __init__(self, experts=0):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 8)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(experts))

    def forward(self, hidden):
        return hidden + self.fc2(self.fc1(hidden).relu())


class Net(nn.Module):
    def __init__(self, experts=0, tied=False):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.layers = nn.ModuleList(Block(experts) for _ in range(3))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 10, bias=False)
        if tied:
            self.head.weight = self.embed.weight


def test_the_list_of_like_blocks_splits_entry_from_exit():
    anatomy = find_anatomy(Net())
    assert anatomy.entry == ("embed",)
    assert anatomy.blocks == ("layers.0", "layers.1", "layers.2")
    assert anatomy.exit == ("norm", "head")
    assert (anatomy.head, anatomy.embedding, anatomy.tied) == ("head", "embed", False)
    assert anatomy.cuts == {"fc1": "column", "fc2": "row"}


def test_one_matrix_in_two_places_is_tied():
    assert find_anatomy(Net(tied=True)).tied


def test_a_longer_list_inside_one_block_is_not_the_list_of_blocks():
    assert find_anatomy(Net(experts=7)).blocks == ("layers.0", "layers.1", "layers.2")


def test_the_experts_of_a_single_block_are_not_the_blocks():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(4, 3)
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    net = nn.Module()
    net.blocks = nn.ModuleList([Experts()])
    assert find_anatomy(net).blocks == ("blocks.0",)
    net.blocks = nn.ModuleList([Experts(), Block()])  # of two kinds: no list of like blocks
    assert find_anatomy(net).blocks == ()


def test_sibling_lists_of_one_class_are_one_list():
    stages = nn.Sequential(*[nn.Sequential(Block(), Block()) for _ in range(2)], nn.Linear(8, 2))
    anatomy = find_anatomy(stages)
    assert anatomy.blocks == ("0.0", "0.1", "1.0", "1.1")
    assert (anatomy.entry, anatomy.exit, anatomy.head) == ((), ("2",), "2")


def test_a_run_of_attributes_is_a_list():
    net = nn.Module()
    net.first, net.a, net.b, net.c = nn.Linear(8, 8), Block(), Block(), Block()
    anatomy = find_anatomy(net)
    assert (anatomy.entry, anatomy.blocks) == (("first",), ("a", "b", "c"))


def test_a_list_of_one_block_is_found():
    net = nn.Module()
    net.layers = nn.ModuleList([Block()])
    assert find_anatomy(net).blocks == ("layers.0",)


@pytest.mark.parametrize("net", [nn.Linear(2, 2), nn.Identity()])
def test_a_module_without_parts_has_an_empty_anatomy(net):
    assert find_anatomy(net).blocks == ()


def test_a_plain_sequence_of_layers_has_no_blocks_but_a_head():
    anatomy = find_anatomy(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    assert (anatomy.entry, anatomy.blocks, anatomy.head) == (("0", "1", "2"), (), "2")


def test_a_declared_anatomy_is_believed():
    net = Net()
    net.anatomy = find_anatomy(nn.Linear(2, 2))
    assert find_anatomy(net) is net.anatomy


def test_a_compiled_module_has_the_anatomy_of_what_was_compiled():
    model = build("gpt-tiny")
    compiled = torch.compile(model)
    anatomy = find_anatomy(compiled)
    assert [block for _, block in anatomy.blocks_of(compiled)] == list(model.blocks)
    assert compiled.get_submodule(anatomy.head) is model.head
    assert compiled.get_submodule(anatomy.embedding) is model.embedding
    assert (anatomy.exit, anatomy.tied) == (("_orig_mod.norm", "_orig_mod.head"), True)


def test_hugging_face_gpt2_is_read_and_its_joined_matrix_cut_in_thirds():
    transformers = pytest.importorskip("transformers", reason="foreign models need transformers")
    with torch.device("meta"):
        net = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64)
        )
    anatomy = find_anatomy(net)
    assert anatomy.entry == ("transformer.wte", "transformer.wpe", "transformer.drop")
    assert anatomy.blocks == ("transformer.h.0", "transformer.h.1")
    assert anatomy.exit == ("transformer.ln_f", "lm_head")
    assert (anatomy.head, anatomy.embedding, anatomy.tied) == ("lm_head", "transformer.wte", True)
    assert anatomy.cuts == {
        "attn.c_attn": "fused",
        "attn.c_proj": "row",
        "mlp.c_fc": "column",
        "mlp.c_proj": "row",
    }


def test_hugging_face_llama_says_its_cuts_itself():
    transformers = pytest.importorskip("transformers", reason="foreign models need transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64,
        vocab_size=64,
    )  # fmt: skip
    with torch.device("meta"):
        anatomy = find_anatomy(transformers.LlamaForCausalLM(config))
    assert anatomy.blocks == ("model.layers.0", "model.layers.1")
    assert (anatomy.head, anatomy.embedding) == ("lm_head", "model.embed_tokens")
    columns = [name for name, kind in anatomy.cuts.items() if kind == "column"]
    assert columns == [
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
        "mlp.gate_proj", "mlp.up_proj",
    ]  # fmt: skip
    assert set(anatomy.cuts) - set(columns) == {"self_attn.o_proj", "mlp.down_proj"}


def test_a_pair_that_some_blocks_lack_is_not_cut():
    net = Net()
    net.layers[0].attention = nn.Module()
    del net.layers[2].fc2
    assert find_anatomy(net).cuts == {}
    plain = Net()
    for layer in plain.layers:
        layer.inner = Block()
    del plain.layers[1].inner.fc1
    assert find_anatomy(plain).cuts == {"fc1": "column", "fc2": "row"}


def test_a_list_of_modules_is_no_block():
    """As in a U-Net, whose levels keep their attentions and convolutions in two lists."""
    level = nn.Module()
    level.attentions = nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for _ in range(2))
    level.resnets = nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for _ in range(2))
    level.samplers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for _ in range(2))
    names = find_anatomy(level).blocks
    assert names and not any(isinstance(level.get_submodule(n), nn.ModuleList) for n in names)
