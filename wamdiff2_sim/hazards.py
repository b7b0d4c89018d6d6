"""What the expert has to stop for or follow: lights, leading cars, pedestrians, cars with priority.

Each hazard becomes an `Obstacle` over time along the route. Only present positions, motions, indicators and
light colours
are used: what a driver sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wamdiff2_core.scene import Command
from wamdiff2_sim import prediction
from wamdiff2_sim.longitudinal import COMFORT, DT_S, ROLLOUT_STEPS, Obstacle, arrival_times, standing
from wamdiff2_sim.onroute import OnRoute, view_tracks
from wamdiff2_sim.prediction import TIMES, LanePaths
from wamdiff2_sim.roads.roadmap import RoadMap
from wamdiff2_sim.route_profile import JunctionSpan, RouteProfile
from wamdiff2_sim.types import EGO_FRONT_M, EGO_LENGTH_M, EGO_WIDTH_M, ActorState, LightState, WorldState

SIGHT_M = 65.0
WALKER_SIGHT_M = 40.0
LIGHT_SIGHT_M = 70.0
STOP_BEFORE_LINE_M = 1.5
GAP_BEHIND_CAR_M = 3.0
GAP_BEFORE_WALKER_M = 2.5
NUDGE_FROM_M, NUDGE_TO_M, NUDGE_M = 1.2, 2.4, 0.5
NO_PASSING_M = 20.0  # before a junction
_GRID = np.arange(ROLLOUT_STEPS + 1) * DT_S


def visible(state: WorldState, actor: ActorState) -> bool:
    """In the half plane that the three cameras cover, and near enough to be seen."""
    dx, dy = actor.x - state.ego.x, actor.y - state.ego.y
    reach = WALKER_SIGHT_M if actor.kind == "pedestrian" else SIGHT_M
    if dx * dx + dy * dy > reach * reach or abs(actor.z - state.ego.z) > 4.0:
        return False
    forward = dx * math.cos(state.ego.yaw) + dy * math.sin(state.ego.yaw)
    return forward > -1.0


def light_obstacles(state: WorldState, profile: RouteProfile, front: float) -> list[Obstacle]:
    """Stop lines ahead whose light is red, or yellow with a comfortable stop possible."""
    out = []
    for line in profile.stop_lines:
        gap = line.s - front
        if not -1.5 < gap < LIGHT_SIGHT_M:
            continue
        colour = state.lights.get(line.group, LightState.GREEN)
        if colour == LightState.GREEN or (gap < 0.0 and state.speed > 2.0):
            continue
        needed = state.speed**2 / (2.0 * max(gap, 0.2))
        if colour == LightState.YELLOW and needed > 1.4 * COMFORT or needed > 7.5:
            continue
        out.append(standing("red light", -1, max(line.s - STOP_BEFORE_LINE_M, min(front, line.s))))
    return out


def leader_obstacle(seen: OnRoute) -> Obstacle:
    """A vehicle driving ahead on our path, for as long as it stays there."""
    actor = seen.track.actor
    rear = np.where(seen.inside, np.minimum(seen.low, seen.middle - actor.length / 2.0), np.inf)
    speed = seen.track.speed * np.maximum(np.cos(seen.turn), 0.0)
    return Obstacle(
        "car ahead", actor.id, _dense(rear - GAP_BEHIND_CAR_M), np.interp(_GRID, TIMES, speed).tolist(), 1.1
    )


def blocking_obstacle(seen: OnRoute, reason: str, gap: float, until: float) -> Obstacle:
    """Something across our path: stop `gap` m before its first place until `until` s."""
    place = float(seen.low[seen.inside].min()) - gap
    s = np.where(_GRID <= until, place, np.inf)
    return Obstacle(reason, seen.track.actor.id, s.tolist(), [0.0] * (ROLLOUT_STEPS + 1), 0.4)


def walker_obstacle(seen: OnRoute, front: float, speed: float) -> Obstacle | None:
    """A pedestrian on the path or about to step on it, unless we are past before or it is gone when we come."""
    if not seen.inside.any():
        return None
    first = int(np.argmax(seen.inside))
    rest = seen.inside[first:]
    last = len(TIMES) - 1 if rest.all() else first + int(np.argmin(rest)) - 1
    enter, leave = float(TIMES[first]), float(TIMES[last])
    place = float(seen.low[first : last + 1].min())
    if enter > 4.0 or place < front - 0.5:
        return None
    reach = max(speed, 1.0)
    if place - front + EGO_LENGTH_M + 1.0 < reach * (enter - 0.5) and speed > 1.0:
        return None  # we are through before
    if (place - front - 3.0) / reach > leave + 1.5:
        return None  # gone long before we come
    until = _GRID[-1] if last == len(TIMES) - 1 else leave + 0.4
    return blocking_obstacle(seen, "pedestrian", GAP_BEFORE_WALKER_M, until)


def _dense(values: np.ndarray) -> list[float]:
    """Values at `TIMES` on the rollout's grid; a finite value next to an infinite one holds."""
    fine = np.interp(_GRID, TIMES, np.where(np.isfinite(values), values, 0.0))
    index = np.minimum(np.round(_GRID / prediction.STEP_S).astype(int), len(TIMES) - 1)
    both = np.isfinite(values[np.floor(_GRID / prediction.STEP_S).astype(int).clip(0, len(TIMES) - 1)])
    both &= np.isfinite(values[np.ceil(_GRID / prediction.STEP_S).astype(int).clip(0, len(TIMES) - 1)])
    return np.where(both, fine, np.where(np.isfinite(values[index]), values[index], np.inf)).tolist()


