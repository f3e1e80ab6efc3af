"""Everyday needs with the Trainer of Hugging Face: the counterparts of docs/everyday.md."""

import math

import torch
from accelerate import notebook_launcher
from peft import get_peft_model
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from torch.utils.data import default_collate
from torchmetrics.classification import MulticlassAccuracy
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

# %% Train a module of your own
args = TrainingArguments("out", per_device_train_batch_size=16, num_train_epochs=1, logging_steps=1)
trainer = Trainer(
    model,
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("input", "labels"), default_collate(samples))),
    compute_loss_func=lambda outputs, labels, **_: F.cross_entropy(outputs, labels),
)
trainer.train()


# %% Validate while training
class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, labels):
        logits = self.model(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


args = TrainingArguments(
    "out",
    per_device_train_batch_size=16,
    num_train_epochs=1,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=8,
)
trainer = Trainer(
    WithLoss(model),
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("x", "labels"), default_collate(samples))),
    eval_dataset=held_out.dataset,
)
trainer.train()


# %% Metrics
class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, labels):
        logits = self.model(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def metrics(found):
    outputs, targets = torch.from_numpy(found.predictions), torch.from_numpy(found.label_ids)
    return {"accuracy": MulticlassAccuracy(num_classes=4)(outputs, targets).item()}


args = TrainingArguments("out", per_device_train_batch_size=16, num_train_epochs=1, logging_steps=1)
trainer = Trainer(
    WithLoss(model),
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("x", "labels"), default_collate(samples))),
    eval_dataset=held_out.dataset,
    compute_metrics=metrics,
)
trainer.train()
print(trainer.evaluate())


# %% Predictions
class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, labels):
        logits = self.model(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


args = TrainingArguments("out", per_device_train_batch_size=16, num_train_epochs=1, logging_steps=1)
trainer = Trainer(
    WithLoss(model),
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("x", "labels"), default_collate(samples))),
    eval_dataset=held_out.dataset,
)
trainer.train()
classes = trainer.predict(held_out.dataset).predictions.argmax(-1)

# %% Mixed precision
# needs GPUs
args = TrainingArguments(
    "out", per_device_train_batch_size=16, num_train_epochs=1, logging_steps=1, bf16=True
)
trainer = Trainer(
    model,
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("input", "labels"), default_collate(samples))),
    compute_loss_func=lambda outputs, labels, **_: F.cross_entropy(outputs, labels),
)
trainer.train()

# %% Gradient accumulation
args = TrainingArguments(
    "out",
    per_device_train_batch_size=16,
    num_train_epochs=1,
    logging_steps=1,
    gradient_accumulation_steps=4,
)
trainer = Trainer(
    model,
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("input", "labels"), default_collate(samples))),
    compute_loss_func=lambda outputs, labels, **_: F.cross_entropy(outputs, labels),
)
trainer.train()

# %% Gradient clipping
args = TrainingArguments(
    "out", per_device_train_batch_size=16, num_train_epochs=1, logging_steps=1, max_grad_norm=1.0
)
trainer = Trainer(
    model,
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("input", "labels"), default_collate(samples))),
    compute_loss_func=lambda outputs, labels, **_: F.cross_entropy(outputs, labels),
)
trainer.train()

# %% A learning rate with warm-up
args = TrainingArguments(
    "out",
    per_device_train_batch_size=16,
    num_train_epochs=1,
    logging_steps=1,
    lr_scheduler_type="cosine",
    warmup_steps=4,
)
trainer = Trainer(
    model,
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("input", "labels"), default_collate(samples))),
    compute_loss_func=lambda outputs, labels, **_: F.cross_entropy(outputs, labels),
)
trainer.train()

# %% An optimizer of torch, or your own
args = TrainingArguments(
    "out", per_device_train_batch_size=16, num_train_epochs=1, logging_steps=1, learning_rate=1e-3
)
trainer = Trainer(
    model,
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("input", "labels"), default_collate(samples))),
    compute_loss_func=lambda outputs, labels, **_: F.cross_entropy(outputs, labels),
    optimizer_cls_and_kwargs=(torch.optim.RMSprop, {"lr": 1e-3}),
)
trainer.train()

# %% No weight decay for biases
args = TrainingArguments(
    "out",
    per_device_train_batch_size=16,
    num_train_epochs=1,
    logging_steps=1,
    learning_rate=1e-3,
    weight_decay=0.1,
)
trainer = Trainer(
    model,
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("input", "labels"), default_collate(samples))),
    compute_loss_func=lambda outputs, labels, **_: F.cross_entropy(outputs, labels),
)
trainer.train()

# %% Save, and resume
args = TrainingArguments(
    "out", per_device_train_batch_size=16, num_train_epochs=1, logging_steps=1, save_steps=8
)
trainer = Trainer(
    model,
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("input", "labels"), default_collate(samples))),
    compute_loss_func=lambda outputs, labels, **_: F.cross_entropy(outputs, labels),
)
trainer.train(resume_from_checkpoint=get_last_checkpoint("out"))


# %% The best checkpoint
class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, labels):
        logits = self.model(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


args = TrainingArguments(
    "out",
    per_device_train_batch_size=16,
    num_train_epochs=1,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=8,
    save_strategy="steps",
    save_steps=8,
    load_best_model_at_end=True,
    metric_for_best_model="loss",
)
trainer = Trainer(
    WithLoss(model),
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("x", "labels"), default_collate(samples))),
    eval_dataset=held_out.dataset,
)
trainer.train()


