"""Generated problems train as a plain torch loop does, or are refused before the first step.

The draw here is short; `python -m tests.fuzz --pairs 5000` is the whole one.
"""

import ast
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.ranks import POOL
from tests.soak import soak_after

from .judge import compare
from .oracle import train
from .planted_defects import DEFECTS
from .problems.problem import SAVED_AT, STEPS, Problem
from .runner import Runner
from .shrink import shrink

HERE = Path(__file__).parent
LONG = {
    "seed-100393",
    "seed-10002",
    "seed-101821",
    "seed-13673",
    "seed-14555",
    "seed-302986",
    "seed-3220",
    "seed-3773",
    "seed-4562",
}  # each takes as long as ten others
CASES = sorted((HERE / "cases").glob("*.json"), key=lambda path: (path.stem in LONG, path.stem))
SEEDS = (0, 9, 10, 11, 2, 17, 13)  # the last is compiled; three take as long as all others


@pytest.fixture(scope="module")
def runner():
    with Runner(pool=POOL) as made:
        yield made


@pytest.mark.parametrize("seed", soak_after(SEEDS, gate=-3))
def test_a_generated_problem_is_the_same_or_refused(runner, seed):
    verdict = runner.try_problem(Problem.draw(seed)).verdict
    assert verdict.outcome in ("same", "refused", "announced"), (verdict.text, verdict.details)


@pytest.mark.parametrize("case", soak_after(CASES, gate=-len(LONG)), ids=lambda path: path.stem)
def test_what_once_failed_is_the_same_or_refused(runner, case):
    verdict = runner.try_problem(Problem.from_json(case.read_text())).verdict
    assert verdict.outcome in ("same", "refused", "announced"), (verdict.text, verdict.details)


def test_the_oracle_shares_no_code_with_stepladder():
    files = [HERE / "oracle.py", *(HERE / "problems").glob("*.py")]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                inside = node.level == 1 and (node.module or "").partition(".")[0] != "judge"
                names = [] if inside else [node.module or ""]
            else:
                continue
            assert not [n for n in names if n.startswith(("stepladder", "tests"))], file


def test_a_seed_always_draws_the_same_problem():
    for seed in range(50):
        problem = Problem.draw(seed)
        assert problem == Problem.draw(seed)
        assert Problem.from_json(problem.to_json()) == problem
        assert str(seed) in str(problem)


def test_a_parameter_that_moved_otherwise_is_a_difference():
    expected = train(Problem.draw(0), saved_at=SAVED_AT)
    state = dict(expected.states[STEPS])
    assert compare(expected.states[STEPS], state, expected.start) is None
    name = next(iter(state))
    moved = state[name] - expected.start[name]
    state[name] = expected.start[name] + 1.02 * moved  # 2 % too far
    assert name in compare(expected.states[STEPS], state, expected.start)[0]


def test_a_buffer_may_change_its_type_only_with_the_parameters():
    wanted = {"weight": torch.ones(2).double(), "mean": torch.ones(2).double()}
    wanted["half"] = torch.ones(2).half()
    got = {name: tensor.float() for name, tensor in wanted.items()}
    found = compare(wanted, got, wanted, frozenset({"weight"}))
    assert found[0].startswith("'half' is torch.float32")
    del wanted["half"]
    assert compare(wanted, got, wanted, frozenset({"weight"})) is None


def test_a_missing_tensor_is_a_difference():
    expected = train(Problem.draw(0), saved_at=SAVED_AT)
    state = {name: tensor for name, tensor in expected.states[STEPS].items() if "head" not in name}
    assert "not in the checkpoint" in compare(expected.states[STEPS], state, expected.start)[0]


def test_a_problem_is_shrunk_to_what_makes_it_fail():
    seeds = (seed for seed in range(1000) if len(Problem.draw(seed).module["extras"]) == 3)
    problem = Problem.draw(next(seeds))
    culprit = problem.module["extras"][1]
    small = shrink(problem, lambda one: culprit in one.module["extras"], trials=500)
    assert small.module["extras"] == [culprit]
    assert small.module["blocks"] == [] and small.layout.ranks == 1 and small.again is None


def sleep_on_one_rank(problem, layout, folder, resume, finished):
    time.sleep(600)


def test_a_hang_is_reported_and_the_next_problem_runs():
    problem = replace(Problem.draw(SEEDS[0]), again=None)
    with Runner(run_rank=sleep_on_one_rank, pool=POOL, hang_seconds=0.2) as runner:
        assert runner.try_problem(problem).verdict.kind == "hang"


def test_a_problem_uses_one_thread():
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.words)
def test_a_defect_can_be_planted(defect):
    for change in defect.changes:
        text = (HERE.parents[1] / "src" / "stepladder" / change.file).read_text()
        assert change.right in text
