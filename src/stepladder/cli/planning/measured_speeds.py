"""Which measured speeds a forecast on the command line is made with."""

from __future__ import annotations

import argparse

from stepladder.cli.import_torch import loading
from stepladder.errors import PlanError
from stepladder.hardware import Cluster
from stepladder.hardware.here import is_here
from stepladder.record import Calibration, calibration_path, load_calibration


def measured_speeds(options: argparse.Namespace, cluster: Cluster) -> Calibration | None:
    """What was measured: in the file that was named, or by this user on such a device."""
    if options.calibration == "none":
        return None
    if options.calibration:
        named = Calibration.load(options.calibration)
        if named.device not in ("", cluster.device.name):
            problem = f"{options.calibration} was measured on {named.device}, not {cluster.device}"
            raise PlanError("calibration", problem, "Name one that was measured there, or none.")
        return named
    if is_here(options.on):
        with loading():
            from stepladder.calibrate import speeds_here
        found = speeds_here(ranks=cluster.devices_per_node)
    else:
        found = load_calibration(cluster.device.name)
    if found and not options.json and calibration_path(cluster.device.name).exists():
        print(f"Speeds of {cluster.device} as measured: {calibration_path(cluster.device.name)}")
    return found