# %% Early stopping
class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, labels):
        logits = self.model(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


args = TrainingArguments(
    "out",
    per_device_train_batch_size=16,
    num_train_epochs=1,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=8,
    save_strategy="steps",
    save_steps=8,
    load_best_model_at_end=True,
    metric_for_best_model="loss",
)
trainer = Trainer(
    WithLoss(model),
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("x", "labels"), default_collate(samples))),
    eval_dataset=held_out.dataset,
    callbacks=[EarlyStoppingCallback(3)],
)
trainer.train()


# %% Averaged weights (EMA)
class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, labels):
        logits = self.model(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Averaging(TrainerCallback):
    def on_train_begin(self, args, state, control, model, **kwargs):
        self.ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))

    def on_step_end(self, args, state, control, model, **kwargs):
        self.ema.update_parameters(model)


averaging = Averaging()
args = TrainingArguments("out", per_device_train_batch_size=16, num_train_epochs=1, logging_steps=1)
trainer = Trainer(
    WithLoss(model),
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("x", "labels"), default_collate(samples))),
    eval_dataset=held_out.dataset,
    callbacks=[averaging],
)
trainer.train()
trainer.model.load_state_dict(averaging.ema.module.state_dict())
print(trainer.evaluate())


# %% Values of your own in TensorBoard
class Logging(Trainer):
    def log(self, logs, *args, **kwargs):
        perplexity = {"perplexity": math.exp(logs["loss"])} if "loss" in logs else {}
        super().log({**logs, **perplexity}, *args, **kwargs)


args = TrainingArguments(
    "out",
    per_device_train_batch_size=16,
    num_train_epochs=1,
    logging_steps=1,
    report_to="tensorboard",
)
trainer = Logging(
    model,
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("input", "labels"), default_collate(samples))),
    compute_loss_func=lambda outputs, labels, **_: F.cross_entropy(outputs, labels),
)
trainer.train()

# %% Several GPUs
# needs two ranks
args = TrainingArguments("out", per_device_train_batch_size=16, num_train_epochs=1, logging_steps=1)
trainer = Trainer(
    model,
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("input", "labels"), default_collate(samples))),
    compute_loss_func=lambda outputs, labels, **_: F.cross_entropy(outputs, labels),
)
trainer.train()

# %% Full sharding (ZeRO-3, FSDP)
# needs GPUs
args = TrainingArguments(
    "out",
    per_device_train_batch_size=16,
    num_train_epochs=1,
    logging_steps=1,
    fsdp="full_shard",
    fsdp_config={"fsdp_version": 2},
)
trainer = Trainer(
    model,
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("input", "labels"), default_collate(samples))),
    compute_loss_func=lambda outputs, labels, **_: F.cross_entropy(outputs, labels),
)
trainer.train()
trainer.save_model("runs/sharded")


# %% Recompute activations
class Recomputed(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input):
        for child in self.model:
            input = checkpoint(child, input, use_reentrant=False)
        return input


args = TrainingArguments("out", per_device_train_batch_size=16, num_train_epochs=1, logging_steps=1)
trainer = Trainer(
    Recomputed(model),
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("input", "labels"), default_collate(samples))),
    compute_loss_func=lambda outputs, labels, **_: F.cross_entropy(outputs, labels),
)
trainer.train()


# %% A DataLoader with a sampler of its own
class Weighted(Trainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.WeightedRandomSampler([1.0] * 128 + [3.0] * 128, 256)


args = TrainingArguments("out", per_device_train_batch_size=16, num_train_epochs=1, logging_steps=1)
trainer = Weighted(
    model,
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("input", "labels"), default_collate(samples))),
    compute_loss_func=lambda outputs, labels, **_: F.cross_entropy(outputs, labels),
)
trainer.train()

# %% A loss of several terms
args = TrainingArguments("out", per_device_train_batch_size=16, num_train_epochs=1, logging_steps=1)
trainer = Trainer(
    model,
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("input", "labels"), default_collate(samples))),
    compute_loss_func=lambda outputs, labels, **_: (
        F.cross_entropy(outputs, labels) + 0.01 * outputs.pow(2).mean()
    ),
)
trainer.train()

# %% Fine-tune a Hugging Face model
args = TrainingArguments("out", per_device_train_batch_size=8, max_steps=4, logging_steps=1)
trainer = Trainer(llm, args, train_dataset=tokens)
trainer.train()

# %% LoRA
args = TrainingArguments("out", per_device_train_batch_size=8, max_steps=4, logging_steps=1)
trainer = Trainer(get_peft_model(llm, lora), args, train_dataset=tokens)
trainer.train()
trainer.save_model("runs/lora")


# %% Two ranks from a notebook
# needs two ranks
def train():
    args = TrainingArguments(
        "out", per_device_train_batch_size=16, num_train_epochs=1, logging_steps=1
    )
    trainer = Trainer(
        model,
        args,
        train_dataset=dataset,
        data_collator=lambda samples: dict(zip(("input", "labels"), default_collate(samples))),
        compute_loss_func=lambda outputs, labels, **_: F.cross_entropy(outputs, labels),
    )
    trainer.train()


notebook_launcher(train, num_processes=2)

# %% Where the time of a step goes
args = TrainingArguments("out", per_device_train_batch_size=16, max_steps=4, logging_steps=1)
trainer = Trainer(
    model,
    args,
    train_dataset=dataset,
    data_collator=lambda samples: dict(zip(("input", "labels"), default_collate(samples))),
    compute_loss_func=lambda outputs, labels, **_: F.cross_entropy(outputs, labels),
)
with profile(activities=[ProfilerActivity.CPU]) as profiled:
    trainer.train()
print(profiled.key_averages().table(sort_by="self_cpu_time_total"))
