"""The expert driver: what a calm human would do in the next 4 s, from any pose and speed.

A plan is a pure function of the visible state, so that any perturbed state (off the lane, askew, too fast,
standing) has a
label that recovers. The rollout is a bicycle at the rear axle, hence drivable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wamdiff2_core.scene import PLAN_POINTS, PLAN_STEP_S
from wamdiff2_sim.hazards import Hazards, Nudge
from wamdiff2_sim.longitudinal import DT_S, Obstacle, choose, free_acceleration, limit_jerk, target_speed
from wamdiff2_sim.roads.roadmap import RoadMap
from wamdiff2_sim.roads.route import Route
from wamdiff2_sim.route_profile import STEP_M, RouteProfile
from wamdiff2_sim.types import EGO_FRONT_M, EGO_WHEELBASE_M, Pose, WorldState

STEPS = int(PLAN_POINTS * PLAN_STEP_S / DT_S)
MAX_CURVATURE = math.tan(0.57) / EGO_WHEELBASE_M
MAX_LATERAL = 3.5  # m/s^2, also when coming back to the lane
MAX_CURVATURE_RATE = 0.25  # 1/(m s)


@dataclass(frozen=True)
class ExpertPlan:
    """x, y (m), yaw (rad) in the map frame, speed (m/s), acceleration (m/s^2): each (41,), 0.1 s apart from now on.

    `points` (8, 2) m in the ego frame, 0.5 s apart. `reason`: red light | car ahead | pedestrian | curve |
    yield | clear;
    `actor_id` the road user that decides, -1 for none.
    """

    x: np.ndarray
    y: np.ndarray
    yaw: np.ndarray
    speed: np.ndarray
    acceleration: np.ndarray
    points: np.ndarray
    reason: str
    actor_id: int
    obstacles: tuple[Obstacle, ...] = ()


class Expert:
    """Plans on one map. Keeps the newest route's profile; otherwise without memory."""

    def __init__(self, road_map: RoadMap) -> None:
        self._map = road_map
        self._hazards = Hazards(road_map)
        self._newest: tuple[Route, RouteProfile] | None = None

    def profile(self, route: Route) -> RouteProfile:
        """The route's arrays, made once."""
        if self._newest is None or self._newest[0] is not route:
            self._newest = (route, RouteProfile(self._map, route))
        return self._newest[1]

    def plan(self, state: WorldState, route: Route, route_s: float) -> ExpertPlan:
        """The next 4 s from `state`; `route_s` (m) is about where base_link is on the route."""
        profile = self.profile(route)
        s, _ = profile.project(state.ego.x, state.ego.y, route_s)
        obstacles, nudges = self._hazards.find(state, profile, s)
        rows, deciders = _rollout(state, profile, s, obstacles, nudges)
        table = np.array(rows)
        step = int(PLAN_STEP_S / DT_S)
        points = state.ego.to_local(table[step::step, :2])
        reason, actor_id = _reason(deciders, obstacles, profile, s, state.speed)
        x, y, yaw, speed, acceleration = table.T
        return ExpertPlan(x, y, yaw, speed, acceleration, points, reason, actor_id, tuple(obstacles))


def _rollout(
    state: WorldState, profile: RouteProfile, s: float, obstacles: list[Obstacle], nudges: list[Nudge]
) -> tuple[list[tuple[float, ...]], list[int]]:
    """Rows (x, y, yaw, speed, acceleration) at 0, 0.1, ... 4 s and the deciding obstacle of each step."""
    x, y, yaw, speed = state.ego.x, state.ego.y, state.ego.yaw, max(state.speed, 0.0)
    acceleration: float | None = None
    curvature: float | None = None
    rows: list[tuple[float, ...]] = []
    deciders: list[int] = []
    for step in range(STEPS + 1):
        s, bend, care = _steer(profile, x, y, yaw, s, speed, _wanted_offset(nudges, step, s))
        free = free_acceleration(speed, care * target_speed(profile, s, speed))
        wanted, decider = choose(step, s + EGO_FRONT_M, speed, free, obstacles)
        acceleration = limit_jerk(wanted, acceleration)
        deciders.append(decider)
        rows.append((x, y, yaw, speed, acceleration))
        following = max(0.0, speed + acceleration * DT_S)
        travel = 0.5 * (speed + following) * DT_S
        if curvature is not None:
            bend = min(max(bend, curvature - MAX_CURVATURE_RATE * DT_S), curvature + MAX_CURVATURE_RATE * DT_S)
        curvature = bend
        middle = yaw + 0.5 * curvature * travel
        x += travel * math.cos(middle)
        y += travel * math.sin(middle)
        yaw += curvature * travel
        s += travel
        speed = following
    return rows, deciders


