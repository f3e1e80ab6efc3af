"""Calling a module with the inputs of a batch, whatever their structure."""

from __future__ import annotations

from typing import Any

from torch import nn


def call(module: nn.Module, inputs: Any) -> Any:
    """Call a module with its inputs: one tensor, several, or keyword arguments."""
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)
