"""The controller that Bench2Drive's published agents share: two PID loops over the waypoints of a plan.

Its numbers are those of Bench2DriveZoo's `team_code/pid_controller.py` with default arguments (the controller is older:
LBC, TransFuser and TCP drive with it); test/golden/bench2drive/pid.json holds outputs of the original. Kept exactly as
it is, weaknesses included, so that a leaderboard run can be compared with published ones. `control.Follower` is ours.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wamdiff2_core.control import VehicleControl
from wamdiff2_core.errors import ConfigError, DataError

SLACK_BRAKE = 0.05  # a brake below this is none


@dataclass(frozen=True)
class PidGains:
    """Gains of one loop, and the number of errors that its integral is the mean of."""

    proportional: float
    integral: float
    derivative: float
    window: int = 40


class Pid:
    """P of the newest error, I of the mean of the last `window` errors (zeros at first), D of the last difference."""

    def __init__(self, gains: PidGains) -> None:
        self.gains = gains
        self.reset()

    def reset(self) -> None:
        """Forget all errors."""
        self._errors = deque([0.0] * self.gains.window, maxlen=self.gains.window)

    def step(self, error: float) -> float:
        """Take the next error, return the loop's output."""
        last = self._errors[-1]
        self._errors.append(error)
        mean = sum(self._errors) / self.gains.window
        gains = self.gains
        return gains.proportional * error + gains.integral * mean + gains.derivative * (error - last)


@dataclass(frozen=True)
class WaypointPidConfig:
    """Gains and thresholds; the defaults are the published ones. Angles count in right angles (1.0 = 90 degrees)."""

    turn: PidGains = PidGains(0.75, 0.75, 0.3)
    speed: PidGains = PidGains(5.0, 0.5, 1.0)
    step_s: float = 0.5  # between two waypoints
    points: int = 6  # waypoints of a plan that `control` looks at
    aim_m: float = 4.0
    brake_speed_mps: float = 0.4
    brake_ratio: float = 1.1
    most_speed_error_mps: float = 0.25
    most_throttle: float = 0.75
    turn_angle: float = 0.3  # target and plan's end differ by more: a turn is near ...
    turn_m: float = 10.0  # ... if the target is nearer than this

    def __post_init__(self) -> None:
        if self.points < 2 or self.turn.window < 1 or self.speed.window < 1:
            raise ConfigError(f"waypoint PID: expected points >= 2 and windows >= 1, got {self}")
        if not self.step_s > 0.0:
            raise ConfigError(f"waypoint PID: expected step_s > 0, got {self.step_s}")


class PidStep(NamedTuple):
    """Everything a step decided, under the names of the golden file. steer: RIGHT positive, as in CARLA."""

    steer: float
    throttle: float
    brake: bool
    desired_speed: float
    aim: tuple[float, float]
    angle: float
    angle_last: float
    angle_target: float
    angle_final: float
    delta: float


class WaypointPid:
    """Keeps the errors of both loops between steps; one object per route."""

    def __init__(self, config: WaypointPidConfig | None = None) -> None:
        self.config = config or WaypointPidConfig()
        self._turn, self._speed = Pid(self.config.turn), Pid(self.config.speed)

    def reset(self) -> None:
        """Forget the past: a new route begins."""
        self._turn.reset()
        self._speed.reset()

    def control(self, points: np.ndarray, speed_mps: float, target: tuple[float, float]) -> VehicleControl:
        """Controls for a plan as our nodes hold it, with the pedals set as the published agents set them.

        points: (N >= 2, 2) m in base_link NOW (x forward, y left), `step_s` apart; the first `points` count.
        target: the next route point (m), same frame. DataError like `step`.
        """
        ahead = np.asarray(points, dtype=np.float64)
        if ahead.ndim != 2 or ahead.shape[1] != 2:
            raise DataError(f"waypoints: expected shape (N, 2), got {ahead.shape}")
        made = self.step(to_right_forward(ahead[: self.config.points]), speed_mps, (-target[1], target[0]))
        throttle, brake = pedals(made.throttle, float(made.brake))
        return VehicleControl(steer=-made.steer, throttle=throttle, brake=brake)

    def step(self, waypoints: np.ndarray, speed_mps: float, target: tuple[float, float]) -> PidStep:
        """One tick. waypoints (N >= 2, 2) and target in m, x RIGHT and y FORWARD; the speed in m/s.

        DataError for another shape or a number that is not finite; both loops are then as they were.
        """
        points, goal = _checked(waypoints, speed_mps, target)
        config = self.config
        steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
        desired = float(steps.mean() / config.step_s)
        aim = _aim(points, config.aim_m)
        angle, last, at_target = _angle(aim), _angle(points[-1] - points[-2]), _angle(goal)
        final = at_target if self._prefers_target(angle, last, at_target, goal[1]) else angle
        steer = float(np.clip(self._turn.step(final), -1.0, 1.0))
        brake = desired < config.brake_speed_mps or speed_mps / desired > config.brake_ratio
        delta = float(np.clip(desired - speed_mps, 0.0, config.most_speed_error_mps))
        throttle = float(np.clip(self._speed.step(delta), 0.0, config.most_throttle))  # the loop moves on while braking
        return PidStep(
            steer, 0.0 if brake else throttle, brake, desired, (float(aim[0]), float(aim[1])), angle, last, at_target,
            final, delta,
        )  # fmt: skip

    def _prefers_target(self, angle: float, last: float, target: float, target_forward_m: float) -> bool:
        """The route decides where it asks for less steering, or where a turn is near that the plan does not make."""
        turning = abs(target - last) > self.config.turn_angle and target_forward_m < self.config.turn_m
        return abs(target) < abs(angle) or turning


def pedals(throttle: float, brake: float, most_throttle: float = 0.75) -> tuple[float, float]:
    """Throttle and brake as the agents send them: no slight braking, never both, throttle limited."""
    if brake < SLACK_BRAKE or throttle > brake:
        brake = 0.0
    return min(throttle, most_throttle), brake


def to_right_forward(points: np.ndarray) -> np.ndarray:
    """Points (N, 2) of base_link (x forward, y left) as x right, y forward."""
    return np.column_stack([-points[:, 1], points[:, 0]])


def _aim(points: np.ndarray, distance_m: float) -> np.ndarray:
    """The waypoint before the pair whose midpoint is nearest to `distance_m` away; the first of equals."""
    middles = np.linalg.norm((points[1:] + points[:-1]) / 2.0, axis=1)
    return points[int(np.argmin(np.abs(distance_m - middles)))]


def _angle(point: np.ndarray) -> float:
    """Angle of a point (x right, y forward) from straight ahead, right positive, in right angles."""
    return (90.0 - math.degrees(math.atan2(point[1], point[0]))) / 90.0


def _checked(waypoints: np.ndarray, speed_mps: float, target: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    points, goal = np.asarray(waypoints, dtype=np.float64), np.asarray(target, dtype=np.float64)
    if points.ndim != 2 or points.shape[0] < 2 or points.shape[1] != 2 or goal.shape != (2,):
        raise DataError(f"waypoint PID: expected (N >= 2, 2) and (2,), got {points.shape} and {goal.shape}")
    if not (np.isfinite(points).all() and np.isfinite(goal).all() and math.isfinite(speed_mps)):
        raise DataError("waypoint PID: expected finite waypoints, speed and target")
    return points, goal
