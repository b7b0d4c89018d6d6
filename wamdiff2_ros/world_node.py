"""The embedded driving world as a node: cameras, odometry, instruction, questions, truth and /clock; control in.

Runs at a fixed rate in real time (or as fast as the machine can, if that is slower: the clock then runs slow too).
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import numpy as np
from nav_msgs.msg import Odometry, Path
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rosgraph_msgs.msg import Clock as ClockMsg
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from std_msgs.msg import String

from wamdiff2.msg import Boxes, DriveStatus
from wamdiff2.msg import VehicleControl as VehicleControlMsg
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.rig import load_rig
from wamdiff2_ros import conversions as cv
from wamdiff2_ros import world_messages as wm
from wamdiff2_ros.images import fill_compressed, fill_raw
from wamdiff2_ros.process import NodeFailed, run_node
from wamdiff2_ros.qos import CLOCK_OUT, CONTROL, LATCHED, OUTPUT, SENSOR_OUT
from wamdiff2_sim.types import VehicleControl
from wamdiff2_sim.world import World

CLOCK_START_S = 1.0  # a clock that shows zero counts as not started
SILENCE_S = 0.5  # control older than this is not applied any more
FULL_BRAKE = VehicleControl(brake=1.0)
NOBODY = "nobody"
SETTLE_S = 1.0  # a node that listens to one topic will have found the others by then
FAREWELL_S = 0.5  # time for the last status to arrive


class WorldNode(Node):
    """Parameters: see _Parameters. Topics: /world/... (contract in docs/messages.md)."""

    def __init__(self, **node_options: Any) -> None:
        super().__init__("world", **node_options)
        self.finished = threading.Event()
        self._p = p = _Parameters(self)
        self._cameras = {camera.name: camera for camera in load_rig(p.rig)}
        rig = tuple(self._cameras.values())
        self._world = World(p.map, p.seed, rig, traffic=(p.cars, p.walkers), route_m=(p.route_min_m, p.route_max_m))
        self._world.render()  # makes the scenery now, not in the first step
        self._rng = np.random.default_rng([p.seed, 77])
        self._steps = 0
        self._started = p.wait_for == (NOBODY,)
        self._made_s = self._missing_s = self._began_s = time.monotonic()
        self._control: VehicleControl = FULL_BRAKE
        self._control_received_s = -1e9
        self._silent = True
        self._question = self._truth = ""
        self._next_question_s = 0.0
        self._done_s: float | None = None
        self._make_publishers()
        self.create_subscription(VehicleControlMsg, "/world/control", self._control_arrived, CONTROL)
        self.create_timer(p.step_s, self._tick, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _make_publishers(self) -> None:
        kind, suffix = (CompressedImage, "/compressed") if self._p.compressed else (Image, "")
        self._images = {
            name: self.create_publisher(kind, f"/world/{name}/image{suffix}", SENSOR_OUT) for name in self._cameras
        }
        self._infos = {
            name: self.create_publisher(CameraInfo, f"/world/{name}/camera_info", SENSOR_OUT) for name in self._cameras
        }
        self._clock = self.create_publisher(ClockMsg, "/clock", CLOCK_OUT)
        self._odometry = self.create_publisher(Odometry, "/world/odometry", SENSOR_OUT)
        self._instruction = self.create_publisher(String, "/world/instruction", LATCHED)
        self._questions = self.create_publisher(String, "/world/question", LATCHED)
        self._boxes = self.create_publisher(Boxes, "/world/ground_truth/boxes", SENSOR_OUT)
        self._status = self.create_publisher(DriveStatus, "/world/status", OUTPUT)
        self._route = self.create_publisher(Path, "/world/route", LATCHED)

    @property
    def now_s(self) -> float:
        """Simulated time as the clock shows it."""
        return CLOCK_START_S + self._world.state.time

    def _control_arrived(self, message: VehicleControlMsg) -> None:
        self._control = VehicleControl(
            message.steer, message.throttle, message.brake, message.reverse, message.hand_brake
        )
        self._control_received_s = time.monotonic()

    def _tick(self) -> None:
        if self._done_s is not None:
            if time.monotonic() - self._done_s > FAREWELL_S:
                self.finished.set()
            return
        if not self._started and not self._all_listen():
            return
        self._silent = time.monotonic() - self._control_received_s > SILENCE_S
        self._world.step(FULL_BRAKE if self._silent else self._control, self._p.step_s)
        self._steps += 1
        if self._steps == 1:
            self._route.publish(wm.route_message(self._world, self.now_s))
        self._publish()
        if self._world.done or self._world.state.time >= self._p.seconds > 0.0:
            self._finish()

    def _all_listen(self) -> bool:
        """True once every awaited node has listened to the odometry for a moment: their first input is the drive's."""
        topic = self._odometry.topic_name
        missing = set(self._p.wait_for) - {end.node_name for end in self.get_subscriptions_info_by_topic(topic)}
        now_s = self._began_s = time.monotonic()
        if missing:
            self._missing_s = now_s
            if now_s - self._made_s > self._p.wait_limit_s:
                names = ", ".join(sorted(missing))
                raise NodeFailed(f"{names} not listening to {topic} after {self._p.wait_limit_s:.0f} s")
        self._started = now_s - self._missing_s > SETTLE_S
        return self._started

    def _publish(self) -> None:
        p, stamp_s = self._p, self.now_s
        self._clock.publish(ClockMsg(clock=cv.time_message(stamp_s)))
        self._odometry.publish(cv.odometry_message(wm.odometry_sample(self._world.state, stamp_s)))
        if p.due(self._steps, p.image_rate_hz):
            self._publish_texts()
            self._publish_images(stamp_s)
            self._publish_status(done=False)
        if p.due(self._steps, p.boxes_rate_hz):
            self._boxes.publish(wm.truth_message(self._world.boxes(p.front), stamp_s, self._cameras[p.front]))

    def _publish_texts(self) -> None:
        self._instruction.publish(String(data=self._world.instruction))
        period_s = self._p.question_period_s
        if period_s > 0.0 and self._world.state.time >= self._next_question_s:
            self._next_question_s += period_s
            self._question, self._truth = self._world.question(self._rng)
            self._questions.publish(String(data=self._question))
        else:
            self._truth = ""  # the answer was right for the moment of asking only

    def _publish_images(self, stamp_s: float) -> None:
        for name, picture in self._world.render().items():
            header = cv.header(stamp_s, cv.optical_frame(name))
            if self._p.compressed:
                message = fill_compressed(CompressedImage(), header, picture, self._p.jpeg_quality)
            else:
                message = fill_raw(Image(), header, picture)
            self._images[name].publish(message)
            self._infos[name].publish(wm.camera_info(self._cameras[name], header))

    def _publish_status(self, done: bool) -> None:
        message = wm.status_message(self._world, self.now_s)
        message.map_name, message.seed = self._p.map, self._p.seed
        message.question, message.true_answer = self._question, self._truth
        message.braking_for_silence, message.done = self._silent, done
        self._status.publish(message)

    def _finish(self) -> None:
        self._publish_status(done=True)
        self._done_s = time.monotonic()
        score = self._world.score
        self.get_logger().info(
            f"drive over ({self._world.end_reason or 'time is up'}) after {self._world.state.time:.1f} s: "
            f"{score.route_completion:.0%} of the route, {score.collisions} collisions, {score.red_lights} red lights, "
            f"{(time.monotonic() - self._began_s) / max(self._world.state.time, 1e-6):.2f} s of real time per second"
        )


