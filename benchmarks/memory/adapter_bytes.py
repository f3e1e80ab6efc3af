"""What a frozen parameter costs a rank when adapters are trained: bytes of it, and of what it has.

A Llama of 4 layers, 64 wide, is frozen and gets adapters of rank 4 on every linear. Each plan takes
two steps on real processes (gloo); then the bytes of each rank are added up: those of parameters,
gradients and optimizer state, of frozen and of trained ones, and those of every tensor that Python
holds, to see copies that nobody names. Writes benchmarks/results/adapter_bytes.json.
Run: PYTHONPATH=src python3 benchmarks/memory/adapter_bytes.py [--out FILE.json]
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepladder.launch import Ranks
from stepladder.model.huggingface.lora import add_lora
from stepladder.train import climb

RESULTS = Path(__file__).parents[1] / "results" / "adapter_bytes.json"
SIZES = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip
PLANS = (  # plan, ranks, adapters
    ("fp32", 1, "r=4"),
    ("bf16", 1, "r=4"),
    ("bf16-master", 1, "r=4"),
    ("bf16 ddp", 2, "r=4"),
    ("bf16-master ddp", 2, "r=4"),
    ("bf16 zero1", 2, "r=4"),
    ("bf16 zero2", 2, "r=4"),
    ("bf16 zero3", 2, "r=4"),
    ("bf16-master zero3", 2, "r=4"),
    ("bf16 tensor=2", 2, "r=4"),
    ("bf16 pipeline=2 micro=2", 2, "r=4"),
    ("bf16", 1, "r=4 base=nf4"),
    ("bf16 ddp", 2, "r=4 base=nf4"),
    ("bf16 zero3", 2, "r=4 base=nf4"),
)


def adapted(words: str) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return add_lora(LlamaForCausalLM(LlamaConfig(**SIZES)), words)


def measure(plan: str, words: str) -> dict[str, int]:
    """Bytes of this rank after two steps, with the gradients of a third."""
    torch.set_num_threads(1)
    run = climb(adapted(words), plan=plan, device="cpu", optimizer="adamw lr=1e-3")
    tokens = torch.randint(0, 128, (8, 16), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": tokens, "labels": tokens}
    for _ in range(2):
        run.step(batch, rows="global").read()
    found = {"frozen": 0, "trained": 0}
    frozen = [p for p in run.module.parameters() if not p.requires_grad]
    trained = [p for p in run.module.parameters() if p.requires_grad]
    found["frozen"], found["trained"] = storages(frozen), storages(trained)
    found["frozen_gradients"] = storages(p.grad for p in frozen if p.grad is not None)
    found["frozen_state"] = storages(state_of(run.optimizer, frozen))
    found["state"] = storages(every_state(run.optimizer))
    del frozen, trained
    gc.collect()
    found["live"] = storages(one for one in gc.get_objects() if is_tensor(one))
    return found


def is_tensor(one: Any) -> bool:
    try:
        return isinstance(one, Tensor) and one.device.type == "cpu"
    except ReferenceError:  # what a weak reference was to
        return False


def every_state(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    entries = optimizer.state.values()
    return [one for entry in entries for one in entry.values() if isinstance(one, Tensor)]


def state_of(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> list[Tensor]:
    known = {id(p) for p in parameters}
    mine = (entry for p, entry in optimizer.state.items() if id(p) in known)
    return [one for entry in mine for one in entry.values() if isinstance(one, Tensor)]


def storages(tensors: Iterable[Tensor]) -> int:
    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    each = {s.data_ptr(): s.nbytes() for s in (tensor.untyped_storage() for tensor in local)}
    return sum(each.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    whole = {words: adapted(words) for words in dict.fromkeys(words for *_, words in PLANS)}
    elements = sum(p.numel() for p in whole["r=4"].parameters() if not p.requires_grad)
    rows = []
    for plan, count, words in PLANS:
        with Ranks(count) as ranks:
            found = ranks.call(measure, plan, words)
        row = {"plan": plan, "ranks": count, "adapters": words}
        row |= {key: [one[key] for one in found] for key in found[0]}
        row["frozen_bytes_each"] = max(row["frozen"]) / elements
        rows.append(row)
        print(json.dumps(row), flush=True)
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, gloo",
        "torch": torch.__version__,
        "command": "python benchmarks/memory/adapter_bytes.py",
        "frozen_elements": elements,
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