def _wanted_offset(nudges: list[Nudge], step: int, s: float) -> float:
    """Lateral place (m, left positive) beside the lane's middle: 0 but next to two-wheelers, blended over 12 m."""
    wanted = 0.0
    for item in nudges:
        ahead = item.s[step] - s
        part = min((22.0 - ahead) / 12.0, (ahead + 10.0) / 8.0, 1.0)
        if part > 0.0 and abs(part * item.offset) > abs(wanted):
            wanted = part * item.offset
    return wanted


def _steer(
    profile: RouteProfile, x: float, y: float, yaw: float, s: float, speed: float, wanted: float
) -> tuple[float, float, float]:
    """(corrected arc length, curvature 1/m, share of the road's speed that is fit here).

    The curvature is the road's plus a critically damped return to its middle, or to `wanted` m left of it. Far off or
    askew one drives slower.
    """
    xs, ys, headings, curvatures, _, _ = profile.lists
    position = max(s, 0.0) / STEP_M
    i = min(int(position), len(xs) - 2)
    c, n = math.cos(headings[i]), math.sin(headings[i])
    dx, dy = x - xs[i], y - ys[i]
    s = i * STEP_M + dx * c + dy * n
    j = min(max(int(s / STEP_M), 0), len(xs) - 2)
    part = min(max(s / STEP_M - j, 0.0), 1.0)
    heading = headings[j] + part * (headings[j + 1] - headings[j])
    px, py = xs[j] + part * (xs[j + 1] - xs[j]), ys[j] + part * (ys[j + 1] - ys[j])
    offset = -(x - px) * math.sin(heading) + (y - py) * math.cos(heading) - wanted
    error = math.remainder(yaw - heading, math.tau)
    length = 2.8 + 0.55 * speed
    back = -max(min(offset, 2.0), -2.0) / (length * length) - 2.0 * math.sin(error) / length
    k = min(j + 1, len(curvatures) - 1)
    limit = min(MAX_CURVATURE, MAX_LATERAL / max(speed * speed, 0.1))
    away = abs(error) if error * offset > 0.0 else 0.4 * abs(error)
    care = 1.0 - 0.5 * min(1.0, max(0.0, away - 0.12) / 0.3 + max(0.0, abs(offset) - 1.6) / 2.0)
    return s, min(max(curvatures[k] + back, -limit), limit), care


def _reason(
    deciders: list[int], obstacles: list[Obstacle], profile: RouteProfile, s: float, speed: float
) -> tuple[str, int]:
    """What decides the first 1.5 s; `curve` when the road's shape holds the speed below the limit."""
    early = [index for index in deciders[:16] if index >= 0]
    if early:
        index = max(set(early), key=early.count)
        return obstacles[index].reason, obstacles[index].actor_id
    allowed, limit = target_speed(profile, s, speed), profile.at(profile.limit, s)
    return ("curve", -1) if allowed < 0.85 * limit and speed > allowed - 1.5 else ("clear", -1)


def local_pose(plan: ExpertPlan, time_s: float) -> Pose:
    """Pose on the plan at `time_s` after its start (linear between the rows)."""
    grid = np.arange(len(plan.x)) * DT_S
    yaw = np.interp(time_s, grid, np.unwrap(plan.yaw))
    return Pose(float(np.interp(time_s, grid, plan.x)), float(np.interp(time_s, grid, plan.y)), 0.0, float(yaw))
