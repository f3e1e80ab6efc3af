"""Rental prices of devices: public on-demand list prices in dollars an hour, with their dates.

Prices move faster than releases, so they stand apart from what does not change. One provider is
used for as many devices as it rents, so that ratios between devices mean something. A device
nobody lists in public has no price: unknown is a value.
"""

from __future__ import annotations

_RUNPOD = "RunPod list, the lowest price it shows for a whole device, early 2026"
_AWS = "AWS us-east-1 Linux on-demand list, 2025"
_LAMBDA = "Lambda on-demand list, 2025"
_GOOGLE = "Google Cloud on-demand list, US regions, 2025"

PRICES: dict[str, tuple[float, str]] = {
    "RTX3090": (0.22, _RUNPOD),
    "RTX4090": (0.34, _RUNPOD),
    "RTX5090": (0.69, _RUNPOD),
    "L4": (0.44, _RUNPOD),
    "L40": (0.69, _RUNPOD),
    "L40S": (0.79, _RUNPOD),
    "A100-80GB": (1.39, _RUNPOD),
    "A100-80GB-PCIe": (1.19, _RUNPOD),
    "H100-80GB": (2.69, _RUNPOD),
    "H100-PCIe": (1.99, _RUNPOD),
    "H200": (3.59, _RUNPOD),
    "B200": (5.98, _RUNPOD),
    "T4": (0.526, f"{_AWS}: g4dn.xlarge"),
    "A10G": (1.006, f"{_AWS}: g5.xlarge"),
    "V100-16GB": (3.06, f"{_AWS}: p3.2xlarge"),
    "V100-32GB": (3.90, f"{_AWS}: an eighth of p3dn.24xlarge"),
    "A10": (0.75, _LAMBDA),
    "A6000": (0.80, _LAMBDA),
    "A100-40GB": (1.29, _LAMBDA),
    "GH200": (1.49, _LAMBDA),
    "TPU-v4": (3.22, _GOOGLE),
    "TPU-v5e": (1.20, _GOOGLE),
    "TPU-v5p": (4.20, _GOOGLE),
    "TPU-v6e": (2.70, _GOOGLE),
}
