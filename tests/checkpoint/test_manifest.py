"""A manifest is data from outside: whatever stands in it, one line or a checkpoint that is true."""

import json
import shutil
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepladder.checkpoint import hash_bytes, read_manifest
from stepladder.checkpoint.hashing import SHA256
from stepladder.cli.main import main
from stepladder.errors import RecordError, StepladderError
from stepladder.train import climb
from tests.checkpoint.files import write_tensors

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([-1, 0, 1, 3, 2**31, 2**63, 2**70, 0.5, 1e308, float("nan"), float("inf")])
    | st.sampled_from(["", "x", "..", "../x", "/etc/passwd", "a/b", "\0", "F32", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["", "x", "../x", "dtype", "scale"]), inner, max_size=2)
    ),
    max_leaves=4,
)

BATCH = torch.ones(2, 2), torch.ones(2, 1)


def start():
    module = torch.nn.Linear(2, 1)
    return climb(module, loss="squared_error", optimizer="adamw lr=0.1", plan="fp32", device="cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    run = start()
    run.step(BATCH).read()
    return run.save(tmp_path_factory.mktemp("manifest"))


def places(found, at=()):
    """The way to everything that stands in a manifest."""
    yield at
    several = dict(enumerate(found)) if isinstance(found, list) else found
    inside = several if isinstance(several, dict) else {}
    for key, value in inside.items():
        yield from places(value, (*at, key))


def seal(path: Path, found) -> None:
    """Another manifest, with the right hash of itself."""
    data = json.dumps(found).encode()
    (path / "manifest.json").write_bytes(data)
    (path / "committed").write_text(hash_bytes(data, SHA256) + "\n")


def changed(found, at, value, how: str):
    """The manifest with what stands at a place replaced, renamed or left out."""
    whole = deepcopy(found)
    if not at:
        return value
    inner = whole
    for key in at[:-1]:
        inner = inner[key]
    if how == "left out":
        del inner[at[-1]]
    elif how == "renamed" and isinstance(inner, dict):
        inner[str(value)] = inner.pop(at[-1])
    else:
        inner[at[-1]] = value
    return whole


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), value=ANYTHING, how=st.sampled_from(["replaced", "renamed", "left out"]))
def test_no_manifest_gives_a_traceback(saved, tmp_path_factory, capsys, data, value, how):
    path = tmp_path_factory.mktemp("case") / saved.name
    shutil.copytree(saved, path)
    good = json.loads((saved / "manifest.json").read_text())
    at = data.draw(st.sampled_from(list(places(good))))
    seal(path, changed(good, at, value, how))
    try:
        run = start()
        run.load(path)
        run.step(BATCH).read()
    except StepladderError as refused:
        assert "\n" not in str(refused)
    for words in (["inspect", "--tensors"], ["verify"], ["convert", str(path.parent / "out")]):
        code = main(["checkpoint", words[0], str(path), *words[1:]])
        told = capsys.readouterr().err
        assert code in (0, 1, 2) and told.count("\n") == (code == 2), told
    shutil.rmtree(path.parent)


def test_a_manifest_that_is_no_text_is_refused(saved, tmp_path):
    path = shutil.copytree(saved, tmp_path / saved.name)
    data = b'{"format": 3, "\xff": 1}'
    (path / "manifest.json").write_bytes(data)
    (path / "committed").write_text(hash_bytes(data, SHA256) + "\n")
    with pytest.raises(RecordError, match="manifest.json is not a manifest"):
        read_manifest(path)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("seed", "0", "its seed is '0'"),
        ("health", 1.5, "its health is 1.5"),
        ("health", {"halvings": None}, "None is not a whole number"),
        ("health", {"losses": ["x"]}, "its loss scale or its losses are not numbers"),
        ("loss_scale", {"scale": 2.0}, "'good_steps'"),
        ("adapters", {"../../x": {}}, "the name '../../x' leads out of the folder"),
        ("adapters", {"x": 3}, "is not a manifest"),
        ("plan", 3, "its plan is 3"),
    ],
)
def test_what_a_run_would_go_on_with_is_of_its_kind(saved, tmp_path, key, value, said):
    path = shutil.copytree(saved, tmp_path / saved.name)
    found = json.loads((path / "manifest.json").read_text())
    found["state"][key] = value
    seal(path, found)
    with pytest.raises(RecordError) as raised:
        read_manifest(path)
    assert said in str(raised.value)


def test_a_file_of_no_generators_is_refused(saved, tmp_path):
    path = shutil.copytree(saved, tmp_path / saved.name)
    name = "rank-00000.safetensors"
    written = write_tensors(path / name, {"python": torch.zeros(3)})
    found = json.loads((path / "manifest.json").read_text())
    found["files"][name] = {"size": written.size, "digest": written.digest, "hash": written.hash}
    seal(path, found)
    with pytest.raises(RecordError, match="holds no state of generators"):
        start().load(path)
