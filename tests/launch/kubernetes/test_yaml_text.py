"""What is written is what a reader of YAML reads."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some

from stepladder.launch.kubernetes.yaml_text import to_yaml

WORDS = some.one_of(
    some.text(max_size=12),
    some.sampled_from(["no", "1e3", "2026-11-15", "a: b", "- c", "#x", "x\n\ny\n", "  x\n", "~"]),
)
VALUES = some.recursive(
    some.one_of(WORDS, some.integers(), some.booleans(), some.none()),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(WORDS, inner, max_size=3),
    max_leaves=12,
)


@given(some.dictionaries(WORDS, VALUES, min_size=1, max_size=3))
def test_what_is_written_is_what_is_read(document):
    assert list(yaml.safe_load_all(to_yaml([document, {"a": 1}]))) == [document, {"a": 1}]


@pytest.mark.parametrize(
    "text", ["a\nb\n", "a\nb", "a\n\n", "a  \n\n  b\n", "é\nx\n", "x: |\n y\n"]
)
def test_a_files_lines_stay_what_they_are(text):
    assert yaml.safe_load(to_yaml([{"file": text}]))["file"] == text


def test_it_reads_like_one_that_a_person_wrote():
    assert to_yaml(
        [{"kind": "Job", "ports": [{"name": "x", "port": 1}], "data": {"a": "1\n2\n"}}]
    ) == ("kind: Job\nports:\n- name: x\n  port: 1\ndata:\n  a: |\n    1\n    2\n")
