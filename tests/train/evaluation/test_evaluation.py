"""What an evaluation answers for a name."""

import pytest

from stepladder.errors import DataError
from stepladder.train.evaluation.evaluation import Evaluation

FOUND = Evaluation(0.5, {"accuracy": 0.75, "f1": 0.6})


def test_the_loss_and_the_metrics_are_found_by_name():
    assert (FOUND["loss"], FOUND["accuracy"], FOUND["f1"]) == (0.5, 0.75, 0.6)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("acuracy", "Did you mean 'accuracy'?"),
        ("los", "Did you mean 'loss'?"),
        ("recall", "Choose one of: loss, accuracy, f1."),
        (0, "Choose one of: loss, accuracy, f1."),
    ],
)
def test_a_name_it_has_not_is_told_the_nearest(name, remedy):
    with pytest.raises(DataError) as refused:
        FOUND[name]
    assert str(refused.value) == f"metrics: {name!r} was not evaluated. {remedy}"
