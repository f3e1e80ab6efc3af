"""Plans under which rows that max_norm shortens would be lost are refused."""

import pytest
from torch import nn

from stepladder.errors import ModelError
from stepladder.train import climb


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ("fp32 offload=optimizer", "offload=optimizer, which updates another copy"),
        ("bf16-master", "masters, which are not shortened"),
    ],
)
def test_plans_that_lose_shortened_rows_are_refused(plan, why):
    module = nn.Sequential(nn.Embedding(4, 3, max_norm=1.0), nn.Linear(3, 2))
    with pytest.raises(ModelError) as raised:
        climb(module, loss="cross_entropy", plan=plan, device="cpu")
    assert str(raised.value) == (
        f"0: max_norm=1 shortens rows of its weight in forward, and that is lost under {why}. "
        "Use another plan, or shorten what the embedding returns."
    )
