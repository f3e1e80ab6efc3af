"""A DataLoader that you have already: its sampler, collate_fn and workers stay yours.

On several ranks its batches are the global batches, and each rank trains on its own rows of them.
"""

import torch
from torch.utils.data import DataLoader, WeightedRandomSampler

import stepladder as sl


class Sentences:
    """Token lists of any length; a tenth of them hold a 1 and are of the rare class."""

    def __init__(self, rows):
        draw = torch.Generator().manual_seed(0)
        self.rare = torch.rand(rows, generator=draw) < 0.1
        lengths = torch.randint(4, 12, (rows,), generator=draw).tolist()
        self.ids = [torch.randint(2, 20, (length,), generator=draw) for length in lengths]
        for ids in (ids for ids, rare in zip(self.ids, self.rare) if rare):
            ids[len(ids) // 2] = 1

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return self.ids[index], int(self.rare[index])


def pad(samples):
    ids, classes = zip(*samples)
    return torch.nn.utils.rnn.pad_sequence(ids, batch_first=True), torch.tensor(classes)


class MeanOfWords(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(20, 16, padding_idx=0), torch.nn.Linear(16, 2)

    def forward(self, ids):
        return self.head(self.words(ids).sum(1))


torch.manual_seed(0)
data = Sentences(512)
weights = torch.where(data.rare, 9.0, 1.0)  # both classes are drawn equally often
sampler = WeightedRandomSampler(weights.tolist(), len(data))
loader = DataLoader(data, batch_size=32, sampler=sampler, collate_fn=pad, num_workers=1)

run = sl.climb(MeanOfWords(), loss="cross_entropy", optimizer="adamw lr=3e-2")
for epoch in range(2):
    for report in sl.fit(run, loader):
        if report.step % 8 == 0:
            print(f"epoch {epoch}, step {report.step}: loss {report.loss:.3f}")

classes = run.predict(DataLoader(data, batch_size=64, collate_fn=pad), keep=lambda x: x.argmax(-1))
print(f"rare found: {int((classes.bool() & data.rare).sum())} of {int(data.rare.sum())}")
