"""A road user that a scenario directs: it moves along a given line with a wanted speed, or stands."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from wamdiff2_core.errors import ConfigError
from wamdiff2_sim.corridor import Bodies
from wamdiff2_sim.roads.roadmap import RoadMap
from wamdiff2_sim.types import EGO_CENTRE_M, EGO_LENGTH_M, ActorState, Pose

FIRST_ID = 2_000_000  # of directed actors; the world's own vehicles and people count below
SIZES = {"car": (4.6, 1.9, 1.5), "truck": (6.4, 2.3, 2.9), "cyclist": (1.8, 0.6, 1.7), "pedestrian": (0.5, 0.5, 1.75)}
WORK_COLOUR = (0.9, 0.45, 0.05)
CONE_SIZE = (0.6, 0.6, 1.0)
BESIDE_M = 2.0  # the ego's middle further from the line than this is not in the way
KEEP_M = 4.0
KEEP_BRAKE_MPS2 = 3.0


class Line:
    """A path on the ground: points (N, 3) m, looked up by arc length; beyond its ends it goes straight on."""

    def __init__(self, points: np.ndarray) -> None:
        points = np.asarray(points, dtype=np.float64)
        keep = np.concatenate([[True], np.hypot(*np.diff(points[:, :2], axis=0).T) > 1e-3])
        self.points = points[keep]
        if self.points.ndim != 2 or len(self.points) < 2 or self.points.shape[1] != 3:
            raise ConfigError(f"line: expected (N >= 2, 3) different points, got {points.shape}")
        gaps = np.hypot(*np.diff(self.points[:, :2], axis=0).T)
        self.s = np.concatenate([[0.0], np.cumsum(gaps)])

    @property
    def length(self) -> float:
        return float(self.s[-1])

    def at(self, s: float) -> Pose:
        """Place and direction at arc length `s` (m)."""
        i = int(np.clip(np.searchsorted(self.s, s, side="right") - 1, 0, len(self.s) - 2))
        a, b = self.points[i], self.points[i + 1]
        share = (s - self.s[i]) / (self.s[i + 1] - self.s[i])
        x, y, z = a + (b - a) * share
        return Pose(float(x), float(y), float(z), math.atan2(b[1] - a[1], b[0] - a[0]))

    def project(self, x: float, y: float) -> tuple[float, float]:
        """(arc length, lateral left positive) of the nearest place."""
        start, step = self.points[:-1, :2], np.diff(self.points[:, :2], axis=0)
        length = np.diff(self.s)
        gap = np.array([x, y]) - start
        along = np.clip((gap * step).sum(1) / length, 0.0, length)
        rest = gap - step * (along / length)[:, None]
        best = int(np.argmin((rest * rest).sum(1)))
        side = step[best, 0] * rest[best, 1] - step[best, 1] * rest[best, 0]
        return float(self.s[best] + along[best]), float(math.copysign(np.hypot(*rest[best]), side))


@dataclass
class Directed:
    """One directed actor. `kind` as the world's actors; `role`: what it plays, part of reports ("ambulance", ...).

    `offset` m left of the line, moved towards `wanted_offset` with `offset_rate` m/s; `speed` m/s towards `wanted`.
    """

    id: int
    kind: str
    line: Line
    s: float = 0.0
    role: str = ""
    size: tuple[float, float, float] | None = None
    colour: tuple[float, float, float] = (0.55, 0.56, 0.6)
    speed: float = 0.0
    wanted: float = 0.0
    offset: float = 0.0
    wanted_offset: float = 0.0
    offset_rate: float = 1.2
    accel: float = 2.0
    brake: float = 4.0
    keeps_gap: bool = True
    indicator: int = 0
    gone: bool = False
    turned: float = 0.0  # rad, of a parked or crashed vehicle
    _lane: tuple[int, float] = field(default=(-1, 0.0), repr=False)
    _last_accel: float = field(default=0.0, repr=False)

    @property
    def pose(self) -> Pose:
        """The middle of its box on the ground."""
        base = self.line.at(self.s)
        drift = 0.0
        if self.speed > 0.5 and self.offset != self.wanted_offset:
            drift = math.atan2(math.copysign(self.offset_rate, self.wanted_offset - self.offset), self.speed)
        x, y = base.x - self.offset * math.sin(base.yaw), base.y + self.offset * math.cos(base.yaw)
        return Pose(x, y, base.z, math.remainder(base.yaw + drift + self.turned, math.tau))

    @property
    def measures(self) -> tuple[float, float, float]:
        """Length, width, height (m)."""
        return self.size or SIZES[self.kind]

    def step(self, dt: float, ego: Pose, ego_speed: float) -> None:
        """Move on. Where `keeps_gap` holds, it brakes behind an ego that is on its line."""
        wanted = min(self.wanted, self._gap_speed(ego, ego_speed)) if self.keeps_gap else self.wanted
        before = self.speed
        change = float(np.clip(wanted - before, -self.brake * dt, self.accel * dt))
        self.speed = max(before + change, 0.0)
        self._last_accel = (self.speed - before) / dt
        self.s += 0.5 * (before + self.speed) * dt
        room = self.offset_rate * dt
        self.offset += float(np.clip(self.wanted_offset - self.offset, -room, room))

    def _gap_speed(self, ego: Pose, ego_speed: float) -> float:
        middle = ego.ahead(EGO_CENTRE_M)
        along, lateral = self.line.project(middle.x, middle.y)
        gap = along - self.s - self.measures[0] / 2.0 - EGO_LENGTH_M / 2.0
        if abs(lateral - self.offset) > BESIDE_M or not -2.0 < gap < 60.0:
            return math.inf
        ours = max(ego_speed, 0.0) if math.cos(ego.yaw - self.line.at(along).yaw) > 0.3 else 0.0
        return math.sqrt(2.0 * KEEP_BRAKE_MPS2 * max(gap - KEEP_M, 0.0) + ours * ours)

    def state(self, road_map: RoadMap) -> ActorState:
        """As the world's other road users are described."""
        pose, (length, width, height) = self.pose, self.measures
        lane_id, s = (-1, 0.0) if self.kind == "pedestrian" else self._place(road_map, pose)
        return ActorState(
            self.id, self.kind, lane_id, s, pose.x, pose.y, pose.z, pose.yaw, self.speed, self._last_accel, length,
            width, height, self.colour, self._last_accel < -0.6 or self.wanted == 0.0, self.indicator,
        )  # fmt: skip

    def _place(self, road_map: RoadMap, pose: Pose) -> tuple[int, float]:
        if self._lane[0] < 0 or self.speed > 0.0:
            found = road_map.nearest_lane(np.array([pose.x, pose.y]), heading=pose.yaw - self.turned, z=pose.z)
            self._lane = (found.lane_id, found.s)
        return self._lane

    def bodies(self) -> Bodies:
        """Its footprint, one row."""
        pose, (length, width, _) = self.pose, self.measures
        values = (pose.x, pose.y, pose.z, pose.yaw, self.speed, length / 2.0, width / 2.0)
        return Bodies(*(np.array([value]) for value in values))
