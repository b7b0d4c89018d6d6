"""A driver node in a process of its own, spoken to as an integrator does: services, parameters, topics, signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from harness import CAMERAS
from lifecycle_msgs.srv import ChangeState, GetState
from nav_msgs.msg import Odometry
from rcl_interfaces.srv import SetParameters, SetParametersAtomically
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from wamdiff2.msg import Stats, Trajectory
from wamdiff2_ros import conversions as cv
from wamdiff2_ros.images import fill_compressed
from wamdiff2_ros.odometry import OdometrySample
from wamdiff2_ros.qos import LATCHED, ODOMETRY_IN, OUTPUT, SENSOR_OUT

LIMIT_S = 120.0  # against hanging only: a process starts, and all share the machine
GREY = np.full((48, 64, 3), 90, np.uint8)
TRANSITIONS = {"configure": 1, "cleanup": 2, "activate": 3, "deactivate": 4}
SHUTDOWN = {"unconfigured": 5, "inactive": 6, "active": 7}


class Remote:
    """Starts `module` (of this folder or, with a dot, of a package) with `arguments` after --ros-args, and a probe."""

    def __init__(
        self, module: str, *arguments: str, cameras: Sequence[str] = CAMERAS, limit_s: float = LIMIT_S
    ) -> None:
        self.limit_s = limit_s
        self.context = Context()
        rclpy.init(context=self.context)
        self.node = Node("probe", context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.trajectories: list[Trajectory] = []
        self.stats: list[Stats] = []
        self.parameters: list[String] = []
        self.node.create_subscription(Trajectory, "/wamdiff2/output/trajectory", self.trajectories.append, OUTPUT)
        self.node.create_subscription(Stats, "/wamdiff2/output/stats", self.stats.append, OUTPUT)
        self.node.create_subscription(String, "/wamdiff2/output/parameters", self.parameters.append, LATCHED)
        self._images = {
            name: self.node.create_publisher(CompressedImage, f"/wamdiff2/input/{name}/image/compressed", SENSOR_OUT)
            for name in cameras
        }
        self._odometry = self.node.create_publisher(Odometry, "/wamdiff2/input/odometry", ODOMETRY_IN)
        self.lines: list[str] = []
        program = ["-m", module] if "." in module else [str(Path(__file__).parent / f"{module}.py")]
        command = [sys.executable, "-u", *program, "--ros-args", "-p", f"cameras:=[{','.join(cameras)}]"]
        command += ["-p", "overlay:=false", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def until(self, condition: Callable[[], Any], what: str, do: Callable[[], Any] = lambda: None) -> None:
        """Spin, calling `do` about every 30 ms, until the condition holds."""
        until_s, next_s = time.monotonic() + self.limit_s, 0.0
        while not condition():
            late = time.monotonic() > until_s or self.process.poll() is not None
            assert not late, (
                f"{what} did not happen within {self.limit_s} s or before the node ended; it said:\n{self.log}"
            )
            if time.monotonic() >= next_s:
                do()
                next_s = time.monotonic() + 0.03
            self.executor.spin_once(timeout_sec=0.01)

    def call(self, kind: Any, name: str, request: Any) -> Any:
        client = self.node.create_client(kind, f"/wamdiff2/{name}")
        self.until(client.service_is_ready, f"service {name}")
        future = client.call_async(request)
        self.until(future.done, f"the answer of {name}")
        self.node.destroy_client(client)
        return future.result()

    def state(self) -> str:
        return self.call(GetState, "get_state", GetState.Request()).current_state.label

    def change(self, transition: str) -> bool:
        request = ChangeState.Request()
        request.transition.id = SHUTDOWN[self.state()] if transition == "shutdown" else TRANSITIONS[transition]
        return self.call(ChangeState, "change_state", request).success

    def set(self, **values: Any) -> list[str]:
        """Reasons why values were refused, one after the other set; empty where accepted."""
        parameters = [Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
        results = self.call(SetParameters, "set_parameters", SetParameters.Request(parameters=parameters)).results
        return [result.reason for result in results if not result.successful]

    def set_together(self, **values: Any) -> str:
        parameters = [Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
        request = SetParametersAtomically.Request(parameters=parameters)
        result = self.call(SetParametersAtomically, "set_parameters_atomically", request).result
        return "" if result.successful else result.reason

    def send(self, stamp_s: float | None = None) -> None:
        stamp_s = time.time() if stamp_s is None else stamp_s
        sample = OdometrySample(stamp_s, 0.0, 0.0, 0.0, (5.0, 0.0), 0.0)
        self._odometry.publish(cv.odometry_message(sample))
        for name, publisher in self._images.items():
            message = fill_compressed(CompressedImage(), cv.header(stamp_s, name), GREY)
            publisher.publish(message)

    def plans(self) -> list[Trajectory]:
        return [m for m in self.trajectories if m.status == Trajectory.STATUS_VALID]

    def memory_mb(self) -> float:
        """Resident memory of the node's process."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no VmRSS")

    def end(self, *signals: signal.Signals) -> int:
        """Send the signals, one right after the other, and return the exit code."""
        for number in signals:
            self.process.send_signal(number)
        code = self.process.wait(self.limit_s)
        self._reader.join()
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
