"""What only a GPU can show of memory: the allocator's word, copies beside the compute, ceilings."""

import gc

import pytest
import torch
from torch import nn

from stepladder.errors import OutOfMemory
from stepladder.measure import measure_fragmentation, measure_memory
from stepladder.plan import Recompute
from stepladder.rungs import MemoryLimit, measure_blocks
from stepladder.rungs.memory.offload_activations import offload_activations
from stepladder.rungs.memory.recompute import recompute

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GPU = torch.device("cuda", 0)
WIDTH, HEADS, LENGTH, ROWS, VOCAB, NUM_BLOCKS = 512, 8, 512, 8, 8192, 6
MIB, GIB = 2**20, 2**30


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = dropout

    def drop(self, x):
        return nn.functional.dropout(x, self.dropout)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, HEADS, w // HEADS).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout, is_causal=True
        )
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(b, t, w)))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.second(x)))))


class Model(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(NUM_BLOCKS))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Trainer:
    def __init__(self, how: str = "none", dropout: float = 0.0, offload: bool = False) -> None:
        torch.manual_seed(0)
        self.model = Model(dropout).to(GPU)
        blocks = [(str(i), block) for i, block in enumerate(self.model.blocks)]
        recompute(blocks, Recompute.parse(how))
        self.adam = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.ids = torch.randint(0, VOCAB, (ROWS, LENGTH), device=GPU)
        send = offload_activations(GPU, self.model.parameters()) if offload else None
        self.offload = send or torch.enable_grad()

    def step(self) -> torch.Tensor:
        torch.manual_seed(1)  # every step draws the same masks, whoever stepped before
        with self.offload, torch.autocast("cuda", torch.bfloat16):
            logits = self.model(self.ids)
            loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), self.ids.flatten())
        loss.backward()
        self.gradient = self.model.blocks[0].up.weight.grad.clone()
        self.adam.step()
        self.adam.zero_grad()
        return loss.detach()

    def measure(self):
        self.step()
        return measure_memory(self.step, self.model, self.adam, GPU, vocab=VOCAB)


def size(tensors) -> int:
    return sum(-(-t.nbytes // 512) * 512 for t in tensors)


def peak_of(trainer: Trainer) -> int:
    trainer.step()
    torch.cuda.reset_peak_memory_stats()
    trainer.step()
    return torch.cuda.max_memory_allocated()


def test_the_owners_sum_to_the_allocators_peak_and_the_ledger_saw_nearly_all_of_it():
    trainer = Trainer()
    peak = peak_of(trainer)
    memory = trainer.measure()
    print(memory, peak)
    assert memory.allocated_bytes == pytest.approx(peak, rel=0.03)
    assert memory.parameters == size(trainer.model.parameters())
    moments = [t for s in trainer.adam.state.values() for t in s.values() if t.is_cuda]
    assert memory.optimizer == size(moments)
    assert memory.temporary < 0.35 * peak and memory.activations > 0.2 * peak
    assert memory.context > 0


@pytest.mark.parametrize("how", ["blocks", "selective", "every:2"])
def test_recomputation_lowers_the_peak_and_draws_the_same_masks(how):
    plain, again = Trainer(dropout=0.1), Trainer(how, dropout=0.1)
    assert torch.equal(plain.step(), again.step())
    assert torch.allclose(plain.gradient, again.gradient, rtol=1e-2, atol=1e-5)
    most, less = peak_of(plain), peak_of(again)
    print(how, most / MIB, less / MIB)
    assert less < most - 20 * MIB


def test_offloading_changes_no_number_and_lowers_the_peak():
    plain, away = Trainer(), Trainer(offload=True)
    losses = [(plain.step(), away.step()) for _ in range(3)]
    assert all(torch.equal(a, b) for a, b in losses)
    assert torch.allclose(plain.gradient, away.gradient, rtol=1e-2, atol=1e-5)
    del plain
    less = peak_of(away)
    del away
    plain = Trainer()
    most = peak_of(plain)
    blocks = [(str(i), block) for i, block in enumerate(plain.model.blocks)]
    with torch.autocast("cuda", torch.bfloat16):
        kept = sum(c.kept_bytes for c in measure_blocks(blocks, lambda: plain.model(plain.ids)))
    print("offload", most / MIB, less / MIB, kept / MIB)
    assert most - less > 0.5 * kept, "at the peak most of what blocks keep must be away"


def test_a_compiled_module_is_measured_as_compiled():
    trainer = Trainer()
    for block in trainer.model.blocks:
        block.compile()
    peak = peak_of(trainer)
    memory = trainer.measure()
    print(memory, peak)
    assert memory.allocated_bytes == pytest.approx(peak, rel=0.03)
    assert memory.activations > 0.1 * peak
    torch._dynamo.reset()


def test_an_allocation_over_the_ceiling_is_refused_and_the_ceiling_lifts():
    gc.collect()  # graphs of other tests
    torch.cuda.empty_cache()
    limit = torch.cuda.memory_reserved(GPU) + GIB  # what other tests left is within it
    reached = r"the ceiling of [\d.]+ GiB was reached when 2 GiB more were asked for"
    with pytest.raises(OutOfMemory, match=reached), MemoryLimit(limit, GPU):
        torch.empty(256 * MIB, dtype=torch.uint8, device=GPU)
        torch.empty(2 * GIB, dtype=torch.uint8, device=GPU)
    torch.empty(2 * GIB, dtype=torch.uint8, device=GPU)


def test_idle_memory_is_reported():
    kept = [torch.empty(4 * MIB, dtype=torch.uint8, device=GPU) for _ in range(64)]
    del kept[::2]
    found = measure_fragmentation(GPU)
    print(found)
    assert found.idle_bytes >= 100 * MIB
    assert found.reserved_bytes == torch.cuda.memory_reserved(GPU)
