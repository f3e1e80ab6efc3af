"""Everyday needs with Accelerate: the counterparts of docs/everyday.md."""

from itertools import islice
from pathlib import Path

import torch
from accelerate import (
    Accelerator,
    FullyShardedDataParallelPlugin,
    ProfileKwargs,
    notebook_launcher,
)
from peft import get_peft_model
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy
from transformers import get_cosine_schedule_with_warmup

# %% Train a module of your own
accelerator = Accelerator()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(loss.item())


# %% Validate while training
def evaluate():
    model.eval()
    losses = []
    with torch.no_grad():
        for x, y in held_out:
            losses.append(
                accelerator.gather_for_metrics(F.cross_entropy(model(x), y, reduction="none"))
            )
    model.train()
    return torch.cat(losses).mean().item()


accelerator = Accelerator()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
for step, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if step % 8 == 7:
        accelerator.print(step, loss.item(), evaluate())

# %% Metrics
accelerator = Accelerator()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(loss.item())
model.eval()
accuracy = MulticlassAccuracy(num_classes=4).to(accelerator.device)
losses = []
with torch.no_grad():
    for x, y in held_out:
        outputs, y = accelerator.gather_for_metrics((model(x), y))
        accuracy.update(outputs, y)
        losses.append(F.cross_entropy(outputs, y, reduction="none"))
accelerator.print(torch.cat(losses).mean().item(), accuracy.compute().item())

# %% Predictions
accelerator = Accelerator()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(loss.item())
model.eval()
with torch.no_grad():
    found = [accelerator.gather_for_metrics(model(x).argmax(-1)) for x, _ in held_out]
classes = torch.cat(found).cpu()

# %% Mixed precision
accelerator = Accelerator(mixed_precision="bf16")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(loss.item())

