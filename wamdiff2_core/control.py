"""Follow a trajectory: steering, throttle and brake, while the plan grows old and the vehicle moves on.

Shared by the driving world, the follower node and the CARLA bridge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.trajectory import Trajectory, TrajectoryLimits, smooth_trajectory


class HasPose(Protocol):
    """Anything with a position (m) and a heading (rad, left positive) in a fixed frame."""

    @property
    def x(self) -> float: ...

    @property
    def y(self) -> float: ...

    @property
    def yaw(self) -> float: ...


class Pose2D(NamedTuple):
    """base_link in a fixed frame: metres, radians."""

    x: float = 0.0
    y: float = 0.0
    yaw: float = 0.0


@dataclass(frozen=True)
class VehicleControl:
    """What a driver does: steer -1..1 (LEFT positive), throttle and brake 0..1."""

    steer: float = 0.0
    throttle: float = 0.0
    brake: float = 0.0
    reverse: bool = False
    hand_brake: bool = False


@dataclass(frozen=True)
class FollowerConfig:
    """The vehicle (bicycle model at the rear axle) and the controller's gains."""

    wheelbase_m: float = 2.85
    max_steer_rad: float = 0.6
    full_throttle_mps2: float = 3.5
    full_brake_mps2: float = 8.0
    delay_s: float = 0.2  # of steering and pedals: commands are those of the place we reach by then
    min_recovery_m: float = 3.0  # an error of place decays within this distance ...
    recovery_s: float = 0.6  # ... or within this time, whichever is longer
    speed_gain_per_s: float = 1.2
    speed_integral_per_s2: float = 0.3
    speed_preview_s: float = 0.4
    stop_speed_mps: float = 0.2  # no speed above this within the next second: stand still
    hold_brake: float = 0.4
    blend_mps2: float = 0.15  # below this deceleration the vehicle rolls instead of braking

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and value > 0.0):
                raise ConfigError(f"follower {name}: expected a number > 0, got {value!r}")


@dataclass(frozen=True)
class Target:
    """Where on the trajectory we are: its time there, lateral and heading error (left positive), what comes next."""

    time_s: float
    lateral_m: float
    heading_rad: float
    curvature_1pm: float
    speed_mps: float
    acceleration_mps2: float
    fastest_soon_mps: float


class Follower:
    """Keeps two numbers between calls: the integral of the speed error, and the last steering angle."""

    def __init__(self, config: FollowerConfig | None = None, limits: TrajectoryLimits | None = None) -> None:
        self.config = config or FollowerConfig()
        self.limits = limits or TrajectoryLimits()
        self.reset()

    def reset(self) -> None:
        """Forget the past: a new drive begins."""
        self._integral_mps = 0.0
        self._steer = 0.0

    def control(
        self,
        plan: Trajectory | np.ndarray,
        pose_at_plan: HasPose,
        pose_now: HasPose,
        speed_mps: float,
        dt: float = 0.05,
    ) -> VehicleControl:
        """Controls for now.

        plan: a trajectory, or plan points (8, 2), in the frame of `pose_at_plan`; points are smoothed first.
        dt: seconds since the last call.
        """
        trajectory = plan if isinstance(plan, Trajectory) else smooth_trajectory(plan, speed_mps, self.limits)
        target = locate(trajectory, relative_pose(pose_at_plan, pose_now), speed_mps, self.config)
        if target.fastest_soon_mps < self.config.stop_speed_mps and speed_mps < 1.0:
            return self._hold()
        self._steer = self._steering(target, speed_mps)
        return self._pedals(target, speed_mps, dt)

    def _hold(self) -> VehicleControl:
        self._integral_mps = 0.0
        return VehicleControl(steer=self._steer, brake=self.config.hold_brake)

    def _steering(self, target: Target, speed: float) -> float:
        """The trajectory's curvature, plus what lets lateral and heading error decay together without overshoot."""
        recovery = max(self.config.min_recovery_m, self.config.recovery_s * speed)
        correction = -target.lateral_m / recovery**2 - 2.0 * math.sin(target.heading_rad) / recovery
        angle = math.atan((target.curvature_1pm + correction) * self.config.wheelbase_m)
        return float(np.clip(angle / self.config.max_steer_rad, -1.0, 1.0))

    def _pedals(self, target: Target, speed: float, dt: float) -> VehicleControl:
        config = self.config
        # A speed-up that the plan's acceleration brings by itself must not count twice; braking early does no harm.
        expected = max(0.0, target.acceleration_mps2) * config.speed_preview_s
        error = target.speed_mps - (speed + expected)
        wanted = (
            target.acceleration_mps2
            + config.speed_gain_per_s * error
            + config.speed_integral_per_s2 * self._integral_mps
        )
        saturated = not -config.full_brake_mps2 < wanted < config.full_throttle_mps2
        if not saturated and abs(error) < 2.0:
            self._integral_mps = float(np.clip(self._integral_mps + error * dt, -2.0, 2.0))
        if wanted >= 0.0:
            return VehicleControl(steer=self._steer, throttle=min(1.0, wanted / config.full_throttle_mps2))
        braking = 0.0 if wanted > -config.blend_mps2 else -wanted / config.full_brake_mps2
        return VehicleControl(steer=self._steer, brake=min(1.0, braking))


