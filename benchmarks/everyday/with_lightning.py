"""Everyday needs with Lightning's Trainer: the counterparts of docs/everyday.md."""

from pathlib import Path

import pytorch_lightning as L
import torch
from peft import get_peft_model
from pytorch_lightning.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint
from pytorch_lightning.loggers import TensorBoardLogger
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy


# %% Train a module of your own
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.Trainer(max_epochs=1).fit(Classifier(model), loader)


# %% Validate while training
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.model(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.Trainer(max_epochs=1, val_check_interval=8).fit(Classifier(model), loader, held_out)


# %% Metrics
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.accuracy = MulticlassAccuracy(num_classes=4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        outputs = self.model(x)
        self.accuracy(outputs, y)
        self.log_dict({"loss": F.cross_entropy(outputs, y), "accuracy": self.accuracy})

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


trainer = L.Trainer(max_epochs=1)
trainer.fit(Classifier(model), loader)
print(trainer.validate(dataloaders=held_out))


# %% Predictions
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def predict_step(self, batch, batch_idx):
        return self.model(batch[0]).argmax(-1)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


trainer = L.Trainer(max_epochs=1)
trainer.fit(Classifier(model), loader)
classes = torch.cat(trainer.predict(dataloaders=held_out))


# %% Mixed precision
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.Trainer(max_epochs=1, precision="bf16-mixed").fit(Classifier(model), loader)


# %% Gradient accumulation
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.Trainer(max_epochs=1, accumulate_grad_batches=4).fit(Classifier(model), loader)


# %% Gradient clipping
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.Trainer(max_epochs=1, gradient_clip_val=1.0).fit(Classifier(model), loader)


# %% A learning rate with warm-up
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        warmup = LinearLR(optimizer, 0.01, total_iters=4)
        rate = SequentialLR(optimizer, [warmup, CosineAnnealingLR(optimizer, 12)], [4])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


L.Trainer(max_epochs=1).fit(Classifier(model), loader)


# %% An optimizer of torch, or your own
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.RMSprop(self.parameters(), lr=1e-3)


L.Trainer(max_epochs=1).fit(Classifier(model), loader)


# %% No weight decay for biases
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        biases = [p for name, p in self.named_parameters() if name.endswith("bias")]
        others = [p for name, p in self.named_parameters() if not name.endswith("bias")]
        groups = [{"params": others, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=1e-3)


L.Trainer(max_epochs=1).fit(Classifier(model), loader)


# %% Save, and resume
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


saving = ModelCheckpoint("runs/everyday", save_last=True, every_n_train_steps=8)
last = "runs/everyday/last.ckpt"
trainer = L.Trainer(max_epochs=1, callbacks=[saving])
trainer.fit(Classifier(model), loader, ckpt_path=last if Path(last).exists() else None)


# %% The best checkpoint
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.model(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


best = ModelCheckpoint("runs/best", monitor="val_loss")
trainer = L.Trainer(max_epochs=1, val_check_interval=8, callbacks=[best])
trainer.fit(Classifier(model), loader, held_out)


# %% Early stopping
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.model(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


stop = EarlyStopping("val_loss", patience=3)
trainer = L.Trainer(max_epochs=1, val_check_interval=8, callbacks=[stop])
trainer.fit(Classifier(model), loader, held_out)


# %% Averaged weights (EMA)
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.model(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


trainer = L.Trainer(max_epochs=1, callbacks=[EMAWeightAveraging(decay=0.99)])
trainer.fit(Classifier(model), loader)
print(trainer.validate(dataloaders=held_out))


# %% Values of your own in TensorBoard
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log_dict({"loss": loss, "perplexity": loss.exp()}, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


trainer = L.Trainer(max_epochs=1, logger=TensorBoardLogger("runs/tracked"), log_every_n_steps=1)
trainer.fit(Classifier(model), loader)


# %% Several GPUs
# needs two ranks
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.Trainer(max_epochs=1, devices=2, strategy="ddp").fit(Classifier(model), loader)


# %% Full sharding (ZeRO-3, FSDP)
# needs GPUs
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


trainer = L.Trainer(max_epochs=1, devices=2, strategy="fsdp")
trainer.fit(Classifier(model), loader)
trainer.save_checkpoint("runs/sharded")


# %% Recompute activations
class Recomputed(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        for child in self.model:
            x = checkpoint(child, x, use_reentrant=False)
        return x


class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.Trainer(max_epochs=1).fit(Classifier(Recomputed(model)), loader)

# %% A DataLoader with a sampler of its own
sampler = torch.utils.data.WeightedRandomSampler([1.0] * 128 + [3.0] * 128, 256)


class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.Trainer(max_epochs=1).fit(Classifier(model), DataLoader(dataset, batch_size=16, sampler=sampler))


# %% A loss of several terms
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        outputs = self.model(x)
        loss = F.cross_entropy(outputs, y) + 0.01 * outputs.pow(2).mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.Trainer(max_epochs=1).fit(Classifier(model), loader)


# %% A GAN
def judge(logits, real):
    return F.binary_cross_entropy_with_logits(logits.squeeze(1), real)


class GAN(L.LightningModule):
    def __init__(self, generator, critic):
        super().__init__()
        self.generator, self.critic = generator, critic
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        real, _ = batch
        by_generator, by_critic = self.optimizers()
        ones, zeros = torch.ones(16, device=self.device), torch.zeros(16, device=self.device)
        noise = torch.randn(16, 4, device=self.device)
        fake = self.generator(noise)
        pair = torch.cat((real, fake.detach()))
        by_critic.zero_grad()
        self.manual_backward(judge(self.critic(pair), torch.cat((ones, zeros))))
        by_critic.step()
        by_generator.zero_grad()
        loss = judge(self.critic(fake), ones)
        self.manual_backward(loss)
        by_generator.step()
        self.log("loss", loss, prog_bar=True)

    def configure_optimizers(self):
        by_generator = torch.optim.AdamW(self.generator.parameters(), lr=1e-3)
        return by_generator, torch.optim.AdamW(self.critic.parameters(), lr=1e-3)


generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
critic = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
L.Trainer(max_epochs=1).fit(GAN(generator, critic), loader)


# %% Fine-tune a Hugging Face model
class LanguageModel(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        loss = self.model(**batch).loss
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-5)


trainer = L.Trainer(max_epochs=1, gradient_clip_val=1.0)
trainer.fit(LanguageModel(llm), DataLoader(tokens, batch_size=8, shuffle=True))


# %% LoRA
class LanguageModel(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        loss = self.model(**batch).loss
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


adapted = get_peft_model(llm, lora)
trainer = L.Trainer(max_epochs=1, gradient_clip_val=1.0)
trainer.fit(LanguageModel(adapted), DataLoader(tokens, batch_size=8, shuffle=True))
adapted.save_pretrained("runs/lora")


# %% Two ranks from a notebook
# needs two ranks
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.Trainer(max_epochs=1, devices=2, strategy="ddp_notebook").fit(Classifier(model), loader)


# %% Where the time of a step goes
class Classifier(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.Trainer(max_steps=4, profiler="pytorch").fit(Classifier(model), loader)
