"""Linears in 4 bits: the levels, the rounding, the bytes, and training on ranks."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import stepladder as sl
from stepladder.errors import ModelError, PlanError
from stepladder.job.export.export_checkpoint import export_checkpoint
from stepladder.model import describe, nf4_linear
from stepladder.model.huggingface.lora import LoraSettings, add_lora
from stepladder.model.nf4_linear import LEVELS, NF4Linear, dequantise, quantise
from stepladder.plan import Plan
from stepladder.planner import forecast_state
from stepladder.rungs.parameter_shards import local
from stepladder.rungs.tensor.lora_cuts import check_adapters
from tests.ranks import run as on_ranks
from tests.soak import soak_after

WEIGHT = torch.randn(24, 128, generator=torch.Generator().manual_seed(0))


def test_the_levels_are_quantiles_of_a_normal_distribution():
    normal = pytest.importorskip("scipy.stats").norm
    outer = 0.9677083  # bitsandbytes' and the paper's
    above = normal.ppf(np.linspace(outer, 0.5, 9)[:-1])
    below = -normal.ppf(np.linspace(outer, 0.5, 8)[:-1])
    wanted = np.sort(np.concatenate([above, [0], below]))
    assert np.allclose(LEVELS, wanted / wanted.max(), atol=1e-6)


def test_every_weight_becomes_the_nearest_level_of_its_block():
    found = dequantise(*quantise(WEIGHT), torch.float32)
    levels = np.array(LEVELS)
    for row in range(len(WEIGHT)):
        for first in (0, 64):
            block = WEIGHT[row, first : first + 64].double().numpy()
            scale = np.abs(block).max()
            nearest = levels[np.abs(block[:, None] / scale - levels).argmin(1)] * scale
            assert np.allclose(found[row, first : first + 64].numpy(), nearest, atol=1e-6)


def test_a_block_of_zeros_stays_so_and_codes_survive_a_cast_on_their_way():
    assert not dequantise(*quantise(torch.zeros(2, 64)), torch.float32).any()
    codes, scales = quantise(WEIGHT)
    again = dequantise(codes.bfloat16(), scales.bfloat16(), torch.float32)
    assert torch.equal(again, dequantise(codes, scales, torch.float32))


def keep(seen, tensor):
    seen.append(tensor.dtype)
    return tensor


def test_levels_reach_a_device_once_and_no_fake_ones_are_kept(monkeypatch):
    monkeypatch.setattr(nf4_linear, "KEPT", {})
    codes = torch.zeros(2, 32, dtype=torch.uint8)
    with FakeTensorMode() as fake:
        levels = nf4_linear.levels_for(fake.from_tensor(codes))
        assert isinstance(levels, FakeTensor)
    kept = nf4_linear.levels_for(codes)
    assert kept is nf4_linear.levels_for(codes) and kept.tolist() == pytest.approx(LEVELS)


@pytest.mark.parametrize("autocast", [False, True])
def test_it_computes_what_the_whole_matrix_does_and_holds_only_bytes_for_backward(autocast):
    whole = nn.Linear(128, 24)
    with torch.no_grad():
        whole.weight.copy_(WEIGHT)
    packed = NF4Linear(whole.requires_grad_(False))
    with torch.no_grad():
        whole.weight.copy_(dequantise(packed.codes, packed.scales, torch.float32))
    results, saved = [], []
    for linear, seen in ((whole, []), (packed, saved)):
        given = torch.randn(5, 128, generator=torch.Generator().manual_seed(1)).requires_grad_()
        hooks = torch.autograd.graph.saved_tensors_hooks(
            partial(keep, seen),
            lambda one: one,
        )
        with hooks, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            answer = linear(given)
        answer.float().square().sum().backward()
        results.append((answer, given.grad))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    assert set(saved) - {torch.float32} <= {torch.uint8, torch.bfloat16}
    assert saved.count(torch.uint8) == 2
    assert packed.codes.nbytes + packed.scales.nbytes == WEIGHT.numel() * 4.5 / 8


peft = pytest.importorskip("peft", reason="needs the package peft")
transformers = pytest.importorskip("transformers", reason="needs the package transformers")
TOKENS = torch.randint(0, 96, (4, 9), generator=torch.Generator().manual_seed(2))
SHAPE = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
    "tie_word_embeddings": False,
}


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE))


def adapted(base="base=nf4"):
    module = add_lora(llama(), f"r=4 alpha=8 {base}")
    draw = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        if parameter.requires_grad:  # peft's second matrices begin at zero
            parameter.data.normal_(std=0.1, generator=draw)
    return module


def losses(plan, module=None):
    run = sl.climb(module or adapted(), optimizer="sgd lr=0.5", plan=plan, device="cpu")
    batch = {"input_ids": TOKENS, "labels": TOKENS}
    found = [run.step(batch, rows="global").loss for _ in range(3)]
    held = sum(local(p).nbytes for p in run.module.parameters())
    packed = sum(local(p).nbytes for p in run.module.parameters() if p.dtype == torch.uint8)
    return found, held, packed


def rounded():
    """The same model in whole numbers, of the values that 4 bits can tell."""
    module = adapted("")
    for name, part in module.named_modules():
        if type(part) is nn.Linear and "lora" not in name and "lm_head" not in name:
            part.weight.data = dequantise(*quantise(part.weight.data), torch.float32)
    return module


def test_adapters_learn_on_4_bits_what_they_learn_on_the_rounded_matrices():
    found, held, packed = losses("fp32")
    whole, before, _ = losses("fp32", rounded())
    assert found == whole and found[-1] < found[0]
    matrices = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
    assert packed == matrices * 4.5 / 8 and before - held == matrices * (4 - 4.5 / 8)


@pytest.mark.parametrize(
    ("plan", "sliced"),
    soak_after([("fp32 zero3 shard=2", 2), ("fp32 ddp", 1), ("bf16 zero3 shard=2", 2)]),
)
def test_ranks_learn_as_one_device_does_and_zero3_slices_the_bytes(plan, sliced):
    alone, _, packed = losses(plan.partition(" ")[0])
    allowed = 1e-5 if "fp32" in plan else 5e-3
    for found, _, part in on_ranks(losses, 2, plan, init=False):
        assert found == pytest.approx(alone, rel=allowed)
        assert part == packed / sliced


def test_the_forecast_counts_the_bytes():
    batch = {"input_ids": TOKENS[:1], "labels": TOKENS[:1]}
    _, held, _ = losses("fp32")
    (state,) = forecast_state(
        describe(adapted(), sample=batch), Plan.parse("fp32 micro=1").settle(1)
    )
    assert state.parameters == held


def test_the_merged_model_is_the_rounded_one_with_its_adapters(tmp_path):
    run = sl.climb(adapted(), optimizer="sgd lr=0.5", plan="fp32", device="cpu")
    run.step({"input_ids": TOKENS, "labels": TOKENS}).read()
    run.save(tmp_path / "run")
    export_checkpoint(tmp_path / "run", tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        ours = run.module.eval()(TOKENS).logits
        torch.testing.assert_close(theirs(TOKENS).logits, ours, atol=1e-5, rtol=1e-4)


def test_what_4_bits_cannot_hold_is_refused():
    with pytest.raises(PlanError, match="'int3' is no base"):
        add_lora(llama(), "r=4 base=int3")
    narrow = transformers.LlamaConfig(**{**SHAPE, "hidden_size": 32, "intermediate_size": 32})
    with pytest.raises(ModelError, match="base=nf4 found no frozen linear of LlamaForCausalLM"):
        add_lora(transformers.LlamaForCausalLM(narrow), "r=4 base=nf4")
    with pytest.raises(ModelError, match="is held in 4 bits, whose blocks are not cut"):
        check_adapters(adapted())


@pytest.mark.parametrize("package", ["bitsandbytes", "torchao"])
def test_bases_of_other_packages_are_refused_by_name(package):
    with pytest.raises(PlanError) as refused:
        LoraSettings.parse(f"r=4 base={package}")
    assert str(refused.value) == (
        f"model.lora: {package} keeps 4-bit matrices in classes that ZeRO here cannot slice. "
        "Write base=nf4, the same type."
    )