@dataclass(frozen=True)
class Nudge:
    """A two-wheeler at the lane's edge: keep `offset` m (left positive) beside the middle while passing arc
    lengths `s`.
    """

    s: list[float]
    offset: float


def nudge(seen: OnRoute, front: float) -> Nudge | None:
    """Room for somebody slow at the edge of our lane, driving our way."""
    lateral = float(seen.lateral[0])
    if abs(float(seen.turn[0])) > 0.6 or not NUDGE_FROM_M < abs(lateral) < NUDGE_TO_M:
        return None
    s = np.interp(_GRID, TIMES, seen.middle)
    if s[0] < front - EGO_LENGTH_M - 4.0:
        return None
    return Nudge(s.tolist(), -math.copysign(NUDGE_M, lateral))


def at_the_edge(seen: OnRoute) -> OnRoute:
    """The two-wheeler counts as in our way for as long as it is about in our lane."""
    return replace(seen, inside=np.abs(seen.lateral) < NUDGE_TO_M + 0.3, low=seen.middle)


class Hazards:
    """Finds the obstacles of a state on a route."""

    def __init__(self, road_map: RoadMap) -> None:
        self._map = road_map
        self._paths = LanePaths(road_map)

    def find(self, state: WorldState, profile: RouteProfile, s: float) -> tuple[list[Obstacle], list[Nudge]]:
        """All obstacles that matter from arc length `s` of base_link on, and the cyclists to keep off."""
        front = s + EGO_FRONT_M
        obstacles = light_obstacles(state, profile, front)
        crossing: list[OnRoute] = []
        nudges: list[Nudge] = []
        for seen in self.look(state, profile, s):
            kind = seen.track.actor.kind
            if kind == "pedestrian":
                found = walker_obstacle(seen, front, state.speed)
                obstacles += [found] if found else []
                continue
            if kind == "cyclist" and self._stays_behind(seen, profile, s, state.speed):
                obstacles.append(leader_obstacle(at_the_edge(seen)))
                continue
            beside = nudge(seen, front) if kind == "cyclist" else None
            nudges += [beside] if beside else []
            if seen.inside[0]:
                obstacles += self._present(seen, s, front)
            elif seen.inside.any():
                crossing.append(seen)
        return obstacles + self._yielding(state, profile, s, crossing, obstacles), nudges

    def _stays_behind(self, seen: OnRoute, profile: RouteProfile, s: float, speed: float) -> bool:
        """Is it no place to overtake this two-wheeler? Before a junction it may go where we turn."""
        middle, lateral = float(seen.middle[0]), float(seen.lateral[0])
        if abs(float(seen.turn[0])) > 0.6 or abs(lateral) > NUDGE_TO_M or middle < s + 1.5:
            return False
        span = next((span for span in profile.junctions if span.end > s + EGO_FRONT_M), None)
        if span is None or span.start - middle > NO_PASSING_M:
            return False
        ahead = middle > s + EGO_FRONT_M + 1.0
        starts_beside_us = middle > s + 2.0 and speed < seen.track.actor.speed + 0.3
        return ahead or starts_beside_us or (span.turn == Command.RIGHT and lateral < 0.0)

    def look(self, state: WorldState, profile: RouteProfile, s: float) -> list[OnRoute]:
        """Predicted motion of all visible road users, seen from the route."""
        tracks, margins = [], []
        for actor in state.actors:
            if not visible(state, actor):
                continue
            if actor.kind == "pedestrian":
                tracks.append(prediction.predict_walker(actor))
                margins.append(EGO_WIDTH_M / 2.0 + (0.5 if actor.speed < 0.2 else 0.9))
            else:
                tracks.append(prediction.predict_vehicle(actor, self._paths))
                margins.append(EGO_WIDTH_M / 2.0 + actor.width / 2.0 + 0.15)
        return view_tracks(tracks, margins, profile, s)

    def _present(self, seen: OnRoute, s: float, front: float) -> list[Obstacle]:
        """Obstacle of a vehicle that is on our path now."""
        if seen.middle[0] < s + 1.0:
            return []  # beside or behind us
        if abs(float(seen.turn[0])) < 1.0:
            return [leader_obstacle(seen)]
        if seen.high[0] < front:
            return []
        leave = TIMES[-1] if seen.inside.all() else float(TIMES[int(np.argmin(seen.inside))])
        return [blocking_obstacle(seen, "yield", 1.5, leave + 0.3)]

    def _yielding(
        self, state: WorldState, profile: RouteProfile, s: float, crossing: list[OnRoute], obstacles: list[Obstacle]
    ) -> list[Obstacle]:
        """Stops for vehicles that will be in our way at the time we would be there, and have priority."""
        out: list[Obstacle] = []
        ours: np.ndarray | None = None
        front = s + EGO_FRONT_M
        for seen in crossing:
            span = self._span(profile, s, float(seen.low[seen.inside].min()))
            if span is None or not self._has_priority(seen.track.actor, span):
                continue
            if ours is None:
                ours = np.array(arrival_times(profile, front, EGO_FRONT_M, state.speed, obstacles))
            found = _conflict(seen, ours, span, front)
            out += [found] if found else []
        return out

    def _span(self, profile: RouteProfile, s: float, place: float) -> JunctionSpan | None:
        """The junction on the route in which (or right behind which) `place` lies."""
        for span in profile.junctions:
            if span.start - 2.0 <= place <= span.end + 6.0 and span.end > s:
                return span
        return None

    def _has_priority(self, actor: ActorState, span: JunctionSpan) -> bool:
        """Must we let this vehicle go first?"""
        lane = self._map.lanes[actor.lane_id]
        if lane.junction_id == span.junction_id:
            return True  # it is in there already
        oncoming = math.cos(actor.yaw - span.heading_in) < -0.6
        if span.signalised:
            return span.turn == Command.LEFT and oncoming and actor.indicator != 1
        if span.turn == Command.LEFT and oncoming:
            return actor.indicator != 1
        bearing = math.sin(actor.yaw - span.heading_in)  # > 0: it drives to our left, so it comes from the right
        return bearing > 0.5 or (span.turn != Command.STRAIGHT and bearing < -0.5)


