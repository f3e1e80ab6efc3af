"""The facts of any module, traced without memory, are those of its shape and of the real thing."""

import json
import logging
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn

from stepladder.errors import ModelError, PlanError
from stepladder.model import build, count_flops, describe
from stepladder.model.builtin.resnet import ResNet
from stepladder.rungs import measure_blocks
from stepladder.workload import Facts, facts_of_shape, find_facts
from stepladder.workload.presets import PRESETS
from tests.soak import soak_after

torch.set_num_threads(1)
WIDTHS = ((4, 4), (2, 4), (2, 2))  # work and stream: fp32, autocast, stored in bf16


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def all_kept(facts: Facts, way: str, widths: tuple[int, int]) -> float:
    return sum(getattr(part, way).num_bytes(*widths) * part.count for part in facts.parts)


@pytest.mark.parametrize(
    "name", soak_after(["llama-tiny", "gpt-tiny", "llama:layers=3,hidden=128,heads=4"])
)
def test_a_traced_transformer_has_the_facts_of_its_shape(name: str) -> None:
    traced, counted = describe(build(name, device="meta")), find_facts(name)
    assert traced.parameters == counted.parameters
    assert traced.flops_per_sample == counted.flops_per_sample
    assert (traced.tokens, traced.vocab) == (counted.tokens, counted.vocab)
    assert traced.num_blocks == counted.num_blocks and len(traced.parts) == 3
    for way in ("eager", "compiled", "selective"):
        for widths in WIDTHS:
            kept = all_kept(traced, way, widths)
            assert kept == pytest.approx(all_kept(counted, way, widths), rel=0.01), (way, widths)
    block, known = traced.parts[1], counted.parts[1]
    assert block.scratch.num_bytes(4, 4) == pytest.approx(known.scratch.num_bytes(4, 4), rel=0.01)
    assert block.whole_parameters == known.whole_parameters
    assert sorted(m.cut for m in block.matmuls) == sorted(m.cut for m in known.matmuls)
    assert block.attention == known.attention and block.output == known.output


@pytest.mark.soak
def test_a_traced_resnet_has_the_facts_of_its_stages() -> None:
    traced = describe(build("resnet50", device="meta"), sample=torch.zeros(1, 3, 224, 224))
    counted = find_facts("resnet50")
    assert traced.parameters == counted.parameters == 25_557_032
    assert traced.flops_per_sample == counted.flops_per_sample
    assert [part.count for part in traced.parts] == [part.count for part in counted.parts]
    for widths in WIDTHS:
        kept = all_kept(traced, "eager", widths)
        assert kept == pytest.approx(all_kept(counted, "eager", widths), rel=0.01)
    inside = [sum(p.selective.num_bytes(4, 4) for p in f.parts[1:-1]) for f in (traced, counted)]
    assert inside[0] == pytest.approx(inside[1], rel=0.01)


@pytest.mark.parametrize(
    ("name", "sample"),
    soak_after([("resnet-tiny", (1, 8, 8)), ("mlp-tiny", (64,)), ("vit-tiny", (3, 224, 224))]),
)
def test_a_name_without_a_shape_is_traced(name: str, sample: tuple[int, ...]) -> None:
    facts, module = describe(name), build(name, device="meta")
    flops = count_flops(module, torch.zeros(1, *sample))
    assert facts.parameters == parameters(module) and facts.name == name
    assert facts.flops_per_sample == 3 * flops.forward


def test_kept_bytes_are_those_that_autograd_really_saves() -> None:
    module = build("llama-tiny")
    tokens = torch.zeros(2, 256, dtype=torch.long)
    real = measure_blocks(
        [(f"blocks.{i}", b) for i, b in enumerate(module.blocks)], lambda: module(tokens)
    )
    block = describe(module, sample=tokens, device="cpu").parts[1]
    assert 2 * block.eager.num_bytes(4, 4) == pytest.approx(real[1].kept_bytes, rel=0.001)
    assert 2 * block.selective.num_bytes(4, 4) == pytest.approx(real[1].cheap_bytes, rel=0.001)
    assert 2 * block.input.num_bytes(4, 4) == real[1].whole_bytes


def test_compiled_facts_are_what_the_partitioner_keeps() -> None:
    module = build("gpt:layers=1,hidden=64,heads=2,vocab=64,sequence=32")
    block, saved = module.blocks[0], []
    run = torch.compile(block, backend="aot_eager_decomp_partition")
    own = {tensor.untyped_storage()._cdata for tensor in module.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run(torch.randn(2, 32, 64, requires_grad=True))
    sizes = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in saved}
    real = sum(size for address, size in sizes.items() if address not in own)
    facts = describe(module, sequence=32)
    assert 2 * facts.parts[1].compiled.num_bytes(4, 4) == pytest.approx(real, rel=0.01)


