"""The device as its driver sees it, sampled now and then by a thread that nobody waits for.

On an NVIDIA card the driver's library (`nvidia-ml-py`) gives utilisation, temperature, power and
memory. Without it, or without a card, the processor's utilisation stands in. Utilisation is a share
from 0 to 1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

import psutil

EVERY_SECONDS = 5.0
FIRST_SECONDS = 1.0  # the first sample comes early: a short run has one too

Sample = dict[str, Any]


class DeviceSampler:
    """Writes `device` entries while it is entered."""

    def __init__(
        self,
        write: Callable[..., None],
        step: Callable[[], int],
        *,
        card: str | None = None,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        self._write, self._step, self._every = write, step, every_seconds
        self._read = reader(card)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="device sampler", daemon=True)

    def _sample(self) -> None:
        pause = min(FIRST_SECONDS, self._every)
        with suppress(Exception):  # a driver that stops answering, a full disk: the run will tell
            self._read()  # a thread's first answer about the processor is about nothing
            while not self._stop.wait(pause):
                self._write("device", step=self._step(), **self._read())
                pause = self._every

    def __enter__(self) -> DeviceSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)


def reader(card: str | None) -> Callable[[], Sample]:
    """How to read the card with that unique name, or this processor."""
    if card is not None:
        try:
            driver = import_module("pynvml")
            driver.nvmlInit()
            handle = driver.nvmlDeviceGetHandleByUUID(card)
            return lambda: read_card(driver, handle)
        except Exception:  # no library, no driver, a card it does not know
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
