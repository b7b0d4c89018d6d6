"""Further messages about plans: a stop trajectory, candidates, and a trajectory message read back. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wamdiff2.msg import Candidate, Candidates, Trajectory
from wamdiff2_core.scene import Plan
from wamdiff2_core.trajectory import Trajectory as SmoothTrajectory
from wamdiff2_ros.conversions import BASE_FRAME, TEXT_LIMIT, Stamp, header, trajectory_points


def stop_trajectory(smooth: SmoothTrajectory, stamp: Stamp, instruction: str, why: str) -> Trajectory:
    """Braking from `stamp` on because there is no young plan; no plan of the model."""
    return Trajectory(
        header=header(stamp, BASE_FRAME),
        points=trajectory_points(smooth),
        status=Trajectory.STATUS_STOP,
        instruction=instruction,
        text=why[:TEXT_LIMIT],
    )


def smooth_of(message: Trajectory) -> SmoothTrajectory | None:
    """The points of a message that may be driven as planned (STATUS_VALID), None if they are no trajectory."""
    if message.status != Trajectory.STATUS_VALID or len(message.points) < 2:
        return None
    names = ("time_from_start_s", "x_m", "y_m", "heading_rad", "speed_mps", "acceleration_mps2", "curvature_1pm")
    rows = [np.array([getattr(point, name) for point in message.points], dtype=float) for name in names]
    if not np.isfinite(rows).all() or (np.diff(rows[0]) <= 0.0).any() or rows[4].min() < 0.0:
        return None
    return SmoothTrajectory(*rows)


def candidates_message(plans: Sequence[Plan], withheld: int, temperature: float, stamp: Stamp) -> Candidates:
    """Plans drawn at random, in the order given; `withheld`: how many more were drawn that are no plan."""
    message = Candidates(header=header(stamp, BASE_FRAME), temperature=float(temperature))
    message.asked, message.withheld = len(plans) + int(withheld), int(withheld)
    message.candidates = [
        Candidate(
            x_m=[float(x) for x in plan.points[:, 0]],
            y_m=[float(y) for y in plan.points[:, 1]],
            confidence=float(np.mean(plan.confidence)),
            log_likelihood=float(plan.log_likelihood),
        )
        for plan in plans
    ]
    return message