def test_eight_billion_parameters_are_described_without_memory() -> None:
    facts = describe(build("llama3-8b", device="meta"), sequence=4096)
    assert facts.parameters == 8_030_261_248 and facts.parts[1].count == 32


def test_a_shape_a_name_a_config_and_its_file_agree(tmp_path) -> None:
    config = {
        "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 256,
        "intermediate_size": 128,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert describe(config, sequence=32).parts == describe(str(path), sequence=32).parts
    shape = PRESETS["gpt-tiny"]
    assert describe(shape, sequence=64).parts == describe("gpt-tiny", sequence=64).parts
    assert describe(shape) == facts_of_shape(shape)


def test_hugging_face_models_are_described_like_ours() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=4,
        intermediate_size=128, vocab_size=256, max_position_embeddings=32,
    )  # fmt: skip
    with torch.device("meta"):
        llama = transformers.LlamaForCausalLM(config)
        gpt = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=256, n_positions=32)
        )
    # With a mask, a block that is looked at twice must not find its keys twice in the cache.
    mask = torch.tensor([[1] * 24 + [0] * 8])
    masked = describe(llama, sample={"input_ids": mask, "attention_mask": mask})
    for module, facts in ((llama, masked), (gpt, describe(gpt, sequence=32))):
        assert facts.parameters == parameters(module), "a tied head is counted once"
        assert facts.num_blocks == 2
        tokens = torch.zeros(1, 32, dtype=torch.long)
        assert facts.flops_per_sample == 3 * count_flops(module, tokens).forward
    ours = describe("llama:layers=2,hidden=64,heads=4,ffn=128,vocab=256", sequence=32)
    assert masked.flops_per_sample == ours.flops_per_sample


class Odd(nn.Module):
    """No blocks, one weight twice, a branch that training never takes."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.back, self.never = (nn.Linear(8, 8) for _ in range(3))
        self.back.weight = self.turn.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows = self.back(torch.tanh(self.turn(rows)))
        return rows if self.training else self.never(rows)


def test_an_odd_module_is_one_part_and_is_left_as_it_was() -> None:
    module = Odd().eval()
    facts = describe(module, sample=torch.zeros(1, 8))
    assert facts.parameters == parameters(module) == 64 + 8 + 8 + 64 + 8
    assert facts.num_blocks == 0 and facts.flops_per_sample == 3 * 2 * 2 * 64
    tanh, copy = 8, 8  # what is read is the batch's own in fp32, and copied for fewer bits
    assert facts.entry.eager.num_bytes(4, 4) == 4 * tanh
    assert facts.entry.eager.num_bytes(2, 2) == 2 * (tanh + copy)
    assert not module.training and "forward" not in vars(module)


class Counting(nn.Module):
    """Counts its calls, remembers its statistics and keeps what it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.norm, self.calls = nn.Linear(8, 8), nn.BatchNorm1d(8), 0
        self.nested, self.draws = {"calls": [0]}, np.random.default_rng(0)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.nested["calls"][0] += 1
        self.draws.random()
        self.kept = self.norm(self.turn(rows))
        return self.kept


@pytest.mark.parametrize("probe", [False, True])
def test_what_a_module_notes_in_forward_is_not_noted_while_it_is_described(probe: bool) -> None:
    module = Counting()
    describe(module, sample=torch.zeros(2, 8), probe=probe)
    assert module.calls == module.nested["calls"][0] == 0 and "kept" not in vars(module)
    assert module.draws.random() == np.random.default_rng(0).random()
    assert module.norm.num_batches_tracked == 0 and not module.norm.running_mean.any()


def test_blocks_that_differ_are_parts_of_their_own() -> None:
    module = ResNet(depths=(3, 2), width=8, small=True, channels=1, classes=4)
    facts = describe(module, sample=torch.zeros(1, 1, 8, 8))
    counts = [(part.name, part.count) for part in facts.parts[1:-1]]
    assert sum(count for _, count in counts) == 5 and len(counts) >= 3


class Deciding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.ModuleDict({"gate": Gate()})

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.part["gate"](rows)


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        answer = self.linear(rows)
        return answer if answer.sum().item() > 0 else answer.relu()


def test_what_cannot_be_traced_is_named_and_can_be_probed() -> None:
    module, sample = Deciding(), torch.ones(3, 8)
    with pytest.raises(ModelError, match=r"Deciding\.part\.gate: aten\._local_scalar_dense.*probe"):
        describe(module, sample=sample)
    facts = describe(module, sample=sample, probe=True)
    assert facts.parameters == 72 and facts.flops_per_sample == 3 * 2 * 64
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_probe_measures_what_a_trace_foresees() -> None:
    module = build("gpt:layers=2,hidden=64,heads=2,vocab=64,sequence=32")
    traced, probed = (describe(module, device="cpu", probe=probe) for probe in (False, True))
    for way in ("eager", "selective"):
        kept = all_kept(probed, way, (4, 4))
        assert kept == pytest.approx(all_kept(traced, way, (4, 4)), rel=0.01)


