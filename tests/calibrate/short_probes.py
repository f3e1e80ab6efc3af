"""Calibration of a processor in a second or two: the real probes, on small shapes."""

from importlib import import_module

import pytest

from stepladder.calibrate import probes

SHAPES = {  # the table of a processor's shapes, and what is measured instead
    "PRODUCTS": ((64, 32, 128), (128, 96, 96), (96, 64, 192)),
    "ATTENTIONS": ((1, 2, 32, 16), (1, 2, 64, 16)),
    "STREAMS": (2**20, 2**16),
    "PARAMETERS": 2**18,
}


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Time each probe briefly, and of 16-bit types only the one matmul that shows their rate.

    Without the second, a processor that emulates them a little faster than the limit takes half a
    minute for the larger shapes.
    """
    module = import_module("stepladder.calibrate.calibrate")
    patch.setattr(module, "EACH_SECONDS", 0.01)
    patch.setattr(module, "LEAST_FLOPS_PER_SECOND", 1e18)
    for name, shapes in SHAPES.items():
        patch.setitem(getattr(probes, name), "cpu", shapes)
