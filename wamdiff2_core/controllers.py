"""One way to drive a plan with either controller: our follower, or the waypoint PID of Bench2Drive's published agents.

Selected by name in the follower node, the leaderboard's agent and the CARLA bridge's launch file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from wamdiff2_core.carla_frames import CARLA_WHEEL_DEG
from wamdiff2_core.control import Follower, FollowerConfig, HasPose, VehicleControl
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.scene import PLAN_STEP_S
from wamdiff2_core.trajectory import Trajectory, TrajectoryLimits, smooth_trajectory
from wamdiff2_core.waypoint_pid import WaypointPid, WaypointPidConfig

FOLLOWER, WAYPOINT_PID = "follower", "waypoint_pid"
CONTROLLERS = (FOLLOWER, WAYPOINT_PID)


@dataclass(frozen=True, eq=False)
class HeldPlan:
    """A plan while it is driven. points: (N, 2) m, 0.5 s apart, the first 0.5 s after `time_s`, in the frame of `pose`.

    pose: base_link in a fixed frame at `time_s` (s), moving at `speed_mps`. trajectory: the plan smoothed, in the same
    frame, where that is known already.
    """

    points: np.ndarray
    pose: HasPose
    time_s: float
    speed_mps: float
    trajectory: Trajectory | None = None


class PlanController(Protocol):
    """Steering and pedals for now. Objects keep a state: one for each drive, `reset` when another drive begins."""

    def control(
        self,
        plan: HeldPlan,
        pose: HasPose,
        time_s: float,
        speed_mps: float,
        target: tuple[float, float] | None = None,
        dt: float = 0.05,
    ) -> VehicleControl:
        """pose, time_s, speed_mps: of now, in the frame and on the clock of the plan; dt: seconds since the last call.

        target: the next route point in base_link of now (m), x forward, y left; None: the plan's end.
        """

    def reset(self) -> None: ...


def make_controller(
    name: str,
    full_steer_rad: float = 0.6,
    follower: FollowerConfig | None = None,
    limits: TrajectoryLimits | None = None,
) -> PlanController:
    """A controller by name (CONTROLLERS). full_steer_rad: the wheel angle that its steer 1 shall mean.

    0, waypoint PID only: steer as published, a share of whatever full lock the car has (70 degrees for CARLA's).
    """
    if not (math.isfinite(full_steer_rad) and full_steer_rad >= 0.0):
        raise ConfigError(f"full_steer_rad: expected a number >= 0, got {full_steer_rad}")
    if name == FOLLOWER:
        if full_steer_rad == 0.0:
            raise ConfigError(f"full_steer_rad: expected a number > 0 for the controller {name!r}")
        return PlanFollower(replace(follower or FollowerConfig(), max_steer_rad=full_steer_rad), limits)
    if name == WAYPOINT_PID:
        return PlanPid(math.radians(CARLA_WHEEL_DEG) / full_steer_rad if full_steer_rad > 0.0 else 1.0)
    raise ConfigError(f"controller: expected one of {', '.join(CONTROLLERS)}, got {name!r}")


class PlanFollower:
    """Our follower; a plan is smoothed once."""

    def __init__(self, config: FollowerConfig | None = None, limits: TrajectoryLimits | None = None) -> None:
        self._follower = Follower(config, limits)
        self._of: HeldPlan | None = None
        self._smooth: Trajectory | None = None

    def reset(self) -> None:
        """Forget the past."""
        self._follower.reset()
        self._of = self._smooth = None

    def control(
        self,
        plan: HeldPlan,
        pose: HasPose,
        time_s: float,
        speed_mps: float,
        target: tuple[float, float] | None = None,
        dt: float = 0.05,
    ) -> VehicleControl:
        """As PlanController says; the plan knows the way, `target` is not looked at."""
        if plan is not self._of or self._smooth is None:
            limits = self._follower.limits
            self._of = plan
            self._smooth = plan.trajectory or smooth_trajectory(plan.points, plan.speed_mps, limits)
        return self._follower.control(self._smooth, plan.pose, pose, speed_mps, dt)


class PlanPid:
    """The waypoint PID; of a plan that has grown old it gets the places that are still ahead."""

    def __init__(self, gain: float = 1.0) -> None:
        """gain: its steering is multiplied by, and limited to -1..1."""
        self._pid, self._gain = WaypointPid(), gain

    def reset(self) -> None:
        """Forget the past."""
        self._pid.reset()

    def control(
        self,
        plan: HeldPlan,
        pose: HasPose,
        time_s: float,
        speed_mps: float,
        target: tuple[float, float] | None = None,
        dt: float = 0.05,
    ) -> VehicleControl:
        """As PlanController says; it is tuned for calls 0.05 s apart, whatever `dt` says."""
        points = points_from_now(plan, pose, time_s)
        end = (float(points[-1, 0]), float(points[-1, 1]))
        made = self._pid.control(points, speed_mps, target or end)
        return replace(made, steer=float(np.clip(self._gain * made.steer, -1.0, 1.0)))


def points_from_now(
    plan: HeldPlan, pose: HasPose, time_s: float, count: int = WaypointPidConfig().points
) -> np.ndarray:
    """(count, 2) places at 0.5, 1.0, ... s from `time_s` in base_link at `pose`; behind the plan's end its last place.

    A plan of this very moment gives its own points.
    """
    times = max(0.0, time_s - plan.time_s) + PLAN_STEP_S * np.arange(1, count + 1)
    known = PLAN_STEP_S * np.arange(len(plan.points) + 1)
    path = np.vstack([np.zeros((1, 2)), plan.points])
    places = np.column_stack([np.interp(times, known, path[:, axis]) for axis in (0, 1)])
    return _moved(places, plan.pose, pose)


def _moved(points: np.ndarray, origin: HasPose, now: HasPose) -> np.ndarray:
    """Points (N, 2) of `origin`'s frame in the frame of `now`."""
    if (origin.x, origin.y, origin.yaw) == (now.x, now.y, now.yaw):
        return points
    turn = origin.yaw - now.yaw
    c, s = math.cos(turn), math.sin(turn)
    dx, dy = origin.x - now.x, origin.y - now.y
    shift = np.array([math.cos(now.yaw) * dx + math.sin(now.yaw) * dy, math.cos(now.yaw) * dy - math.sin(now.yaw) * dx])
    return points @ np.array([[c, s], [-s, c]]) + shift
