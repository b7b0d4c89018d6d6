"""Scores of a drive: how far along the route, contacts, red lights, time off the road, comfort, and all in one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_sim.geometry import Surface, boxes_touch
from wamdiff2_sim.types import EGO_FRONT_M, LightState, WorldState

LONGITUDINAL_MPS2 = (-4.05, 2.40)  # NAVSIM's comfort limits
LATERAL_MPS2 = 4.89
JERK_MPS3 = 8.37
CONTACT_PAUSE_S = 2.0  # apart for so long before touching the same actor counts again
STUCK_S = 60.0
STUCK_MPS = 0.1
LINE_PAUSE_S = 10.0
SMOOTH = 10  # steps over which acceleration is averaged before jerk is taken
# What is left of the score after one event, as the CARLA leaderboard weighs it; cyclists are vehicles there.
CONTACT_PENALTY = {"pedestrian": 0.50, "car": 0.60, "truck": 0.60, "cyclist": 0.60, "static": 0.65}
RED_LIGHT_PENALTY = 0.70


def driving_score(route_completion: float, collisions_by_kind: Mapping[str, int], red_lights: int) -> float:
    """Per cent: completion (0..1) times the product of the penalties of all events. DataError for an unknown kind."""
    score = 100.0 * route_completion * RED_LIGHT_PENALTY**red_lights
    for kind, count in collisions_by_kind.items():
        if kind not in CONTACT_PENALTY:
            raise DataError(f"collision with {kind!r}: expected one of {', '.join(CONTACT_PENALTY)}")
        score *= CONTACT_PENALTY[kind] ** count
    return score


class StopLines:
    """All signalised stop lines of a map as segments across their lanes."""

    def __init__(self, road_map) -> None:
        lanes = [lane for lane in road_map.lanes.values() if lane.light_group >= 0 and lane.stop_s >= 0.0]
        self.group = np.array([lane.light_group for lane in lanes], dtype=np.int64)
        self.point = np.array([lane.point_at(lane.stop_s) for lane in lanes]).reshape(-1, 3)
        self.yaw = np.array([lane.heading_at(lane.stop_s) for lane in lanes])
        self.half = np.array([lane.width / 2.0 for lane in lanes])

    def crossed(self, before: np.ndarray, after: np.ndarray, z: float) -> list[int]:
        """Light groups whose line a point moving from `before` to `after` (2,) passes in driving direction."""
        if len(self.group) == 0:
            return []
        near = np.flatnonzero(
            (np.abs(self.point[:, :2] - after) < 12.0).all(axis=1) & (np.abs(self.point[:, 2] - z) < 3.0)
        )
        c, s = np.cos(self.yaw[near]), np.sin(self.yaw[near])
        old, new = before - self.point[near, :2], after - self.point[near, :2]
        passes = (old[:, 0] * c + old[:, 1] * s < 0.0) & (new[:, 0] * c + new[:, 1] * s >= 0.0)
        passes &= np.abs(new[:, 1] * c - new[:, 0] * s) < self.half[near]
        return sorted(set(self.group[near[passes]].tolist()))


@dataclass(frozen=True)
class Event:
    """One thing that went wrong: `what` collision_KIND | red_light, when (s), with which actor or light group."""

    what: str
    time: float
    subject: int


@dataclass
class DriveScore:
    """Accumulates over `update` calls, one per step. Distances m, times s; `route_length` must be positive."""

    route_length: float
    start_s: float = 0.0
    time: float = 0.0
    distance: float = 0.0
    off_road_s: float = 0.0
    wrong_lane_s: float = 0.0
    events: list[Event] = field(default_factory=list)
    best_s: float = 0.0
    still_s: float = 0.0
    comfort_s: float = 0.0
    comfort_of_s: float = 0.0
    _contacts: dict[int, float] = field(init=False, repr=False, default_factory=dict)
    _lines: dict[int, float] = field(init=False, repr=False, default_factory=dict)
    _front: np.ndarray | None = field(init=False, repr=False, default=None)
    _accels: list[tuple[float, float]] = field(init=False, repr=False, default_factory=list)
    _second_ok: bool = field(init=False, repr=False, default=True)
    _second_s: float = field(init=False, repr=False, default=0.0)
    _last_smooth: float | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        self.best_s = self.start_s

    @property
    def route_completion(self) -> float:
        """Share of the route driven, 0..1; never falls."""
        return float(np.clip((self.best_s - self.start_s) / max(self.route_length - self.start_s, 1e-6), 0.0, 1.0))

    @property
    def collisions(self) -> int:
        return sum(event.what.startswith("collision") for event in self.events)

    @property
    def red_lights(self) -> int:
        return sum(event.what == "red_light" for event in self.events)

    @property
    def comfort(self) -> float:
        """Share of whole seconds within NAVSIM's limits; 1 before the first second is over."""
        return self.comfort_s / self.comfort_of_s if self.comfort_of_s else 1.0

    @property
    def stuck(self) -> bool:
        return self.still_s > STUCK_S

    def update(self, state: WorldState, surface: Surface, lines: StopLines, dt: float, held: bool = False) -> None:
        """Take in the state after a step of `dt`. `held`: a light or a waiting rule explains why the ego stands."""
        self.time += dt
        self.distance += abs(state.speed) * dt
        self.best_s = max(self.best_s, state.route_s)
        self.still_s = self.still_s + dt if abs(state.speed) < STUCK_MPS and not held else 0.0
        self._collide(state)
        self._cross_lines(state, lines)
        self._feel(state, dt)
        off, wrong = surface.look(state.ego_corners(), state.ego.z, state.ego.yaw)
        self.off_road_s += dt * off
        self.wrong_lane_s += dt * wrong

    def after_teleport(self) -> None:
        """Forget where the ego was, so that a jump neither passes stop lines nor jerks."""
        self._front = None
        self._accels.clear()
        self._last_smooth = None

    def summary(self) -> dict:
        """Plain values for reports."""
        by_kind = dict(Counter(e.what[10:] for e in self.events if e.what.startswith("collision")))
        return {
            "driving_score": round(driving_score(self.route_completion, by_kind, self.red_lights), 4),
            "route_completion": round(self.route_completion, 4),
            "route_length_m": round(self.route_length - self.start_s, 1),
            "distance_m": round(self.distance, 1),
            "time_s": round(self.time, 2),
            "collisions": self.collisions,
            "collisions_by_kind": by_kind,
            "red_lights": self.red_lights,
            "off_road_s": round(self.off_road_s, 2),
            "wrong_lane_s": round(self.wrong_lane_s, 2),
            "comfort": round(self.comfort, 4),
            "stuck": self.stuck,
        }

    def _collide(self, state: WorldState) -> None:
        ego = state.ego_corners()
        middle = ego.mean(axis=0)
        for actor in state.actors:
            reach = 3.0 + 0.5 * (actor.length + actor.width)
            if abs(actor.x - middle[0]) > reach or abs(actor.y - middle[1]) > reach or abs(actor.z - state.ego.z) > 2.5:
                continue
            if not boxes_touch(ego, actor.corners()):
                continue
            last = self._contacts.get(actor.id)
            if last is None or state.time - last > CONTACT_PAUSE_S:
                self.events.append(Event(f"collision_{actor.kind}", state.time, actor.id))
            self._contacts[actor.id] = state.time

    def _cross_lines(self, state: WorldState, lines: StopLines) -> None:
        tip = state.ego.ahead(EGO_FRONT_M)
        front = np.array([tip.x, tip.y])
        if self._front is not None:
            for group in lines.crossed(self._front, front, state.ego.z):
                last = self._lines.get(group, -math.inf)
                if state.lights.get(group) == LightState.RED and state.time - last > LINE_PAUSE_S:
                    self.events.append(Event("red_light", state.time, group))
                    self._lines[group] = state.time
        self._front = front

    def _feel(self, state: WorldState, dt: float) -> None:
        self._accels.append((state.acceleration, state.speed * state.yaw_rate))
        del self._accels[:-SMOOTH]
        along, across = np.mean(self._accels, axis=0)
        jerk = 0.0 if self._last_smooth is None else (along - self._last_smooth) / dt
        self._last_smooth = float(along)
        ok = (
            LONGITUDINAL_MPS2[0] < along < LONGITUDINAL_MPS2[1] and abs(across) < LATERAL_MPS2 and abs(jerk) < JERK_MPS3
        )
        self._second_ok &= bool(ok)
        self._second_s += dt
        if self._second_s >= 1.0 - 1e-9:
            self.comfort_s += float(self._second_ok)
            self.comfort_of_s += 1.0
            self._second_ok, self._second_s = True, 0.0
