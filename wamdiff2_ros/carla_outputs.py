"""Publishers of the CARLA bridge, under the names that carla_ros_bridge uses: /carla/<role>/..."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
from nav_msgs.msg import Odometry, Path
from rosgraph_msgs.msg import Clock as ClockMsg
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, Imu, NavSatFix
from std_msgs.msg import Float32, Int32, String

from wamdiff2_core.carla_gnss import GeoReference
from wamdiff2_core.errors import DataError
from wamdiff2_core.tasks.navigation import navigation_text
from wamdiff2_ros import carla_messages as cm
from wamdiff2_ros import conversions as cv
from wamdiff2_ros.carla_client import EgoNow
from wamdiff2_ros.carla_rig import EgoRig
from wamdiff2_ros.carla_settings import BridgeSettings
from wamdiff2_ros.carla_spawn import GNSS, IMU
from wamdiff2_ros.qos import CLOCK_OUT, LATCHED, OUTPUT, SENSOR_OUT
from wamdiff2_ros.world_messages import camera_info
from wamdiff2_sim.roads.route import Route

TEXT_PERIOD_S = 0.1  # simulated, of the instruction


class Outputs:
    """Publishes what a tick brought. Called by the bridge's loop only."""

    def __init__(self, node: Any, settings: BridgeSettings, rig: EgoRig) -> None:
        self._settings, self._rig = settings, rig
        self.refused: Counter[str] = Counter()  # measurements that no message could be made of, by sensor and reason
        self.published: Counter[str] = Counter()
        prefix = f"/carla/{settings.role_name}"
        self._odometry = node.create_publisher(Odometry, f"{prefix}/odometry", SENSOR_OUT)
        self._speed = node.create_publisher(Float32, f"{prefix}/speedometer", SENSOR_OUT)
        self._route = node.create_publisher(Path, f"{prefix}/waypoints", LATCHED)
        self._command = node.create_publisher(Int32, f"{prefix}/navigation_command", OUTPUT)
        self._instruction = node.create_publisher(String, f"{prefix}/instruction", OUTPUT)
        self._images: dict[str, Any] = {}
        self._infos: dict[str, Any] = {}
        self._texts_s = -1e9
        if settings.native:  # the server publishes the rest
            return
        kind, suffix = (CompressedImage, "/compressed") if settings.compressed else (Image, "")
        for camera in rig.cameras:
            name = camera.name
            self._images[name] = node.create_publisher(kind, f"{prefix}/{name}/image{suffix}", SENSOR_OUT)
            self._infos[name] = node.create_publisher(CameraInfo, f"{prefix}/{name}/camera_info", SENSOR_OUT)
        self._imu = node.create_publisher(Imu, f"{prefix}/imu", SENSOR_OUT)
        self._gnss = node.create_publisher(NavSatFix, f"{prefix}/gnss", SENSOR_OUT)
        self._clock = node.create_publisher(ClockMsg, "/clock", CLOCK_OUT)

    def ego(self, now: EgoNow) -> float:
        """Clock, odometry and speed of a tick, before its pictures. Returns the speed, negative while reversing."""
        if not self._settings.native:
            self._clock.publish(ClockMsg(clock=cv.time_message(now.stamp_s)))
        message = cm.odometry_message(now, self._rig.base_link_x_m)
        self._odometry.publish(message)
        self._speed.publish(Float32(data=message.twist.twist.linear.x))
        self.published["ticks"] += 1
        return float(message.twist.twist.linear.x)

    def sensors(self, found: dict[str, Any], reference: GeoReference | None, stamp_s: float | None = None) -> None:
        """Messages of measurements by sensor name; stamped with their own times (None) or with that of the tick."""
        for name, measurement in found.items():
            at_s = float(measurement.timestamp) if stamp_s is None else stamp_s
            try:
                self._sensor(name, measurement, at_s, reference)
                self.published[name] += 1
            except DataError as error:
                self.refused[f"{name}: {error}"] += 1

    def route(self, route: Route, stamp_s: float) -> None:
        """The whole route, once; listeners that come later get it too."""
        self._texts_s = -1e9
        self._route.publish(cm.path_message(route.points, stamp_s))

    def navigation(self, route: Route, progress_m: float, stamp_s: float) -> None:
        """The command of the next manoeuvre as the leaderboard's number, and in words."""
        if self._texts_s <= stamp_s < self._texts_s + TEXT_PERIOD_S - 1e-6:
            return
        self._texts_s = stamp_s
        command, distance_m = route.command_at(progress_m)
        self._command.publish(Int32(data=cm.ROAD_OPTIONS[command]))
        self._instruction.publish(String(data=navigation_text(command, distance_m)))

    def _sensor(self, name: str, measurement: Any, stamp_s: float, reference: GeoReference | None) -> None:
        if name == IMU:
            self._imu.publish(cm.imu_message(measurement, stamp_s))
        elif name == GNSS:
            self._gnss.publish(cm.gnss_message(measurement, stamp_s, reference))
        else:
            header = cv.header(stamp_s, cv.optical_frame(name))
            settings = self._settings
            picture = cm.image_message(measurement, header, settings.compressed, settings.jpeg_quality)
            self._images[name].publish(picture)
            camera = next(camera for camera in self._rig.cameras if camera.name == name)
            self._infos[name].publish(camera_info(camera, header))


class Progress:
    """How far along a route the car is; the route may be replaced."""

    def __init__(self) -> None:
        self.route: Route | None = None
        self._s = 0.0

    def start(self, route: Route) -> None:
        self.route, self._s = route, 0.0

    def at(self, x: float, y: float) -> float:
        """Metres along the route of a place in the map frame; 0 without a route."""
        if self.route is None:
            return 0.0
        self._s = self.route.project(np.array([x, y]), self._s)[0]
        return self._s


class Pace:
    """Holds ticks of ours to real time; never hurries to make up for a slow one."""

    def __init__(self, step_s: float) -> None:
        self._step_s, self._next_s = step_s, time.monotonic()

    def left_s(self) -> float:
        """Seconds until the next tick is due."""
        now_s = time.monotonic()
        self._next_s = max(self._next_s + self._step_s, now_s)
        return self._next_s - now_s