class _Parameters:
    """The node's parameters, read once at start."""

    def __init__(self, node: Node) -> None:
        def read(name: str, default: Any) -> Any:
            return node.declare_parameter(name, default).value

        self.map = str(read("map", "Town01"))
        self.seed = int(read("seed", 0))
        self.rig = str(read("rig", ""))
        self.seconds = float(read("seconds", 60.0))  # simulated; 0: until the route ends
        self.step_s = float(read("step_s", 0.05))
        if not 0.0 < self.step_s <= 0.1:
            raise ConfigError(f"step_s: expected above 0 and at most 0.1, got {self.step_s}")
        self.image_rate_hz = float(read("image_rate_hz", 10.0))
        self.boxes_rate_hz = float(read("boxes_rate_hz", 2.0))  # 0: never
        self.question_period_s = float(read("question_period_s", 4.0))  # 0: no questions
        self.cars = int(read("cars", 25))
        self.walkers = int(read("walkers", 12))
        self.route_min_m = float(read("route_min_m", 300.0))
        self.route_max_m = float(read("route_max_m", 700.0))
        self.compressed = bool(read("compressed", True))
        self.jpeg_quality = int(read("jpeg_quality", 90))
        self.wait_for = tuple(read("wait_for", ["wamdiff2"]))  # [nobody]: start at once
        self.wait_limit_s = float(read("wait_limit_s", 120.0))
        self.front = str(read("front_camera", "cam_front"))

    def due(self, step: int, rate_hz: float) -> bool:
        """Whether something at that rate (0: never) happens after `step` (the first is 1)."""
        return rate_hz > 0.0 and (step - 1) % max(1, round(1.0 / (rate_hz * self.step_s))) == 0


def main(args: list[str] | None = None) -> int:
    return run_node(WorldNode, args)


if __name__ == "__main__":
    sys.exit(main())
