"""Whatever is typed after the command, the answer is an exit code and lines: never a traceback.

A tenth as many as of the readers, since a forecast costs more than a look at its words; a run file
always holds a mistake, since one without any would begin to train.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stepladder.cli.main import COMMANDS, main
from stepladder.plan.typed_values import writable
from tests.plan.test_fuzz import files, overrides, texts, typed

EXAMPLES = int(os.environ.get("STEPLADDER_FUZZ", "500")) // 10
fuzz = settings(
    max_examples=EXAMPLES,
    derandomize="STEPLADDER_FUZZ" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
clusters = st.one_of(texts, st.sampled_from(["8 x A100-80GB", "2 nodes x 8 H100-80GB", "1 x T4"]))
models = st.one_of(texts, st.sampled_from(["gpt-tiny", "llama3-8b", "gpt2", "resnet50"]))
# A terminal hands over what is encoded; half a surrogate pair never comes through one.
typable = overrides.filter(lambda words: all(map(writable, words)))
# What begins like an option is argparse's to refuse, in its own words.
word = st.text(max_size=20).filter(lambda text: not text.startswith("-"))


def answer(capsys, *words: str) -> tuple[int, list[str]]:
    """The exit code and what was said of a mistake."""
    try:
        code = main([str(one) for one in words])
    except SystemExit as refused:  # argparse's way
        code = refused.code
    told = capsys.readouterr()
    assert "Traceback" not in told.out + told.err
    return code, told.err.splitlines()


@fuzz
@given(models, clusters, typed)
@example("gpt-tiny", "8 x A100-80GB", "fp32 shard=1000000000000")
@example("gpt-tiny", "8 x A100-80GB", "fp32 micro=9007199254740991")
@example("gpt-tiny", "--", "fp32")
@example("9" * 5000, "1 x T4", "fp32")
def test_any_plan_of_any_model_on_any_cluster_is_answered(capsys, model, cluster, plan):
    code, said = answer(capsys, "plan", f"--on={cluster}", f"--plan={plan}", "--", model)
    assert code in (0, 1) or (code == 2 and said)


@fuzz
@given(files, typable)
def test_any_run_file_with_a_mistake_is_refused_before_anything_starts(
    capsys, tmp_path, text, settings
):
    path = Path(tmp_path, "run.toml")
    path.write_bytes(f"{text}\n[nothing_of_that_name]\n".encode("utf-8", "surrogatepass"))
    for command in (["train"], ["verify", "precision"], ["verify", "resume"]):
        code, said = answer(capsys, *command, path, *settings)
        assert code == 2 and said


@fuzz
@given(typed, typed)
@example("fp32", "--")
@pytest.mark.parametrize("what", ["parity", "resume"])
def test_any_plans_to_prove_are_read_or_refused(capsys, what, plans, optimizer):
    # An unknown model is found after all words were read, and before any rank starts.
    words = [f"--plans={plans}", f"--optimizer={optimizer}", "--model=nothing"]
    code, said = answer(capsys, "verify", what, *words)
    assert code == 2 and said


@fuzz
@given(st.lists(st.one_of(st.sampled_from(list(COMMANDS)), word), min_size=1, max_size=3))
def test_any_command_is_answered(capsys, words):
    if words[0] in COMMANDS:  # which would begin to work
        words[0] += "s"
    assert answer(capsys, *words)[0] == 2
