"""A recipe is a whole run as text: it reads back, and every mistake in it is named at once."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.errors import PlanError, PlanErrors
from stepladder.plan import Plan, Rate, Recipe, read_recipe
from stepladder.plan.optimizer import Group
from stepladder.plan.recipe import DataChoice, ModelChoice, RunChoice, TrainChoice

texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))
sizes = st.integers(1, 10**9)
recipes = st.builds(
    Recipe,
    model=st.builds(ModelChoice, texts, sizes, st.floats(0, 0.99)),
    data=st.builds(DataChoice, texts, st.integers(-(10**9), 10**9), texts, st.booleans(), texts),
    train=st.builds(TrainChoice, sizes, sizes, exact=st.booleans()),
    run=st.builds(RunChoice, texts, st.booleans()),
    plan=st.fixed_dictionaries({}, optional={"precision": st.just("bf16"), "micro": sizes}),
    optimizer=st.fixed_dictionaries({}, optional={"lr": st.floats(0, 1), "name": st.just("sgd")}),
    rate=st.fixed_dictionaries({}, optional={"warmup": st.integers(0, 10**6)}),
)


@given(recipes)
def test_a_recipe_reads_back(recipe):
    assert Recipe.from_table(tomllib.loads(recipe.to_toml())) == recipe


def test_no_file_is_the_default_recipe():
    assert read_recipe(None) == Recipe()


def test_words_change_a_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[train]\nsteps = 5\nexact = true\n[model]\nname = 'é'\n", encoding="utf-8")
    recipe = read_recipe(path, ["--train.steps", "7", "--run.folder=a=b", "--run.resume", "on"])
    assert recipe.train.steps == 7
    assert recipe.train.exact is True
    assert recipe.model.name == "é"
    assert recipe.run == RunChoice("a=b", True)


def test_a_recipes_plan_is_its_words_and_none_is_left_to_be_chosen():
    assert Recipe().plan_choice() is None
    recipe = read_recipe(None, ["--plan.precision", "bf16", "--plan.micro", "2"])
    assert recipe.plan_choice() == Plan.parse("bf16 micro=2")


def test_optimizer_words_stand_on_the_default():
    chosen = read_recipe(None, ["--optimizer.lr", "0.5"]).optimizer_choice()
    assert (chosen.name, chosen.lr, chosen.wd, chosen.clip) == ("adamw", 0.5, 0.1, 1.0)


def test_muons_rate_is_its_own_and_the_rest_learns_at_the_usual_one():
    chosen = Recipe.from_table(
        {"optimizer": {"name": "muon", "nesterov": False}}
    ).optimizer_choice()
    assert (chosen.lr, chosen.adamw_lr, chosen.wd, chosen.nesterov) == (0.02, 2e-3, 0.1, "off")
    assert (
        read_recipe(None, ["--optimizer.name=muon", "--optimizer.lr=0.5"]).optimizer_choice().lr
        == 0.5
    )


def test_an_optimizers_groups_and_betas_may_be_lists():
    table = {"optimizer": {"group": ["*.bias:wd=0", "head.*:lr=x0.1,wd=0"], "betas": [0.8, 0.9]}}
    chosen = Recipe.from_table(table).optimizer_choice()
    assert chosen.groups == (Group("*.bias", wd=0.0), Group("head.*", 0.1, 0.0))
    assert chosen.betas == (0.8, 0.9)


def test_the_rate_spans_the_run():
    assert Recipe().rate_choice() == Rate("cosine", 20, 500, 0.1)
    assert read_recipe(None, ["--train.steps", "1"]).rate_choice() == Rate("cosine", 0, 1, 0.1)


@pytest.mark.parametrize("kind", ["cosine", "linear", "wsd"])
def test_a_warm_up_longer_than_the_run_is_legal(kind):
    words = ["--rate.kind", kind, "--rate.warmup", "500", "--train.steps", "10"]
    assert read_recipe(None, words).rate_choice().steps == 501


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--modle.name", "x"], "modle: is not a section. Did you mean 'model'?"),
        (["--model.nam", "x"], "model.nam: is not a setting. Did you mean 'name'?"),
        (["--train.steps", "x"], "train.steps: 'x' is not a whole number. The default is 500."),
        (["--train.steps", "1.5"], "train.steps: '1.5' is not a whole number."),
        (["--train.steps", "²"], "train.steps: '²' is not a whole number."),
        (["--train.steps", "9" * 5000], "train.steps: '999"),
        (["--train.steps", "0"], "train.steps: 0 is too few. Use 1 or more."),
        (["--train.steps", "-5"], "train.steps: -5 is too few. Use 1 or more."),
        (["--train.evaluate_every", "-1"], "train.evaluate_every: -1 is too few. Use 0 or more."),
        (["--model.sequence", "0"], "model.sequence: 0 is too few. Use 1 or more."),
        (["--model.dropout", "x"], "model.dropout: 'x' is not a number. The default is 0.0."),
        (["--model.dropout", "inf"], "model.dropout: 'inf' is not a number."),
        (
            ["--model.dropout", "1"],
            "model.dropout: 1.0 is not a share of the activations. Use 0 or more and under 1.",
        ),
        (["--train.exact", "maybe"], "train.exact: 'maybe' is not true or false."),
        (["--run.folder", "a\0b"], "run.folder: 'a\\x00b' is not text. The default is ''."),
        (["--run.folder", "\udcff"], "run.folder: '\\udcff' is not text."),
        (["--optimizer.lr", "x"], "optimizer.lr: 'x' is not a number of 0 or more. Write one."),
        (["--optimizer.name", "adm"], "optimizer: 'adm' is not an optimizer."),
        (["--rate.kind", "cosin"], "rate: 'cosin' is not a schedule. Did you mean 'cosine'?"),
        (["--rate.warmup", "x"], "rate.warmup: 'x' is not a whole number of 0 or more."),
        (["--plan.precision", "bf-16"], "precision: 'bf-16' is not a precision."),
        (["steps"], "option: 'steps' is not one. Write --model.KEY, --data.KEY, --train.KEY,"),
        (["--steps", "5"], "option: '--steps' is not one."),
        (["--train.", "5"], "option: '--train.' is not one."),
        (["--train.steps"], "train.steps: has no value. Write --train.steps VALUE."),
    ],
)
def test_a_mistake_on_the_command_line_is_named(words, message):
    with pytest.raises(PlanError) as caught:
        read_recipe(None, words)
    assert str(caught.value).startswith(message)
    assert not isinstance(caught.value, PlanErrors)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train = 5", "train: is a section, not a value. Write [train]."),
        ("[[train]]", "train: is a section, not a value. Write [train]."),
        ("[train]\nsteps = 5.0", "train.steps: '5.0' is not a whole number."),
        ("[train]\nsteps = true", "train.steps: 'on' is not a whole number."),
        ("[train]\nsteps = [5]", "train.steps: '5' is not a whole number."),
        ("[train]\nexact = 1", "train.exact: '1' is not true or false."),
        ("[train]\nexact = [true]", "train.exact: 'on' is not true or false."),
        (f"[train]\nsteps = 0x{'f' * 5000}", "train.steps: 'int…' is not a whole number."),
        (f"[model]\ndropout = {10**400}", "model.dropout: '1000"),
        ("[model.name]\na = 1", "model.name: 'a table' is not text."),
        ("[model]\nname = 1979-05-27", "model.name: '1979-05-27' is not text."),
        ("[optimizer]\ngroup = {a = 1}", "optimizer.group: 'a table' is not a pattern"),
        ("[optimizer]\nlr = [1, 2]", "optimizer.lr: '1,2' is not a number of 0 or more."),
        ("[rate]\nwarmup = {}", "rate.warmup: 'a' is not a whole number of 0 or more."),
        ("[plan]\nmicro = [[1]]\n", "batch.micro: '1' "),
    ],
)
def test_a_mistake_in_a_file_is_named(text, message, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(text)
    if message.startswith("batch.micro: '1' "):
        assert read_recipe(path).plan_choice() == Plan.parse("micro=1")
        return
    with pytest.raises(PlanError) as caught:
        read_recipe(path)
    assert str(caught.value).startswith(message)


def test_a_word_for_a_section_that_is_a_value_in_the_file_is_refused(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("train = 5")
    with pytest.raises(PlanError) as caught:
        read_recipe(path, ["--train.steps", "5"])
    assert str(caught.value) == "train: is a section, not a value. Write [train]."


def test_every_problem_is_reported_at_once():
    words = ["--train.steps", "x", "--model.nam", "y", "--optimizer.lr", "-1", "--plan.foo", "1"]
    with pytest.raises(PlanErrors) as caught:
        read_recipe(None, words)
    assert [problem.field for problem in caught.value.problems] == [
        "train.steps",
        "model.nam",
        "optimizer.lr",
        "plan",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[train", "is not TOML: Expected"),
        (b"\xff", "is not TOML: 'utf-8' codec can't decode"),
        (b"a = " + b"[" * 5000, "is not TOML: maximum recursion depth"),
        (b"a = " + b"9" * 5000, "is not TOML: Exceeds the limit"),
    ],
)
def test_a_file_that_is_not_toml_says_where(content, message, tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(PlanError) as caught:
        read_recipe(path)
    assert str(caught.value).startswith(f"run file: {path} {message}")
    assert str(caught.value).endswith(". Mend that line.")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.toml", "cannot be read (No such file or directory). Check its name."),
        (".", "cannot be read (Is a directory). Check its name."),
        ("x" * 300, "cannot be read (File name too long). Check its name."),
        ("a\0b", "is not TOML: embedded null byte. Mend that line."),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name, message, tmp_path):
    with pytest.raises(PlanError) as caught:
        read_recipe(tmp_path / name)
    shown = str(tmp_path / name).replace("\0", "\\x00")  # no letter of it breaks the line
    assert str(caught.value) == f"run file: {shown} {message}"
