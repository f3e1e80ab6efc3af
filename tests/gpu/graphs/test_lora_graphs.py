"""Steps of adapters recorded as CUDA graphs: a replay computes what the kernels would."""

import pytest
import torch

import stepladder as sl
from stepladder.model.huggingface.lora import add_lora

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
peft = pytest.importorskip("peft", reason="needs the package peft")
transformers = pytest.importorskip("transformers", reason="needs the package transformers")


def adapted(base):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    return add_lora(transformers.LlamaForCausalLM(config), f"r=8 alpha=16 dropout=0.1 {base}")


def train(plan, base=""):
    run = sl.climb(  # exact: cuDNN's attention gives other bits in every run
        adapted(base), optimizer="adamw lr=1e-3 clip=1", plan=plan, seed=3, exact=True
    )
    draw = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(6):
        tokens = torch.randint(0, 512, (4, 64), generator=draw)
        losses.append(run.step({"input_ids": tokens, "labels": tokens}).loss)
    values = [p.detach().clone() for p in run.module.parameters() if p.requires_grad]
    return losses, values, run


@pytest.mark.parametrize("base", ["", "base=nf4"])
@pytest.mark.parametrize("plan", ["bf16", "bf16-master", "bf16 micro=2"])
def test_a_replayed_step_of_adapters_is_the_same_to_the_bit(plan, base):
    plain, values, _ = train(plan, base)
    recorded, others, run = train(f"{plan} graphs=on", base)
    assert run.climbed.forward_backward.graphs, "nothing was captured"
    assert recorded == plain and plain[-1] != plain[0]
    assert all(torch.equal(one, other) for one, other in zip(values, others, strict=True))