def _conflict(seen: OnRoute, ours: np.ndarray, span: JunctionSpan, front: float) -> Obstacle | None:
    """The stop that keeps us out of `seen`'s way, or None when the times do not overlap."""
    first = int(np.argmax(seen.inside))
    rest = seen.inside[first:]
    last = len(TIMES) - 1 if rest.all() else first + int(np.argmin(rest)) - 1
    merging = abs(float(seen.turn[last])) < 0.7
    low = float(seen.low[first : last + 1].min())
    high = float(seen.high[first : last + 1].max())
    if front > low - 0.3:
        return None  # too late to stop: clear the place
    enter, leave = float(TIMES[first]), float(TIMES[last])
    arrive = DT_S * float(np.searchsorted(ours, low - 1.0))
    clear = DT_S * float(np.searchsorted(ours, (low + 6.0 if merging else high) + EGO_LENGTH_M + 0.5))
    if arrive >= DT_S * ROLLOUT_STEPS or clear + 0.8 < enter:
        return None
    if merging:
        if arrive > enter + 0.3:
            return leader_obstacle(seen)  # it will be ahead of us: fall in behind
    elif arrive > leave + 0.4:
        return None
    stop = low - 2.0
    waits_inside = span.turn == Command.LEFT and stop > span.start + 5.0
    if front < span.start and not waits_inside:
        stop = min(stop, span.start - 0.7)
    until = min(leave + 0.3, TIMES[-1]) if not merging else enter + 0.5
    s = np.where(_GRID <= until, stop, np.inf)
    return Obstacle("yield", seen.track.actor.id, s.tolist(), [0.0] * (ROLLOUT_STEPS + 1), 0.4)
