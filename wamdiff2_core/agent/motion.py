"""How we move, from speedometer, IMU and GNSS with all their gaps: dead reckoning, and a pose on the map."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from wamdiff2_core.carla_frames import carla_to_ros_compass
from wamdiff2_core.control import Pose2D
from wamdiff2_core.scene import EgoState

GNSS_SHARE = 0.1  # of a fix's difference that is believed per tick: fixes are noisy (0.5 m), wheels are not
COMPASS_SHARE = 0.2
JUMP_M = 15.0  # a fix further away is no noise: where we are was wrong


class Motion:
    """`odometry`: pose of base_link since the start, smooth, drifting. `on_map`: pose in the ROS map frame."""

    def __init__(self) -> None:
        self.odometry = Pose2D()
        self.on_map: Pose2D | None = None
        self.speed_mps = self.yaw_rate = 0.0
        self.acceleration = (0.0, 0.0)
        self.gaps: Counter[str] = Counter()  # what was missing or not a number, and how often

    @property
    def ego(self) -> EgoState:
        """As a scene wants it."""
        return EgoState((self.speed_mps, 0.0), self.acceleration, self.yaw_rate)

    def update(
        self,
        dt: float,
        speed_mps: float | None,
        imu: Sequence[float] | None,
        place: tuple[float, float] | None,
        start_yaw: float,
    ) -> None:
        """One tick. imu: CARLA's [ax, ay, az, gx, gy, gz, compass]; place: (x, y) m of base_link, ROS map frame.

        start_yaw: rad, of the route's beginning, believed until the compass says something.
        """
        if speed_mps is None or not math.isfinite(speed_mps):
            self.gaps["speed"] += 1
        else:
            self.speed_mps = speed_mps
        compass = self._inertial(imu)
        self.odometry = _moved(self.odometry, self.speed_mps, self.yaw_rate, dt)
        if place is None:
            self.gaps["gnss"] += 1
        if self.on_map is None:
            if place is not None:
                self.on_map = Pose2D(*place, start_yaw if compass is None else compass)
            return
        guess = _moved(self.on_map, self.speed_mps, self.yaw_rate, dt)
        x, y, yaw = guess
        if place is not None:
            far = math.hypot(place[0] - x, place[1] - y) > JUMP_M
            share = 1.0 if far else GNSS_SHARE
            x, y = x + share * (place[0] - x), y + share * (place[1] - y)
        if compass is not None:
            yaw += COMPASS_SHARE * math.remainder(compass - yaw, math.tau)
        self.on_map = Pose2D(x, y, math.remainder(yaw, math.tau))

    def _inertial(self, imu: Sequence[float] | None) -> float | None:
        """Take acceleration and turn rate; returns the yaw that the compass gives, None if it gives none."""
        values = np.full(7, np.nan) if imu is None or len(imu) < 7 else np.asarray(imu[:7], dtype=np.float64)
        if np.isfinite(values[:2]).all():
            self.acceleration = (float(values[0]), -float(values[1]))
        if math.isfinite(values[5]):
            self.yaw_rate = -float(values[5])
        if not np.isfinite(values[[0, 1, 5]]).all():
            self.gaps["imu"] += 1
        compass = carla_to_ros_compass(float(values[6]))
        if compass is None:
            self.gaps["compass"] += 1
        return compass


def _moved(pose: Pose2D, speed: float, yaw_rate: float, dt: float) -> Pose2D:
    middle = pose.yaw + 0.5 * yaw_rate * dt
    return Pose2D(
        pose.x + speed * math.cos(middle) * dt,
        pose.y + speed * math.sin(middle) * dt,
        math.remainder(pose.yaw + yaw_rate * dt, math.tau),
    )
