"""Fine-tuning a Hugging Face model: a tokenizer's batches, the model's own loss, its own files."""

import torch
from torch.utils.data import DataLoader
from transformers import DistilBertConfig, DistilBertForSequenceClassification

import stepladder as sl


def make_reviews(rows, seed):
    """Rows as a tokenizer pads them; those with more 7s than 8s are positive."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 11, (rows, 16), generator=draw)
    used = torch.arange(16) < torch.randint(4, 17, (rows, 1), generator=draw)
    positive = ((ids == 7) & used).sum(1) > ((ids == 8) & used).sum(1)
    columns = {"input_ids": ids * used, "attention_mask": used.long(), "labels": positive.long()}
    return [{name: column[row] for name, column in columns.items()} for row in range(rows)]


def accuracy(outputs, labels):
    return (outputs.logits.argmax(-1) == labels).float().mean()


torch.manual_seed(0)
config = DistilBertConfig(vocab_size=16, dim=32, hidden_dim=64, n_layers=2, n_heads=2, dropout=0.0)
model = DistilBertForSequenceClassification(config)  # or .from_pretrained("a name or folder")
run = sl.climb(model, optimizer="adamw lr=2e-3 wd=0.01 clip=1", rate="linear warmup=10 steps=80")
for report in sl.fit(run, run.batches(make_reviews(512, seed=0), size=32), steps=80):
    if report.step % 20 == 0:
        print(f"step {report.step}: loss {report.loss:.3f}")

held_out = DataLoader(make_reviews(128, seed=1), batch_size=32)
print(run.evaluate(held_out, metrics={"accuracy": accuracy}))
run.save("runs/finetuned")
print("Next: stepladder checkpoint convert runs/finetuned out  # a folder for from_pretrained")
