"""A driver node and a probe in one process and context; everything waits for a condition, never a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry, Path
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from wamdiff2.msg import Answer, Boxes, Stats, Trajectory
from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.scene import Answer as CoreAnswer
from wamdiff2_core.scene import Box, Cost, Detections, Plan, Scene
from wamdiff2_ros import conversions as cv
from wamdiff2_ros.driver_node import DriverNode
from wamdiff2_ros.images import fill_compressed
from wamdiff2_ros.odometry import OdometrySample
from wamdiff2_ros.qos import ODOMETRY_IN, OUTPUT, SENSOR_OUT

CAMERAS = ("cam_front", "cam_left")
LIMIT_S = 120.0  # against hanging only: machines differ, and are shared
PATIENT = dict.fromkeys(("max_frame_age_s", "odometry_max_age_s", "max_plan_age_s"), 10.0)  # the most there is


class FakeDriver:
    """Answers at once, straight on at the scene's speed, and remembers what it was asked with."""

    kernels, kernels_reason = "none", "nothing is computed"
    block_sizes = None

    def __init__(self) -> None:
        self.decoding = DecodingConfig()
        self.scenes: list[Scene] = []
        self.used: list[DecodingConfig] = []
        self.results: dict[str, Any] = {}
        self.error: Exception | None = None

    def get_ready(self, expected: Any) -> float:
        return 0.0

    def answer(self, scene: Scene, tasks: Sequence[str]) -> Mapping[str, Any]:
        self.scenes.append(scene)
        self.used.append(self.decoding)
        if self.error is not None:
            raise self.error
        ahead = np.column_stack([np.arange(1, 9) * 0.5 * max(scene.ego.speed, 1.0), np.zeros(8)])
        cost = Cost(forwards=4, tokens=96, decode_ms=5.0)
        answers = {
            "plan": Plan(ahead, np.full(8, 0.9), "a plan", cost),
            "detect": Detections((Box("car", (400, 400, 600, 600), 0.8),), cost=cost),
            "ask": CoreAnswer(scene.question or "", "a car.", 0.7, cost),
        }
        return {task: self.results.get(task, answers[task]) for task in tasks}


class Harness:
    """`outputs[topic]` collects what the driver node published.

    Nothing gets too old, however the machine stutters, but where a test asks for an age.
    """

    def __init__(self, autostart: bool = True, **parameters: Any) -> None:
        self.context = Context()
        rclpy.init(context=self.context)
        self.driver = FakeDriver()
        values = {"autostart": autostart, "cameras": list(CAMERAS), "overlay": False}
        values |= PATIENT | parameters
        overrides = [Parameter(name, value=value) for name, value in values.items()]
        self.node = DriverNode(lambda settings: self.driver, context=self.context, parameter_overrides=overrides)
        self.probe = Node("probe", context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.executor.add_node(self.probe)
        self.outputs: dict[str, list[Any]] = {}
        kinds = {"trajectory": Trajectory, "path": Path, "boxes": Boxes, "answer": Answer, "stats": Stats}
        for name, kind in kinds.items():
            self._listen(f"/wamdiff2/output/{name}", name, kind)
        self._listen("/diagnostics", "diagnostics", DiagnosticArray)
        self.images = {
            name: self.probe.create_publisher(CompressedImage, f"/wamdiff2/input/{name}/image/compressed", SENSOR_OUT)
            for name in CAMERAS
        }
        self.odometry = self.probe.create_publisher(Odometry, "/wamdiff2/input/odometry", ODOMETRY_IN)
        self.instruction = self.probe.create_publisher(String, "/wamdiff2/input/instruction", OUTPUT)
        self.question = self.probe.create_publisher(String, "/wamdiff2/input/question", OUTPUT)

    def close(self) -> None:
        self.node.close()
        self.executor.shutdown()
        self.node.destroy_node()
        self.probe.destroy_node()
        rclpy.shutdown(context=self.context)

    def spin_until(self, condition: Callable[[], Any], what: str, do: Callable[[], Any] = lambda: None) -> None:
        """Spin, calling `do` about every 30 ms, until the condition holds; AssertionError with `what` after LIMIT_S."""
        until_s = time.monotonic() + LIMIT_S
        next_s = 0.0
        while not condition():
            assert time.monotonic() < until_s, f"{what} did not happen within {LIMIT_S} s"
            if time.monotonic() >= next_s:
                do()
                next_s = time.monotonic() + 0.03
            self.executor.spin_once(timeout_sec=0.01)

    def wait_connected(self) -> None:
        """Until the driver node listens to every input and we to its outputs."""
        inputs = [*self.images.values(), self.odometry, self.instruction, self.question]
        self.spin_until(lambda: all(p.get_subscription_count() for p in inputs), "matching of the inputs")
        self.spin_until(lambda: self.probe.count_publishers("/wamdiff2/output/stats"), "matching of the outputs")

    def now_s(self) -> float:
        return self.node.get_clock().now().nanoseconds * 1e-9

    def send_frames(self, cameras: Sequence[str] = CAMERAS, age_s: float = 0.0, skew_s: float = 0.0) -> None:
        stamp_s = self.now_s() - age_s
        for k, name in enumerate(cameras):
            header = cv.header(stamp_s - k * skew_s, name)
            picture = np.full((48, 64, 3), 90, np.uint8)
            self.images[name].publish(fill_compressed(CompressedImage(), header, picture))

    def send_odometry(self, speed: float = 5.0) -> None:
        self.odometry.publish(cv.odometry_message(OdometrySample(self.now_s(), 0.0, 0.0, 0.0, (speed, 0.0), 0.0)))

    def send_all(self) -> None:
        self.send_odometry()
        self.send_frames()

    def valid_plans(self) -> list[Trajectory]:
        return [m for m in self.outputs["trajectory"] if m.status == Trajectory.STATUS_VALID]

    def diagnosis(self, named: str) -> str:
        """Newest diagnostic text of the status whose name ends so."""
        for array in reversed(self.outputs["diagnostics"]):
            for status in array.status:
                if status.name.endswith(named):
                    return status.message
        return ""

    def _listen(self, topic: str, name: str, kind: Any) -> None:
        self.outputs[name] = []
        self.probe.create_subscription(kind, topic, self.outputs[name].append, OUTPUT)
