"""What a recipe names, opened: the rows that a recomputation budget is fitted to."""

import pytest

from stepladder import job
from stepladder.job.opening.open_recipe import build_model, open_sources, sample_for_climb
from stepladder.plan import Plan, read_recipe

TINY = [
    "--model.name", "gpt:layers=4,hidden=16,heads=2,vocab=256", "--model.sequence", "16",
    "--train.batch", "4", "--train.evaluate_batches", "1", "--train.device", "cpu",
    "--train.sample", "0", "--train.steps", "2",
]  # fmt: skip
USERS = """
from torch import nn

class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(256, 16), nn.Linear(16, 256)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
                                    for _ in range(4))

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden)
"""
# 107 kB hold what the blocks keep of one row (67 and 37 kB), and not that of four (268 and 147).
ROOM, TIGHT = "1GiB", "0.0001GiB"


@pytest.mark.parametrize(("ranks", "rows"), [(1, 4), (2, 2)])
def test_a_budget_is_fitted_to_a_ranks_share_of_the_first_batch(ranks, rows, monkeypatch):
    launched = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    for name, value in {**launched, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    recipe = read_recipe(None, TINY)
    module = build_model(recipe)
    training, _ = open_sources(recipe, module)
    plan = Plan.parse("fp32 ddp recompute=8GiB")
    assert sample_for_climb(recipe, plan, training, module).num_rows == rows
    assert sample_for_climb(recipe, Plan.parse("fp32 ddp"), training, module) is None


@pytest.mark.parametrize("model", ["built-in", "user's"])
def test_a_budget_on_the_command_line_recomputes_what_it_must(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "users_stack.py").write_text(USERS)
    named = ["--model.name", "users_stack:Stack"] if model == "user's" else []
    kept = {}
    for budget in (ROOM, TIGHT):
        settings = [*TINY, *named, "--run.folder", str(tmp_path / budget)]
        found = job.train(settings=settings, plan=f"fp32 recompute={budget}")
        kept[budget] = found.memory.activations
    assert kept[TIGHT] < kept[ROOM]
