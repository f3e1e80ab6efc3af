"""Sampling device utilisation, temperature, power and memory in a background thread.

On an NVIDIA GPU they come from the driver's library (`nvidia-ml-py`). Without it, or without a GPU,
the CPU's utilisation is sampled instead. Utilisation is a share from 0 to 1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

import psutil

INTERVAL_SECONDS = 5.0
FIRST_SECONDS = 1.0  # the first sample comes early, so that a short run has one too

Sample = dict[str, Any]


class DeviceSampler:
    """Context in which a thread writes `device` entries."""

    def __init__(
        self,
        write: Callable[..., None],
        step: Callable[[], int],
        *,
        card: str | None = None,
        every_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._write, self._step, self._every = write, step, every_seconds
        self._read = choose_reader(card)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="device sampler", daemon=True)

    def _sample(self) -> None:
        pause = min(FIRST_SECONDS, self._every)
        with suppress(Exception):  # a failing driver or a full disk must not stop the run here
            self._read()  # psutil's first CPU utilisation of a thread is meaningless
            while not self._stop.wait(pause):
                self._write("device", step=self._step(), **self._read())
                pause = self._every

    def __enter__(self) -> DeviceSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)


def choose_reader(card: str | None) -> Callable[[], Sample]:
    """The function that samples the GPU with that UUID, or this CPU."""
    if card is not None:
        try:
            driver = import_module("pynvml")
            driver.nvmlInit()
            handle = driver.nvmlDeviceGetHandleByUUID(card)
            return lambda: read_card(driver, handle)
        except Exception:  # no library, no driver, or an unknown GPU
            pass
    return read_processor


def read_processor() -> Sample:
    return {
        "source": "processor",
        "utilisation": psutil.cpu_percent() / 100,
        "memory_bytes": psutil.Process().memory_info().rss,
    }


def read_card(driver: Any, handle: Any) -> Sample:
    return {
        "source": "card",
        "utilisation": driver.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        "temperature_c": driver.nvmlDeviceGetTemperature(handle, driver.NVML_TEMPERATURE_GPU),
        "power_w": driver.nvmlDeviceGetPowerUsage(handle) / 1000,
        "memory_bytes": driver.nvmlDeviceGetMemoryInfo(handle).used,
    }
