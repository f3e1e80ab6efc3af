"""The device is sampled by a thread that nobody waits for."""

import sys
import time
from types import SimpleNamespace

from stepladder.track.device_sampler import DeviceSampler, choose_reader, read_card


def sample(**how):
    entries = []

    def write(kind, **entry):
        entries.append((kind, entry))

    with DeviceSampler(write, lambda: 7, every_seconds=0.01, **how) as sampler:
        while len(entries) < 3:
            time.sleep(0.005)
    assert not sampler._thread.is_alive()
    return entries


def test_a_processor_is_sampled_until_the_end():
    for kind, entry in sample():
        assert kind == "device" and entry["step"] == 7 and entry["source"] == "processor"
        assert 0 <= entry["utilisation"] <= 1 and entry["memory_bytes"] > 2**20


def test_a_card_the_driver_does_not_know_leaves_the_processor():
    assert {entry["source"] for _, entry in sample(card="GPU-nobody")} == {"processor"}


def test_a_journal_that_refuses_ends_the_sampling_and_nothing_else():
    def refuse(kind, **entry):
        raise OSError("no space")

    with DeviceSampler(refuse, lambda: 0, every_seconds=0.01) as sampler:
        sampler._thread.join(120)
        assert not sampler._thread.is_alive()


def test_a_card_is_read_in_shares_degrees_and_watts(monkeypatch):
    driver = SimpleNamespace(
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda name: name,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=87, memory=20),
        nvmlDeviceGetTemperature=lambda handle, sensor: 61,
        nvmlDeviceGetPowerUsage=lambda handle: 412_500,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=2**33),
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    expected = {
        "source": "card", "utilisation": 0.87, "temperature_c": 61, "power_w": 412.5,
        "memory_bytes": 2**33,
    }  # fmt: skip
    assert choose_reader("GPU-1")() == read_card(driver, "GPU-1") == expected
