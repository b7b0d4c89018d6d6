"""States beside the good line: off the lane's middle, askew, too slow, too fast, standing. Closed-loop recovery is
learnt from them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from wamdiff2_sim.expert import ExpertPlan
from wamdiff2_sim.route_profile import RouteProfile
from wamdiff2_sim.types import EGO_FRONT_M, EGO_LENGTH_M, EGO_WIDTH_M, Pose, WorldState

LATERAL_SIGMA_M, LATERAL_MAX_M = 0.7, 1.6
YAW_SIGMA, YAW_MAX = 0.09, 0.22
FAR_SHARE, FAR_FACTOR = 0.12, 2.0  # some states are far off the line, so that larger errors are recovered from, too
FARTHEST_RIGHT_M = 2.4  # kerbs and poles begin there
HARD_BRAKING = 4.5  # m/s^2, a drawn speed still allows to stop with this
CLEARANCE_M = 0.35


def perturbed(
    state: WorldState, plan: ExpertPlan, profile: RouteProfile, s: float, rng: np.random.Generator
) -> WorldState:
    """A state near `state`: pose beside the route at about the same place, speed mostly independent of the situation.

    The acceleration told is not that of the label: a model must not learn to continue what it is told.
    """
    for _ in range(6):
        pose = _pose(state, profile, s, rng)
        speed = _speed(state, plan, profile, s, rng)
        candidate = replace(
            state, ego=pose, speed=speed, acceleration=_acceleration(speed, rng), yaw_rate=0.0, steer=0.0
        )
        if not touches(candidate):
            return candidate
    return replace(state, speed=_speed(state, plan, profile, s, rng))


def _pose(state: WorldState, profile: RouteProfile, s: float, rng: np.random.Generator) -> Pose:
    """Where the route is, moved sideways and turned; the place along the route is kept."""
    heading = profile.at(profile.heading, s)
    factor = FAR_FACTOR if rng.random() < FAR_SHARE else 1.0
    offset = factor * float(np.clip(rng.normal(0.0, LATERAL_SIGMA_M), -LATERAL_MAX_M, LATERAL_MAX_M))
    offset = max(offset, -FARTHEST_RIGHT_M)
    turn = factor * float(np.clip(rng.normal(0.0, YAW_SIGMA), -YAW_MAX, YAW_MAX))
    _, now = profile.project(state.ego.x, state.ego.y, s)
    shift = offset - now
    return Pose(state.ego.x - shift * math.sin(heading), state.ego.y + shift * math.cos(heading), state.ego.z,
                math.remainder(heading + turn, math.tau))  # fmt: skip


def _speed(state: WorldState, plan: ExpertPlan, profile: RouteProfile, s: float, rng: np.random.Generator) -> float:
    kind = rng.random()
    road = profile.at(profile.speed, s)
    if kind < 0.35:
        speed = state.speed
    elif kind < 0.55:
        speed = 0.0
    elif kind < 0.85:
        speed = float(rng.uniform(0.0, 1.2 * road))
    else:
        speed = state.speed + float(rng.normal(0.0, 1.5))
    return float(min(max(speed, 0.0), _fastest(plan, s + EGO_FRONT_M), 1.35 * road))


def _fastest(plan: ExpertPlan, front: float) -> float:
    """Speed (m/s) from which every present obstacle can still be respected."""
    fastest = 40.0
    for obstacle in plan.obstacles:
        for step in (0, 10, 20, 30):
            gap = obstacle.s[step] - front
            if math.isfinite(gap):
                fastest = min(fastest, math.sqrt(obstacle.v[step] ** 2 + 2.0 * HARD_BRAKING * max(gap, 0.0)) + 0.3)
    return fastest


def _acceleration(speed: float, rng: np.random.Generator) -> float:
    if rng.random() < 0.3:
        return 0.0
    return float(np.clip(rng.normal(0.0, 1.3), -4.0 if speed > 0.5 else 0.0, 2.5))


def touches(state: WorldState) -> bool:
    """Does the ego's box overlap (or nearly touch) another road user's?"""
    ego = state.ego.ahead(EGO_LENGTH_M / 2.0 - (EGO_LENGTH_M - EGO_FRONT_M))
    for actor in state.actors:
        dx, dy = actor.x - ego.x, actor.y - ego.y
        if math.hypot(dx, dy) > 0.5 * (EGO_LENGTH_M + actor.length) + 1.0:
            continue
        turn = actor.yaw - ego.yaw
        c, n = abs(math.cos(turn)), abs(math.sin(turn))
        along = dx * math.cos(ego.yaw) + dy * math.sin(ego.yaw)
        lateral = -dx * math.sin(ego.yaw) + dy * math.cos(ego.yaw)
        reach_x = 0.5 * (EGO_LENGTH_M + actor.length * c + actor.width * n) + CLEARANCE_M
        reach_y = 0.5 * (EGO_WIDTH_M + actor.length * n + actor.width * c) + CLEARANCE_M
        if abs(along) < reach_x and abs(lateral) < reach_y:
            return True
    return False
