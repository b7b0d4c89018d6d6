"""Shared by all tests: nothing leaves this machine, two runs do not hear each other, absent parts are named."""

from __future__ import annotations

import importlib.util
import os

import pytest
from hypothesis import HealthCheck, settings

# Before anything imports rclpy. A domain of its own per process, within what needs no wider port range.
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
os.environ["ROS_DOMAIN_ID"] = str(1 + (os.getpid() + 37 * _worker) % 100)
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
os.environ["ROS_PYTHON_CHECK_FIELDS"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Examples are not timed: a busy machine would fail them.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _has_gpu() -> bool:
    if not _has("torch"):
        return False
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, visibly, what this machine cannot run."""
    marks = {name for item in items for name in ("gpu", "ros") if item.get_closest_marker(name)}
    missing = {}
    if "gpu" in marks and not _has_gpu():
        missing["gpu"] = "no CUDA device"
    if "ros" in marks and not (_has("rclpy") and _has("wamdiff2")):
        missing["ros"] = "rclpy or our messages are not here: run `make setup`"
    for item in items:
        for name, reason in missing.items():
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))
