"""Runs the real driver node in this process, with cameras in another one and a model that only takes its time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter

from wamdiff2.msg import Stats, Trajectory
from wamdiff2_core.decode.result import DecodeResult, Status
from wamdiff2_core.driver import Driver
from wamdiff2_core.tasks import plan
from wamdiff2_ros.driver_node import DriverNode
from wamdiff2_ros.process import SWITCH_S
from wamdiff2_ros.qos import OUTPUT

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / "checkpoints" / "tiny"
AHEAD = np.column_stack([np.arange(1, 9) * 4.0, np.zeros(8)])


class StandIn:
    """Answers each prompt with the same plan after so many seconds, as if a model had been at work.

    model: "sleep" leaves its core idle; "busy" keeps it at small matrix products in one thread, as a model on the
    processor or one that launches kernels does.
    """

    kernels = "none"

    def __init__(self, driver: Driver, seconds: float, model: str) -> None:
        self._tokens = driver.tokenizer.encode(plan.serialise(AHEAD))
        self._seconds, self._busy = seconds, model == "busy"
        self._matrix = np.eye(96, dtype=np.float32)

    def generate(self, *inputs: Any, **more: Any) -> DecodeResult:
        started_s = time.monotonic()
        if self._busy:
            while time.monotonic() - started_s < self._seconds:
                self._matrix @ self._matrix
        else:
            time.sleep(self._seconds)
        took_ms = (time.monotonic() - started_s) * 1e3
        return DecodeResult(self._tokens, Status.COMPLETE, [0.9] * len(self._tokens), [4], 4, decode_ms=took_ms)


def stand_in_driver(cameras: Sequence[str], seconds: float, model: str) -> Driver:
    """A driver with the demo checkpoint's tokenizer and image sizes that does all but the model's work."""
    driver = Driver.from_checkpoint(CHECKPOINT)
    front, side = driver.image_sizes["cam_front"], driver.image_sizes["cam_front_left"]
    driver.cameras = tuple(cameras)
    driver.image_sizes = {name: front if name == "cam_front" else side for name in cameras}
    driver.decoder = StandIn(driver, seconds, model)  # type: ignore[assignment]
    return driver


class NodeRun:
    """`stats`: what the node published on ~/output/stats. Its trajectories are received and counted, not kept."""

    def __init__(
        self, sizes: dict[str, str], rate_hz: float, inference_s: float, model: str = "sleep", **parameters: Any
    ) -> None:
        """`sizes`: WIDTHxHEIGHT of the pictures by camera; model: see StandIn."""
        self.stats: list[Stats] = []
        self.trajectories = 0
        sys.setswitchinterval(SWITCH_S)  # as run_node does
        self._context = Context()
        rclpy.init(context=self._context)
        values = {"cameras": list(sizes), "tasks": ["plan"], "checkpoint": str(CHECKPOINT), **parameters}
        overrides = [Parameter(name, value=value) for name, value in values.items()]
        self.node = DriverNode(
            lambda settings: stand_in_driver(settings.cameras, inference_s, model),
            context=self._context,
            parameter_overrides=overrides,
        )
        self._probe = Node("probe", context=self._context)
        self._probe.create_subscription(Stats, "/wamdiff2/output/stats", self.stats.append, OUTPUT)
        self._probe.create_subscription(Trajectory, "/wamdiff2/output/trajectory", self._count, OUTPUT)
        self._node_executor = SingleThreadedExecutor(context=self._context)
        self._node_executor.add_node(self.node)
        self._node_executor.add_node(self._probe)
        cameras = [f"{name}={size}" for name, size in sizes.items()]
        command = [sys.executable, str(ROOT / "benchmarks/camera_sender.py"), *cameras, "--rate-hz", str(rate_hz)]
        self._sender = subprocess.Popen(command)

    def spin(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._node_executor.spin_once(timeout_sec=0.1)

    def spin_until_running(self, limit_s: float = 60.0) -> None:
        """Until three plans came; then forget them, so that only steady running is measured."""
        until_s = time.monotonic() + limit_s
        while len(self.stats) < 3:
            if time.monotonic() > until_s:
                raise TimeoutError(f"no plans within {limit_s} s")
            self.spin(0.1)
        self.stats.clear()

    def close(self) -> None:
        self._sender.terminate()
        self._sender.wait(10.0)
        self.node.close()
        self._node_executor.shutdown()
        self.node.destroy_node()
        self._probe.destroy_node()
        rclpy.try_shutdown(context=self._context)

    def _count(self, message: Trajectory) -> None:
        self.trajectories += 1


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and largest."""
    low, high, most = np.percentile(values, [50.0, 95.0, 100.0])
    return {"median": round(float(low), 3), "p95": round(float(high), 3), "max": round(float(most), 3)}


def resident_mb() -> float:
    """Memory of this process (MB) that is in RAM now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6
