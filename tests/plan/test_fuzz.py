"""Whatever is typed, the answer is a value or a StepladderError: never a traceback.

200 texts a reader by default. The long form, other texts each time:

    STEPLADDER_FUZZ=5000 .venv/bin/python -m pytest tests -k test_fuzz
"""

import datetime
import os
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepladder.errors import StepladderError
from stepladder.hardware import Cluster
from stepladder.plan import Optimizer, Plan, Rate, Recipe, read_recipe
from stepladder.plan.plan_text import ALL_WORDS
from stepladder.plan.recipe import SECTIONS, TEXTS
from stepladder.workload import find_shape
from stepladder.workload.shape import parse_shape

EXAMPLES = int(os.environ.get("STEPLADDER_FUZZ", "200"))
fuzz = settings(max_examples=EXAMPLES, derandomize="STEPLADDER_FUZZ" not in os.environ)

letters = st.characters(exclude_categories=())  # surrogates and control characters included
long = ("9" * 5000, "0x" + "f" * 5000, "[" * 2000, "x" * 300)
odd = ("", "\0", "\ud800", "\u2028", "\x7f", "²", "١٢", "1e999", "nan", "inf", "-0", "-1", "0", "1")
strange = st.sampled_from([*long, *odd, "1_0", "=", ",", ":", "'", "{a=1}"])
optimizer_words = ["sgd", "adamw", "lr", "wd", "betas", "clip", "group", "layers", "eps", "lr=x"]
rate_words = ["cosine", "linear", "wsd", "constant", "warmup", "steps", "floor", "decay"]
shape_words = ["llama:", "gpt:", "layers=", "hidden=", "heads=", "kv_heads=", "ffn=", "tied=", ","]
values = ["fp32:", "every:", "GiB", "powersgd:", "interleaved:", "none", "auto", "on", "zero3"]
cluster_words = ["nodes", " x ", "H100-80GB", "A100", "400 Gb/s", "NVLink 900 GB/s", "per GPU"]
run_words = [*SECTIONS, *TEXTS, *ALL_WORDS, *optimizer_words, *rate_words]
words = st.sampled_from([*run_words, *shape_words, *values, *cluster_words])
joints = st.sampled_from([" ", "=", ",", ":", "\n", ".", '"', "'", "[", "]", " = ", "--"])
numbers = st.one_of(st.integers(), st.floats()).map(str)
pieces = st.one_of(words, joints, strange, numbers, st.text(letters, max_size=4))
texts = st.one_of(st.text(letters, max_size=40), st.lists(pieces, max_size=12).map("".join))
typed = st.one_of(  # as a person would write it, but for the value
    texts,
    st.builds("{}={}".format, words, texts),
    st.builds("{} {}={}".format, words, words, texts),
)


READERS = [
    Plan.parse, Plan.from_toml, Optimizer.parse, Rate.parse, parse_shape, find_shape, Cluster.parse
]  # fmt: skip


@pytest.mark.parametrize("read", READERS)
@fuzz
@given(typed)
def test_any_text_is_read_or_refused(read, text):
    with suppress(StepladderError):
        read(text)


@fuzz
@given(typed)
def test_a_plan_that_was_read_can_be_written_and_read_again(text):
    with suppress(StepladderError):
        plan = Plan.parse(text)
        assert Plan.parse(str(plan)) == Plan.from_toml(plan.to_toml()) == plan


known = {**{name: list(SECTIONS[name].__slots__) for name in SECTIONS}}
known |= {"plan": list(ALL_WORDS), "optimizer": optimizer_words, "rate": [*rate_words, "kind"]}
settings_words = st.sampled_from([f"--{name}.{key}" for name in known for key in known[name]])
overrides = st.lists(
    st.one_of(
        st.tuples(settings_words, st.one_of(texts, numbers, strange)),
        st.tuples(texts.map("--{}".format), texts),
        st.tuples(texts),
    ),
    max_size=4,
).map(lambda found: [word for group in found for word in group])


@fuzz
@given(overrides)
def test_any_words_after_a_command_are_read_or_refused(given_words):
    with suppress(StepladderError):
        recipe = read_recipe(None, given_words)
        assert Recipe.from_table(tomllib.loads(recipe.to_toml())) == recipe


toml_values = st.recursive(
    st.one_of(
        st.booleans().map(lambda value: str(value).lower()),
        st.integers().map(str),
        st.sampled_from(["inf", "nan", "1979-05-27", "07:32:00", "0x" + "f" * 5000, "9" * 5000]),
        st.sampled_from(["1e400", '"\\u0000"', "'x'", '"bf16"', '"a b"', "[" * 2000]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]"),
        inner.map("{{a = {}}}".format),
    ),
    max_leaves=4,
)
files = st.lists(
    st.one_of(
        settings_words.flatmap(
            lambda word: toml_values.map(
                lambda value: "[{}]\n{} = {}\n".format(*word[2:].split(".", 1), value)
            )
        ),
        texts,
    ),
    max_size=3,
).map("".join)


@fuzz
@given(files)
def test_any_run_file_is_read_or_refused(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.toml")
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        with suppress(StepladderError):
            recipe = read_recipe(path)
            assert Recipe.from_table(tomllib.loads(recipe.to_toml())) == recipe


anything = st.recursive(  # whatever TOML can hold
    st.one_of(
        st.none().map(lambda _: "none"),
        st.booleans(),
        st.integers(),
        st.sampled_from([2**63, -(2**63), 10**400, 0, -1]),
        st.floats(),
        st.text(letters, max_size=12),
        words,
        st.dates(),
        st.times(),
        st.datetimes(timezones=st.sampled_from([None, datetime.UTC])),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(words, texts), inner, max_size=3)
    ),
    max_leaves=6,
)
sections = st.one_of(
    *(
        st.tuples(
            st.just(name),
            st.dictionaries(st.one_of(st.sampled_from(keys), texts), anything, max_size=3),
        )
        for name, keys in known.items()
    ),
    st.tuples(texts, anything),
)


@fuzz
@given(st.lists(sections, max_size=3).map(dict))
def test_any_table_of_a_run_file_is_read_or_refused_with_every_problem_in_a_line(table):
    try:
        recipe = Recipe.from_table(table)
    except StepladderError as refused:
        problems = getattr(refused, "problems", [refused])
        assert all(problem.problem for problem in problems)
        assert len(str(refused).splitlines()) == len(problems)
    else:
        assert Recipe.from_table(tomllib.loads(recipe.to_toml())) == recipe


@fuzz
@given(st.binary(max_size=60))
def test_any_bytes_in_a_run_file_are_read_or_refused(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.toml")
        path.write_bytes(content)
        with suppress(StepladderError):
            read_recipe(path)