# %% Gradient accumulation
accelerator = Accelerator(gradient_accumulation_steps=4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    with accelerator.accumulate(model):
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(loss.item())

# %% Gradient clipping
accelerator = Accelerator()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(loss.item(), norm.item())

# %% A learning rate with warm-up
accelerator = Accelerator()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rate = get_cosine_schedule_with_warmup(optimizer, 4, 16)
model, optimizer, loader, rate = accelerator.prepare(model, optimizer, loader, rate)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    rate.step()
    optimizer.zero_grad()
    accelerator.print(loss.item(), rate.get_last_lr())

# %% An optimizer of torch, or your own
accelerator = Accelerator()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(loss.item())

# %% No weight decay for biases
accelerator = Accelerator()
biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
others = [p for name, p in model.named_parameters() if not name.endswith("bias")]
groups = [{"params": others, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(loss.item())


# %% Save, and resume
class Progress:
    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


accelerator = Accelerator()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
progress = Progress()
accelerator.register_for_checkpointing(progress)
if Path("runs/everyday").exists():
    accelerator.load_state("runs/everyday")
for x, y in accelerator.skip_first_batches(loader, progress.step):
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    progress.step += 1
    if progress.step % 8 == 0:
        accelerator.save_state("runs/everyday")


# %% The best checkpoint
def evaluate():
    model.eval()
    losses = []
    with torch.no_grad():
        for x, y in held_out:
            losses.append(
                accelerator.gather_for_metrics(F.cross_entropy(model(x), y, reduction="none"))
            )
    model.train()
    return torch.cat(losses).mean().item()


accelerator = Accelerator()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
best = float("inf")
for step, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if step % 8 == 7 and (found := evaluate()) < best:
        best = found
        accelerator.save_state("runs/best")


# %% Early stopping
def evaluate():
    model.eval()
    losses = []
    with torch.no_grad():
        for x, y in held_out:
            losses.append(
                accelerator.gather_for_metrics(F.cross_entropy(model(x), y, reduction="none"))
            )
    model.train()
    return torch.cat(losses).mean().item()


accelerator = Accelerator()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
best, waited = float("inf"), 0
for step, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if step % 8 == 7:
        found = evaluate()
        best, waited = (found, 0) if found < best else (best, waited + 1)
        if waited == 3:
            break


# %% Averaged weights (EMA)
def evaluate():
    ema.eval()
    losses = []
    with torch.no_grad():
        for x, y in held_out:
            losses.append(
                accelerator.gather_for_metrics(F.cross_entropy(ema(x), y, reduction="none"))
            )
    return torch.cat(losses).mean().item()


accelerator = Accelerator()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    ema.update_parameters(model)
accelerator.print(evaluate())

# %% Values of your own in TensorBoard
accelerator = Accelerator(log_with="tensorboard", project_dir="runs/tracked")
accelerator.init_trackers("everyday")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.log({"loss": loss.item(), "perplexity": loss.exp().item()}, step=step)
accelerator.end_training()

# %% Several GPUs
# needs two ranks
accelerator = Accelerator()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(loss.item())

# %% Full sharding (ZeRO-3, FSDP)
# needs GPUs
plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
accelerator = Accelerator(fsdp_plugin=plugin)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(loss.item())
accelerator.save_state("runs/sharded")


# %% Recompute activations
class Recomputed(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        for child in self.model:
            x = checkpoint(child, x, use_reentrant=False)
        return x


model = Recomputed(model)
accelerator = Accelerator()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(loss.item())

# %% A DataLoader with a sampler of its own
sampler = torch.utils.data.WeightedRandomSampler([1.0] * 128 + [3.0] * 128, 256)
loader = DataLoader(dataset, batch_size=16, sampler=sampler)
accelerator = Accelerator()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(loss.item())

# %% A loss of several terms
accelerator = Accelerator()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    outputs = model(x)
    loss = F.cross_entropy(outputs, y) + 0.01 * outputs.pow(2).mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(loss.item())


# %% A GAN
def judge(logits, real):
    return F.binary_cross_entropy_with_logits(logits.squeeze(1), real)


generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
critic = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
accelerator = Accelerator()
by_generator = torch.optim.AdamW(generator.parameters(), lr=1e-3)
by_critic = torch.optim.AdamW(critic.parameters(), lr=1e-3)
generator, critic, by_generator, by_critic, loader = accelerator.prepare(
    generator, critic, by_generator, by_critic, loader
)
ones = torch.ones(16, device=accelerator.device)
for real, _ in loader:
    fake = generator(torch.randn(16, 4, device=accelerator.device))
    pair = torch.cat((real, fake.detach()))
    by_critic.zero_grad()
    accelerator.backward(judge(critic(pair), torch.cat((ones, 0 * ones))))
    by_critic.step()
    by_generator.zero_grad()
    loss = judge(critic(fake), ones)
    accelerator.backward(loss)
    by_generator.step()
    accelerator.print(loss.item())

# %% Fine-tune a Hugging Face model
accelerator = Accelerator()
optimizer = torch.optim.AdamW(llm.parameters(), lr=5e-5)
loader = DataLoader(tokens, batch_size=8, shuffle=True)
llm, optimizer, loader = accelerator.prepare(llm, optimizer, loader)
for batch in loader:
    loss = llm(**batch).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(llm.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(loss.item())

# %% LoRA
adapted = get_peft_model(llm, lora)
accelerator = Accelerator()
optimizer = torch.optim.AdamW(adapted.parameters(), lr=1e-3)
loader = DataLoader(tokens, batch_size=8, shuffle=True)
adapted, optimizer, loader = accelerator.prepare(adapted, optimizer, loader)
for batch in loader:
    loss = adapted(**batch).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(adapted.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(loss.item())
accelerator.unwrap_model(adapted).save_pretrained("runs/lora")


# %% Two ranks from a notebook
# needs two ranks
def train(model, loader):
    accelerator = Accelerator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(loss.item())


notebook_launcher(train, (model, loader), num_processes=2)

# %% Where the time of a step goes
accelerator = Accelerator(kwargs_handlers=[ProfileKwargs(activities=["cpu"])])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
with accelerator.profile() as profiled:
    for x, y in islice(loader, 4):
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
accelerator.print(profiled.key_averages().table(sort_by="self_cpu_time_total"))
