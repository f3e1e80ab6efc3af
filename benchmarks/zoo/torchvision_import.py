"""Imports torchvision, where it is installed, even if its compiled operators do not load.

A torchvision wheel built for another variant of torch (CUDA beside a CPU build) cannot load its
compiled operators and then fails to import, and transformers with it. No classifier calls them, so
declaring the two that its Python code registers fakes for is enough.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module

import torch


def import_torchvision() -> None:
    try:
        import_module("torchvision")
    except ImportError:
        return
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        for name in ("nms", "qnms"):
            with suppress(RuntimeError):  # it is there already
                torch.library.define(f"torchvision::{name}", boxes)
        import_module("torchvision")
