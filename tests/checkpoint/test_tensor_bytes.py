import pytest
import torch

from stepladder.checkpoint import as_bytes


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.float32).view(2, 3).t(),  # not in order
        torch.tensor(1.5).expand(1),  # one number, with a stride of 0, counts as contiguous
        torch.tensor(1.5).expand(3),
        torch.tensor([1 + 2j, 3j]).conj(),
        torch.tensor([1 + 2j, 3j]).conj().imag,  # negative lazily
        torch.tensor(7, dtype=torch.uint16),
        torch.zeros(0, 3, dtype=torch.bfloat16),
    ],
    ids=["transposed", "one-expanded", "expanded", "conjugate", "negative", "0-dim", "empty"],
)
def test_the_bytes_are_those_of_the_elements_in_order(tensor):
    numbers = tensor.resolve_conj().resolve_neg()
    elements = torch.stack([*numbers.reshape(-1)]) if numbers.numel() else numbers.reshape(-1)
    assert as_bytes(tensor).dtype is torch.uint8
    assert bytes(as_bytes(tensor).tolist()) == bytes(elements.view(torch.uint8).tolist())
