"""Where the others will be: vehicles along their lanes, pedestrians straight on. Only what can be seen is used.

A vehicle's speed stays, or falls by its present braking; at a fork it follows its indicator, else goes straight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wamdiff2_core.scene import Command
from wamdiff2_sim.types import ActorState

STEP_S = 0.25
HORIZON_S = 7.0
TIMES = np.arange(0.0, HORIZON_S + 1e-6, STEP_S)  # (T,)
TURN_OF_INDICATOR = {1: Command.LEFT, -1: Command.RIGHT}
PATH_AHEAD_M = 110.0


@dataclass(frozen=True)
class Track:
    """Predicted motion of one road user: front, middle, rear (T, 3, 2) m in the map frame, speed (T,) m/s, yaw
    (T,) rad.
    """

    actor: ActorState
    points: np.ndarray
    speed: np.ndarray
    yaw: np.ndarray


class LanePaths:
    """Centre lines continued over successors, cached by lane and indicator. Spacing 1 m, first point at the lane's
    start.
    """

    def __init__(self, road_map) -> None:
        self._map = road_map
        self._cache: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

    def path(self, lane_id: int, indicator: int) -> tuple[np.ndarray, np.ndarray]:
        """(points (N, 2), yaw (N,)) from the lane's start to `PATH_AHEAD_M` behind its end."""
        key = (lane_id, indicator)
        if key not in self._cache:
            self._cache[key] = self._build(lane_id, indicator)
        return self._cache[key]

    def next_lane(self, lane_id: int, indicator: int) -> int | None:
        """The successor that the indicator announces; without one the straight one, else the first."""
        successors = self._map.lanes[lane_id].successors
        if not successors:
            return None
        wanted = TURN_OF_INDICATOR.get(indicator)
        preferences = [wanted] if wanted else [Command.STRAIGHT, Command.FOLLOW]
        for turn in preferences:
            for successor in successors:
                if self._map.lanes[successor].turn == turn:
                    return successor
        return successors[0]

    def _build(self, lane_id: int, indicator: int) -> tuple[np.ndarray, np.ndarray]:
        pieces = [self._map.lanes[lane_id].points[:, :2].astype(np.float64)]
        length, current = 0.0, lane_id
        while length < PATH_AHEAD_M:
            following = self.next_lane(current, indicator)
            if following is None:
                break
            points = self._map.lanes[following].points[:, :2].astype(np.float64)
            pieces.append(points[1:])
            length += self._map.lanes[following].length
            if self._map.lanes[following].junction_id >= 0:
                indicator = 0  # it announces one turn only
            current = following
        points = _resample(np.concatenate(pieces))
        tangent = np.gradient(points, axis=0)
        return points, np.unwrap(np.arctan2(tangent[:, 1], tangent[:, 0]))


def _resample(points: np.ndarray) -> np.ndarray:
    steps = np.hypot(*np.diff(points, axis=0).T)
    keep = np.concatenate([[True], steps > 1e-3])
    points = points[keep]
    s = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))])
    grid = np.arange(0.0, max(s[-1], 1.0), 1.0)
    return np.stack([np.interp(grid, s, points[:, 0]), np.interp(grid, s, points[:, 1])], axis=1)


def predict_vehicle(actor: ActorState, paths: LanePaths) -> Track:
    """Along the lane at constant speed or present braking; the lateral offset to the lane's middle is kept."""
    travel, speed = _travel(actor.speed, actor.accel)
    points, yaw = paths.path(actor.lane_id, actor.indicator)
    half = actor.length / 2.0
    s = actor.s + travel[:, None] + np.array([half, 0.0, -half])
    last = len(points) - 1
    index = np.clip(s.astype(np.int64), 0, last - 1)
    fraction = (s - index)[..., None]  # beyond the ends: straight on
    placed = points[index] + fraction * (points[index + 1] - points[index])
    shift = np.array([actor.x, actor.y]) - placed[0, 1]
    return Track(actor, placed + shift, speed, yaw[index[:, 1]])


def predict_walker(actor: ActorState) -> Track:
    """Straight on at constant velocity."""
    velocity = np.array(actor.velocity)
    middle = np.array([actor.x, actor.y]) + TIMES[:, None] * velocity
    points = np.repeat(middle[:, None], 3, axis=1)
    return Track(actor, points, np.full(len(TIMES), actor.speed), np.full(len(TIMES), actor.yaw))


def _travel(speed: float, accel: float) -> tuple[np.ndarray, np.ndarray]:
    """Distance and speed over `TIMES`: braking goes on to standstill, a start or speeding up goes on for one
    second.
    """
    if accel < -0.3:
        stop = speed / -accel
        t = np.minimum(TIMES, stop)
        return speed * t + 0.5 * accel * t**2, np.maximum(speed + accel * TIMES, 0.0)
    gain = min(accel, 2.0) if accel > 0.3 else 0.0
    t = np.minimum(TIMES, 1.0)
    return speed * TIMES + 0.5 * gain * t**2 + gain * t * (TIMES - t), speed + gain * t
