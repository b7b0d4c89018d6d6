"""The speed law of the expert: brisk starts, comfortable braking, gaps like a calm human driver's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from wamdiff2_sim.route_profile import STEP_M, RouteProfile

DT_S = 0.1
ROLLOUT_STEPS = 80  # of DT_S that an obstacle's future covers
COMFORT = 2.0  # m/s^2, braking that is planned
HARDEST = 6.0  # m/s^2
START = 1.9  # m/s^2 from standstill
JERK_UP, JERK_DOWN = 3.0, 8.0  # m/s^3
SPEED_LAG_S = 0.7
STANDSTILL = 0.15  # m/s
FAR_M = 120.0


@dataclass(frozen=True)
class Obstacle:
    """Where the front bumper must not pass: arc length `s` (m) and speed `v` (m/s) of that place for each DT_S.

    `s` is infinite at times when there is nothing. `headway` s: 0.4 for places, about 1.1 behind moving cars.
    """

    reason: str
    actor_id: int
    s: Sequence[float]
    v: Sequence[float]
    headway: float


def standing(reason: str, actor_id: int, s: float) -> Obstacle:
    """A place to stop at for as long as the rollout lasts."""
    return Obstacle(reason, actor_id, [s] * (ROLLOUT_STEPS + 1), [0.0] * (ROLLOUT_STEPS + 1), 0.4)


def follow_acceleration(gap: float, speed: float, ahead: float, headway: float) -> float:
    """Acceleration (m/s^2) that keeps a stop possible: `gap` m to a place that moves on with `ahead` m/s."""
    if gap <= 0.05:
        allowed = ahead + gap
    else:
        reach = COMFORT * headway
        allowed = math.sqrt(reach * reach + 2.0 * COMFORT * gap + ahead * ahead) - reach
        if ahead < STANDSTILL and gap < 0.6:
            allowed = min(allowed, speed * gap)  # settle instead of creeping for the last decimetres
    wanted = max((max(allowed, 0.0) - speed) / SPEED_LAG_S, -COMFORT * 1.3)
    if speed > ahead:
        needed = (speed * speed - ahead * ahead) / (2.0 * max(gap, 0.3))
        if needed > COMFORT * 1.1:
            wanted = min(wanted, -min(needed * 1.1, HARDEST))
    return wanted


def free_acceleration(speed: float, target: float) -> float:
    """Acceleration (m/s^2) on an empty road towards `target` m/s."""
    strongest = START if speed < 6.0 else max(0.8, START - 0.1 * (speed - 6.0))
    return max(min((target - speed) / SPEED_LAG_S, strongest), -2.5)


def choose(step: int, front: float, speed: float, free: float, obstacles: Sequence[Obstacle]) -> tuple[float, int]:
    """Acceleration at rollout step `step` with the bumper at `front`; index of the obstacle that decides, -1 for
    none.
    """
    best, index = free, -1
    for i, obstacle in enumerate(obstacles):
        gap = obstacle.s[step] - front
        if gap > FAR_M:
            continue
        wanted = follow_acceleration(gap, speed, obstacle.v[step], obstacle.headway)
        if wanted < best:
            best, index = wanted, i
    return best, index


def target_speed(profile: RouteProfile, s: float, speed: float) -> float:
    """Speed (m/s) that the road allows, looking a little ahead so that braking begins in time."""
    allowed = profile.lists[4]
    last = len(allowed) - 1
    here = min(max(int(s / STEP_M), 0), last)
    ahead = min(max(int((s + 0.6 * speed) / STEP_M), 0), last)
    return min(allowed[here], allowed[ahead])


def limit_jerk(wanted: float, last: float | None) -> float:
    """`wanted` acceleration within the jerk limits after `last`; emergency braking passes at once."""
    if last is None or wanted < -3.5:
        return wanted
    return min(max(wanted, last - JERK_DOWN * DT_S), last + JERK_UP * DT_S)


def arrival_times(profile: RouteProfile, front: float, bumper: float, speed: float,
                  obstacles: Sequence[Obstacle]) -> list[float]:  # fmt: skip
    """Front bumper positions (m) at each DT_S over `ROLLOUT_STEPS`, driving on as the obstacles allow."""
    out = [front]
    last: float | None = None
    for step in range(ROLLOUT_STEPS):
        free = free_acceleration(speed, target_speed(profile, front - bumper, speed))
        last = limit_jerk(choose(step, front, speed, free, obstacles)[0], last)
        following = max(0.0, speed + last * DT_S)
        front += 0.5 * (speed + following) * DT_S
        speed = following
        out.append(front)
    return out
