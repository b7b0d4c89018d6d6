"""The reference driver: the world's expert, and someone who knows what the situations ask for beyond following a lane.

It leaves its lane round what blocks it when nobody comes the other way, lets an ambulance by, gets out of a parking
place and stops at stop signs. It sees the stage, not pictures: it shows that situations can be mastered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wamdiff2_core.scene import PLAN_STEP_S, Plan
from wamdiff2_sim.expert import Expert
from wamdiff2_sim.roads.route import Route
from wamdiff2_sim.scenarios.acts_road import Ambulance, Blocking, ParkingExit
from wamdiff2_sim.scenarios.stage import Stage
from wamdiff2_sim.types import EGO_FRONT_M

ASIDE_M = 3.6
RAMP_M = 16.0
OUT_M = 9.0  # of the way from a parking place into the lane
BESIDE_LANE_M = 3.1
CLEAR_AHEAD_M, CLEAR_BEHIND_M = 75.0, 6.0
BRAKE_MPS2 = 2.2
BEFORE_SIGN_M = 1.0
STANDS_MPS = 0.05


@dataclass(frozen=True)
class Aside:
    """Keep `offset` m left of the route from arc length `start` to `end` (m), with ramps of `ramp` m around."""

    start: float
    end: float
    offset: float
    ramp: float = RAMP_M

    def at(self, s: np.ndarray) -> np.ndarray:
        """Offsets (N,) at arc lengths (N,): smooth in and out."""
        rise = np.clip(np.minimum(s - (self.start - self.ramp), self.end + self.ramp - s) / self.ramp, 0.0, 1.0)
        return self.offset * 0.5 * (1.0 - np.cos(np.pi * rise))


class Reference:
    """Plans for a stage. `signs`: arc lengths (m) of stop signs on the route. `knows` False: the expert alone."""

    def __init__(self, stage: Stage, knows: bool = True, signs: Sequence[float] = ()) -> None:
        self._stage, self._knows = stage, knows
        self._expert = Expert(stage.map)
        self._signs = sorted(signs)
        self._way: tuple[Aside | None, Route] = (None, stage.route)
        self._chosen: dict[int, Aside] = {}

    def plan(self) -> Plan:
        """The next 4 s from now."""
        stage, state = self._stage, self._stage.state
        if not self._knows:
            return Plan(np.asarray(stage.expert_plan()), np.ones(8))
        route = self._route(self._aside())
        s, _ = route.project(np.array([state.ego.x, state.ego.y]), None)
        points = self._expert.plan(state, route, s).points
        if any(isinstance(act, Ambulance) and act.begun and not act.done for act in stage.acts):
            points = _slower(points)
        return Plan(self._heed_signs(points), np.ones(8))

    def _route(self, aside: Aside | None) -> Route:
        if aside != self._way[0]:
            base = self._stage.route
            if aside is None:
                self._way = (None, base)
            else:
                shift = aside.at(base.s)
                points = base.points.copy()
                points[:, 0] -= shift * np.sin(base.headings)
                points[:, 1] += shift * np.cos(base.headings)
                self._way = (aside, Route.from_points(points, self._stage.map))
        return self._way[1]

    def _aside(self) -> Aside | None:
        """Where to drive beside the route now; once decided it stays until it is behind us."""
        s = self._stage.state.route_s
        for act in self._stage.acts:
            wish = self._chosen.get(id(act)) or self._wish(act)
            if wish is not None and s < wish.end + wish.ramp:
                self._chosen[id(act)] = wish
                return wish
        return None

    def _wish(self, act: object) -> Aside | None:
        s = self._stage.state.route_s
        if isinstance(act, ParkingExit):
            return Aside(s - 30.0, s, -BESIDE_LANE_M, OUT_M)
        if isinstance(act, Ambulance) and act.begun and not act.done:
            side = self._free_side(s + 20.0)
            return Aside(s + RAMP_M, s + 70.0, side * ASIDE_M) if side else None
        if isinstance(act, Blocking) and act.s - s < 45.0 and not self._somebody_comes(act.s, act.length_m):
            return Aside(act.s - 6.0, act.s + act.length_m + 4.0, ASIDE_M)
        return None

    def _free_side(self, s: float) -> int:
        """+1 left, -1 right: a lane of our direction beside ours; 0 for none."""
        lane = self._stage.map.lanes.get(self._stage.route.lane_at(s))
        if lane is None:
            return 0
        return -1 if lane.right_id >= 0 else 1 if lane.left_id >= 0 else 0

    def _somebody_comes(self, s: float, length_m: float) -> bool:
        """Is anybody on the lane beside, near the place, so that we cannot use it?"""
        route = self._stage.route
        place = route.point_at(s)
        for actor in self._stage.state.actors:
            if actor.kind == "pedestrian" or abs(actor.z - place[2]) > 3.0:
                continue
            at, lateral = route.project(np.array([actor.x, actor.y]), s)
            oncoming = math.cos(actor.yaw - route.heading_at(at)) < 0.0
            ahead = at - s
            reach = CLEAR_AHEAD_M if oncoming else length_m + 10.0
            moving = actor.speed > 0.5
            if 1.8 < lateral < 5.5 and moving and -CLEAR_BEHIND_M - 25.0 * (not oncoming) < ahead < reach:
                return True
        return False

    def _heed_signs(self, points: np.ndarray) -> np.ndarray:
        """The plan, stopping at the next stop sign; a sign counts as heeded once we have stood there."""
        state = self._stage.state
        middle = state.route_s + EGO_FRONT_M / 2.0
        while self._signs and middle > self._signs[0] + 4.0:
            self._signs.pop(0)
        if not self._signs:
            return points
        room = self._signs[0] - BEFORE_SIGN_M - middle
        if room < 3.5 and state.speed < STANDS_MPS:
            self._signs.pop(0)
            return points
        return _stopped(points, state.speed, max(room, 0.0))


def _slower(points: np.ndarray) -> np.ndarray:
    """The same path (8, 2) at half the speed."""
    path = np.vstack([np.zeros((1, 2)), points])
    halves = np.arange(1, 9) / 2.0
    return np.column_stack([np.interp(halves, np.arange(9), path[:, axis]) for axis in (0, 1)])


def _stopped(points: np.ndarray, speed: float, room_m: float) -> np.ndarray:
    """The plan (8, 2) driven no further than `room_m`, braking comfortably in time."""
    path = np.vstack([np.zeros((1, 2)), points])
    s = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(path, axis=0).T))])
    v, at, wanted = speed, 0.0, []
    step = PLAN_STEP_S / 5.0
    for k in range(1, 41):
        allowed = math.sqrt(2.0 * BRAKE_MPS2 * max(room_m - at, 0.0))
        planned = float(np.interp(k * step, PLAN_STEP_S * np.arange(9), s) - np.interp((k - 1) * step,
                        PLAN_STEP_S * np.arange(9), s)) / step  # fmt: skip
        v = min(planned, allowed)
        at = min(at + v * step, room_m)
        if k % 5 == 0:
            wanted.append(at)
    return np.column_stack([np.interp(wanted, s, path[:, axis]) for axis in (0, 1)])