def test_a_module_that_reads_no_tokens_needs_a_sample() -> None:
    with pytest.raises(ModelError, match=r"MLP: cannot be traced.*sample="):
        describe(build("mlp-tiny", device="meta"))


def test_something_else_is_refused() -> None:
    with pytest.raises(PlanError, match="a int is neither a name"):
        describe(7)


def test_frozen_blocks_have_no_backward_and_trained_ones_after_them_a_whole_one() -> None:
    module = build("gpt:layers=2,hidden=32,heads=2,vocab=64,sequence=8")
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.startswith("blocks.1"))
    facts = describe(module, sequence=8)
    frozen, trained = facts.parts[1:3]
    assert frozen.frozen_parameters == frozen.parameters and not trained.frozen_parameters
    assert {m.backward for m in frozen.matmuls} == {0}
    assert {m.backward for m in trained.matmuls} == {2}
    assert frozen.moved_back is not None and frozen.moved_back.eager.num_bytes(4, 4) == 0


def test_a_sample_that_forward_does_not_take_is_refused_as_such() -> None:
    batch = torch.zeros(2, 8), torch.zeros(2, 8), torch.zeros(2, dtype=torch.long)
    with pytest.raises(ModelError, match="Linear: its forward does not take this sample .* inputs"):
        describe(torch.nn.Linear(8, 8), sample=batch)


def test_a_sample_may_be_a_pair_of_inputs_and_targets_as_a_step_takes_it() -> None:
    rows, targets = torch.zeros(2, 8), torch.zeros(2, dtype=torch.long)
    expected = describe(torch.nn.Linear(8, 8), sample=rows)
    assert describe(torch.nn.Linear(8, 8), sample=(rows, targets)).parts == expected.parts
    assert describe(torch.nn.Linear(8, 8), sample=[rows, targets]).parts == expected.parts
    assert describe(torch.nn.Linear(8, 8), sample=((rows,), targets)).parts == expected.parts
    two = torch.nn.Bilinear(8, 8, 4)  # which reads two inputs
    assert describe(two, sample=(rows, rows)).parts == describe(two, sample=((rows, rows), 0)).parts


class Logged(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_torch_logs_no_traceback_of_an_error_that_is_one_line() -> None:
    log, logged = logging.getLogger("torch._subclasses.fake_tensor"), Logged()
    log.addHandler(logged)
    try:
        with pytest.raises(ModelError, match="cannot be traced"):
            describe(torch.nn.Linear(8, 8), sample=torch.zeros(2, 7))
    finally:
        log.removeHandler(logged)
    assert not logged.records


def test_facts_are_the_same_while_dynamo_evaluates_frames() -> None:
    plain = describe(build("gpt-tiny", device="meta"))
    under = torch._dynamo.run(lambda: describe(build("gpt-tiny", device="meta")))()
    assert under.parts == plain.parts


class Masked(torch.nn.Linear):
    def forward(self, inputs, mask=None):
        return super().forward(inputs if mask is None else inputs * mask)


def test_a_pair_is_inputs_and_targets_as_a_step_takes_it_though_a_second_input_is_allowed():
    sample = torch.randn(2, 4), torch.zeros(2, dtype=torch.long)
    assert describe(Masked(4, 3), sample=sample) == describe(Masked(4, 3), sample=sample[0])


def test_two_inputs_that_a_module_needs_are_its_inputs():
    facts = describe(torch.nn.Bilinear(4, 5, 2), sample=(torch.randn(1, 4), torch.randn(1, 5)))
    assert facts.parameters == 42


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, mask=None):
        return self.inner(x)


class WholeDict(Named):
    def forward(self, batch):
        return self.inner(batch["seen"])


@pytest.mark.parametrize("kind", [dict, UserDict], ids=["dict", "a tokenizer's"])
def test_a_sample_may_be_a_dict_with_more_than_the_forward_names(kind) -> None:
    rows, labels = torch.zeros(2, 8), torch.zeros(2, dtype=torch.long)
    expected = describe(Named(), sample=rows).parts
    for sample in (
        kind(x=rows, labels=labels, name=["a", "b"]),
        (kind(x=rows, other=rows), labels),
    ):
        assert describe(Named(), sample=sample).parts == expected
    whole = describe(WholeDict(), sample=kind(seen=rows, labels=labels))
    assert [part.matmuls for part in whole.parts] == [part.matmuls for part in expected]


def test_a_dict_that_holds_nothing_the_forward_names_says_so() -> None:
    with pytest.raises(ModelError, match="does not take this sample .* Give a batch as a step"):
        describe(Named(), sample={"z": torch.zeros(2, 8)})
