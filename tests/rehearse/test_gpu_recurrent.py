"""LSTM on a GPU, against the blocks that an H200's allocator had at the peak."""

import torch
from torch import nn

from stepladder.rehearse import rehearse

MIB = 2**20


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(1024, 1024, num_layers=2, batch_first=True)
        self.head = nn.Linear(1024, 2)

    def forward(self, x):
        return self.head(self.cells(x)[0])


def test_the_reserve_of_two_layers_is_what_was_measured():
    with torch.device("meta"):
        module = Tagger()
    batch = torch.zeros(64, 256, 1024), torch.zeros(64, 256, dtype=torch.long)
    for plan, reserve in (("fp32", 704 * MIB), ("bf16", 352 * MIB)):
        found = rehearse(module, plan, sample=batch, loss="cross_entropy")
        assert reserve in [one.num_bytes for one in found.largest]
        assert not any("recurrent" in note for note in found.notes)
    assert any(
        "recurrent" in note
        for note in rehearse(module, "fp32", sample=batch, loss="cross_entropy", device="cpu").notes
    )
