"""Models whose frozen matrices bitsandbytes holds in 4 bits train on every rung of data; and the
bytes of our own `base=nf4` are those of bitsandbytes."""

import pytest
import torch

import stepladder as sl
from stepladder.model.nf4_linear import dequantise, quantise
from stepladder.rungs.parameter_shards import local
from tests.ranks import run as on_ranks
from tests.soak import soak_after

bitsandbytes = pytest.importorskip("bitsandbytes", reason="needs the package bitsandbytes")
peft = pytest.importorskip("peft", reason="needs the package peft")
transformers = pytest.importorskip("transformers", reason="needs the package transformers")

SHAPE = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
PACKED = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) // 2  # two numbers a byte
TOKENS = torch.randint(0, 96, (4, 9), generator=torch.Generator().manual_seed(2))
BATCH = {"input_ids": TOKENS, "labels": TOKENS}
SGD, ADAMW = "sgd lr=0.5 clip=none", "adamw lr=1e-2 wd=0.1 clip=1"


@pytest.mark.parametrize("rows", [24, 1])
def test_our_codes_and_scales_are_those_of_bitsandbytes(rows):
    weight = torch.randn(rows, 128, generator=torch.Generator().manual_seed(rows))
    codes, state = bitsandbytes.functional.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    ours, scales = quantise(weight)
    assert torch.equal(ours.flatten(), codes.flatten())
    assert torch.equal(scales.view(torch.float32).flatten(), state.absmax)
    whole = bitsandbytes.functional.dequantize_4bit(codes, state)
    assert torch.equal(dequantise(ours, scales, torch.float32), whole)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE))
    for parameter in module.parameters():
        parameter.data.normal_(std=0.2)
    module.save_pretrained(place)
    return str(place)


def adapted(folder, double=True):
    """As somebody would load it, with adapters that are not the zeros they begin at."""
    how = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double
    )
    module = transformers.LlamaForCausalLM.from_pretrained(
        folder, quantization_config=how, device_map="cpu"
    )
    settings = peft.LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj", "down_proj"])
    module = peft.get_peft_model(module, settings)
    draw = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(std=0.1, generator=draw)
    return module


def learn(folder, plan, optimizer):
    run = sl.climb(adapted(folder), optimizer=optimizer, plan=plan, device="cpu")
    losses = [run.step(BATCH, rows="global").loss for _ in range(3)]
    held = sum(local(p).nbytes for p in run.module.parameters() if p.dtype == torch.uint8)
    return losses, held


def plainly(folder, optimizer):
    """A loop of torch's and peft's alone."""
    module = adapted(folder)
    trained = [p for p in module.parameters() if p.requires_grad]
    adam = optimizer == ADAMW
    update = torch.optim.AdamW(trained, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    update = update if adam else torch.optim.SGD(trained, lr=0.5)
    losses = []
    for _ in range(3):
        loss = module(**BATCH).loss
        update.zero_grad()
        loss.backward()
        if adam:
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
        update.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("optimizer", [SGD, ADAMW])
def test_one_device_trains_it_as_a_plain_loop_does(folder, optimizer):
    found, held = learn(folder, "fp32", optimizer)
    assert found == pytest.approx(plainly(folder, optimizer), rel=1e-5)
    assert held == PACKED and found[-1] < found[0]


@pytest.mark.parametrize(
    ("plan", "sliced"), soak_after([("fp32 zero3", 2), ("fp32 ddp", 1), ("fp32 zero2", 2)])
)
@pytest.mark.parametrize("optimizer", [SGD, ADAMW])
def test_ranks_train_it_as_one_device_does_and_zero_3_slices_its_bytes(
    folder, plan, sliced, optimizer
):
    expected = plainly(folder, optimizer)
    for losses, held in on_ranks(learn, 2, folder, plan, optimizer):
        assert losses == pytest.approx(expected, rel=1e-5)
        assert held == PACKED // sliced


def test_a_resumed_run_goes_on_to_the_bit(folder, tmp_path):
    def begun():
        return sl.climb(adapted(folder), optimizer=ADAMW, plan="fp32", device="cpu")

    first, again = begun(), begun()
    for _ in range(2):
        first.step(BATCH)
    first.save(tmp_path)
    again.load(tmp_path)
    assert [again.step(BATCH).loss for _ in range(2)] == [first.step(BATCH).loss for _ in range(2)]
