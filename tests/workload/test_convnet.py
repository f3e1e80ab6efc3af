import pytest

from stepladder.workload import find_facts


def test_resnet50_has_its_published_size_and_work() -> None:
    facts = find_facts("resnet50")
    assert facts.parameters == 25_557_032
    assert facts.flops_per_sample / 3 / 2 == pytest.approx(4.09e9, rel=0.01), "multiply-adds"
