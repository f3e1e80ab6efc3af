"""What a compiled step is rehearsed to keep is what torch's own partitioner keeps."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stepladder.rehearse import rehearse
from stepladder.rehearse.compiled import lifetimes
from tests.rehearse.subjects import make
from tests.soak import soak_after

LEAST = 64  # bytes: the loss itself


def subject(name):
    module, batch, loss = make(name)
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0  # a GPU draws its numbers in another way
    return module, batch, loss


def kept_by_torch(module, batch):
    """Bytes that torch's compiled forward pass hands to its backward pass, parameters apart."""

    def step():
        scores = module(batch[0])
        flat = scores.flatten(0, -2) if scores.dim() == 3 else scores
        return F.cross_entropy(flat, batch[1].flatten() if scores.dim() == 3 else batch[1])

    torch._dynamo.reset()
    compiled = torch.compile(step, backend="aot_eager_decomp_partition")
    loss = compiled()
    given = (*module.parameters(), *module.buffers(), *batch)
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    found, waiting, seen = {}, [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [after for after, _ in node.next_functions]
        for tensor in getattr(node, "saved_tensors", ()):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                found[storage.data_ptr()] = storage.nbytes()
    return sum(size for size in found.values() if size > LEAST)


def kept_by_rehearsal(module, batch, loss, plan, monkeypatch):
    kept, find = [], lifetimes.kept_for_backward

    def watched(graph, free):
        kept.append(find(graph, free))
        return kept[-1]

    monkeypatch.setattr(lifetimes, "kept_for_backward", watched)
    rehearse(module, plan, sample=batch, loss=loss)
    return sum(one.num_bytes for one in kept[-1] if one.num_bytes > LEAST)


@pytest.mark.parametrize("name", soak_after(["unet", "decoder"]))
def test_the_compiled_forward_keeps_what_torchs_partitioner_keeps(name, monkeypatch):
    module, batch, loss = subject(name)
    found = kept_by_rehearsal(module, batch, loss, "fp32 compile=whole", monkeypatch)
    assert found == pytest.approx(kept_by_torch(module, batch), rel=0.03)


def test_a_compiled_step_takes_less_than_an_eager_one():
    module, batch, loss = make("decoder")
    eager, whole, blocks = (
        rehearse(module, plan, sample=batch, loss=loss)
        for plan in ("bf16", "bf16 compile=whole", "bf16 compile=blocks")
    )
    assert whole.memory.activations < blocks.memory.activations < eager.memory.activations
    assert whole.notes[0].startswith("compile: what is kept for backward, fused and freed")
