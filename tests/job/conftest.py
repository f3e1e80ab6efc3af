"""What holds for tests of jobs: modules that are alike are described once."""

import pytest

from stepladder.job.summary import forecast_comparison
from tests.train.tuning.described_once import described_once


@pytest.fixture(scope="module", autouse=True)
def alike_modules_are_described_once():
    with described_once(forecast_comparison):
        yield