def relative_pose(origin: HasPose, pose: HasPose) -> Pose2D:
    """`pose` in the frame of `origin`."""
    dx, dy = pose.x - origin.x, pose.y - origin.y
    c, s = math.cos(origin.yaw), math.sin(origin.yaw)
    return Pose2D(c * dx + s * dy, c * dy - s * dx, math.remainder(pose.yaw - origin.yaw, math.tau))


def locate(trajectory: Trajectory, pose: Pose2D, speed_mps: float, config: FollowerConfig) -> Target:
    """Match `pose` (frame of the trajectory) with the nearest place on the trajectory, and look ahead from there.

    The place is found in space, not in time: a vehicle that is late must not cut corners, and one that waits begins at
    the beginning. Behind the trajectory's end its last heading goes on, at no speed.
    """
    time = trajectory.time_s
    at = _nearest_time(trajectory, pose)
    x, y, heading = (
        float(np.interp(at, time, row)) for row in (trajectory.x_m, trajectory.y_m, trajectory.heading_rad)
    )
    dx, dy = pose.x - x, pose.y - y
    steer_at, speed_at = at + config.delay_s, at + config.speed_preview_s
    beyond = dx * math.cos(heading) + dy * math.sin(heading) if at >= time[-1] else 0.0
    driven_out = beyond > 0.0
    soon = trajectory.speed_mps[(time >= at - 0.05) & (time <= at + 1.05)]
    return Target(
        time_s=at,
        lateral_m=dy * math.cos(heading) - dx * math.sin(heading),
        heading_rad=math.remainder(pose.yaw - heading, math.tau),
        curvature_1pm=float(np.interp(steer_at, time, trajectory.curvature_1pm)),
        speed_mps=0.0 if driven_out else float(np.interp(speed_at, time, trajectory.speed_mps)),
        acceleration_mps2=0.0
        if driven_out
        else float(np.interp(at + config.delay_s, time, trajectory.acceleration_mps2)),
        fastest_soon_mps=0.0 if driven_out or not soon.size else float(soon.max()),
    )


def _nearest_time(trajectory: Trajectory, pose: Pose2D) -> float:
    """Time (s) of the trajectory's place nearest to `pose`; the earliest, where it stands."""
    points = trajectory.points
    start, step = points[:-1], np.diff(points, axis=0)
    length2 = np.maximum((step**2).sum(1), 1e-12)
    share = np.clip(((np.array([pose.x, pose.y]) - start) * step).sum(1) / length2, 0.0, 1.0)
    distance2 = ((start + share[:, None] * step - (pose.x, pose.y)) ** 2).sum(1)
    best = int(np.argmin(distance2))
    period = float(trajectory.time_s[1] - trajectory.time_s[0])
    return float(trajectory.time_s[best] + share[best] * period)
