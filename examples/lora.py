"""LoRA: peft's adapters are trained, the model under them is frozen."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import stepladder as sl

torch.manual_seed(0)
base = LlamaForCausalLM(  # LlamaForCausalLM.from_pretrained(...) for a real one
    LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=32, initializer_range=0.2,
    )
)  # fmt: skip
model = get_peft_model(
    base, LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear")
)
trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
print(f"{trained:,} of {sum(p.numel() for p in model.parameters()):,} parameters are trained")

# Rows that count up from some number: the adapters learn which token comes next.
counting = [{"input_ids": ids, "labels": ids} for ids in (torch.arange(16) + n for n in range(48))]
frozen = base.model.embed_tokens.weight.detach().clone()

run = sl.climb(model, optimizer="adamw lr=1e-2 clip=1")
for report in sl.fit(run, run.batches(counting, size=16), steps=30):
    if report.step % 10 == 0:
        print(f"step {report.step}: loss {report.loss:.3f}")

print("the base is as it was:", torch.equal(frozen, base.model.embed_tokens.weight.cpu()))
run.save("runs/lora")
print("Next: stepladder checkpoint convert runs/lora adapter --to adapters  # for PeftModel")
