"""A plan is older than its publication: its trajectory moved on to that moment, by odometry. Pure geometry."""

from __future__ import annotations

import math

import numpy as np

from wamdiff2_core.control import HasPose, Pose2D, relative_pose
from wamdiff2_core.trajectory import PERIOD_S, Trajectory
from wamdiff2_ros.odometry import OdometrySample

MOST_AHEAD_S = 0.2  # the newest odometry is carried on by its own motion for so long at most


def pose_at(newest: OdometrySample, stamp_s: float) -> Pose2D | None:
    """The pose at `stamp_s`, a little after the newest sample: velocity and yaw rate held. None if that is too far."""
    ahead_s = stamp_s - newest.stamp_s
    if not 0.0 <= ahead_s <= MOST_AHEAD_S:
        return None
    turn = newest.yaw_rate * ahead_s
    # Motion at constant twist: the velocity, turned by the mean over 0..turn.
    along = math.sin(turn) / turn if abs(turn) > 1e-9 else 1.0
    across = (1.0 - math.cos(turn)) / turn if abs(turn) > 1e-9 else 0.5 * turn
    vx, vy = newest.velocity
    dx, dy = (along * vx - across * vy) * ahead_s, (across * vx + along * vy) * ahead_s
    c, s = math.cos(newest.yaw), math.sin(newest.yaw)
    return Pose2D(newest.x + c * dx - s * dy, newest.y + s * dx + c * dy, newest.yaw + turn)


def moved_on(trajectory: Trajectory, then: HasPose, now: HasPose, seconds: float) -> Trajectory | None:
    """The rest of a trajectory, from `seconds` after its start, in base_link as it stands `now`.

    `then`: base_link at the trajectory's start, in the same fixed frame as `now`. It is the same path over the ground
    at the same times: its first point is where the plan wanted to be by now, not where the car is. None if nothing is
    left.
    """
    rest_s = float(trajectory.time_s[-1]) - seconds
    if seconds < 0.0 or rest_s < PERIOD_S:
        return None
    times = seconds + np.arange(int(rest_s / PERIOD_S + 1e-6) + 1) * PERIOD_S
    here = relative_pose(then, now)
    x, y = _positions(trajectory, times)
    c, s = math.cos(here.yaw), math.sin(here.yaw)
    dx, dy = x - here.x, y - here.y
    rows = (trajectory.heading_rad, trajectory.speed_mps, trajectory.acceleration_mps2, trajectory.curvature_1pm)
    heading, speed, acceleration, curvature = (np.interp(times, trajectory.time_s, row) for row in rows)
    return Trajectory(
        times - seconds, c * dx + s * dy, c * dy - s * dx, heading - here.yaw, speed, acceleration, curvature
    )


def _positions(trajectory: Trajectory, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Between samples by cubic Hermite pieces along the velocities: a chord would cut the bend."""
    t = trajectory.time_s
    k = np.clip(np.searchsorted(t, times, side="right") - 1, 0, len(t) - 2)
    h = t[k + 1] - t[k]
    u = (times - t[k]) / h
    ease, out, back = u * u * (3.0 - 2.0 * u), u * (1.0 - u) ** 2, u * u * (u - 1.0)
    both = []
    for row, slope in (
        (trajectory.x_m, trajectory.speed_mps * np.cos(trajectory.heading_rad)),
        (trajectory.y_m, trajectory.speed_mps * np.sin(trajectory.heading_rad)),
    ):
        both.append(row[k] + ease * (row[k + 1] - row[k]) + h * (out * slope[k] + back * slope[k + 1]))
    return both[0], both[1]
