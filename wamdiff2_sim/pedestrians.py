"""People on foot: they walk along sidewalks, and cross the road at junctions or mid-block when they judge the gap big
enough.

Some are bold: they step out before a car that has to brake for them, but never closer than it can stop from with 3
m/s^2 after a second of reaction.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, fields

import numpy as np

from wamdiff2_sim.corridor import Bodies
from wamdiff2_sim.lane_graph import LaneGraph
from wamdiff2_sim.types import ActorState

WALKING, WAITING, CROSSING = 0, 1, 2
FAR_M = 1.0e7
FIRST_SERIAL = 1_000_000  # ids of people start here, those of vehicles below
SIDEWALK_OFFSET_M = (0.9, 2.0)  # from the lane's edge
KERB_M = 0.14
SIZE_M = 0.5
MAX_DISTANCE_M = 100.0
SPAWN_M = (20.0, 90.0)
SPAWN_SEEN_M = 45.0
CROSS_RATE_PER_S = 0.012
CROSS_AT_END = 0.7
BOLD_SHARE = 0.35
PATIENCE_S = 12.0
ROAD_WIDTH_M = (4.0, 26.0)
GAP_MARGIN_S = 1.5
BOLD_REACTION_S = 1.1
BOLD_BRAKE_MPS2 = 3.0
GHOST_S = (0.8, 1.6)
CLOTHES = np.array(
    [
        *([0.12, 0.13, 0.17], [0.70, 0.12, 0.12], [0.14, 0.28, 0.58], [0.85, 0.82, 0.74]),
        *([0.30, 0.42, 0.22], [0.80, 0.58, 0.12], [0.46, 0.30, 0.52], [0.50, 0.50, 0.52]),
    ]
)


@dataclass
class Crowd:
    """State of M people (rows). `lane` is a LaneGraph index, `sense` +1 along the lane, -1 against it."""

    active: np.ndarray
    mode: np.ndarray
    lane: np.ndarray
    s: np.ndarray
    sense: np.ndarray
    offset: np.ndarray  # metres right of the lane's edge
    pace: np.ndarray  # preferred speed
    bold: np.ndarray
    waited: np.ndarray
    target: np.ndarray  # (M, 2) far kerb while waiting or crossing
    target_lane: np.ndarray
    target_s: np.ndarray
    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    yaw: np.ndarray
    speed: np.ndarray
    height: np.ndarray
    colour: np.ndarray
    serial: np.ndarray

    def copy(self) -> Crowd:
        return Crowd(*(getattr(self, item.name).copy() for item in fields(self)))


def _new_crowd(m: int) -> Crowd:
    def zeros() -> np.ndarray:
        return np.zeros(m)

    def whole() -> np.ndarray:
        return np.zeros(m, dtype=np.int64)

    def no() -> np.ndarray:
        return np.zeros(m, dtype=bool)

    return Crowd(
        active=no(), mode=whole(), lane=whole(), s=zeros(), sense=np.ones(m), offset=zeros(), pace=np.ones(m),
        bold=no(), waited=zeros(), target=np.zeros((m, 2)), target_lane=whole(), target_s=zeros(), x=np.full(m, FAR_M),
        y=np.full(m, FAR_M), z=zeros(), yaw=zeros(), speed=zeros(), height=np.ones(m), colour=np.zeros((m, 3)),
        serial=whole(),
    )  # fmt: skip


class Pedestrians:
    """M people around the ego. A map without sidewalks has none."""

    def __init__(self, graph: LaneGraph, m: int, rng: np.random.Generator) -> None:
        self.graph, self.rng = graph, rng
        self._kerb = _kerb_places(graph)
        self.crowd = _new_crowd(m if len(self._kerb[0]) else 0)
        self._next_serial = FIRST_SERIAL
        self._steps = 0

    def populate(self, ego_x: float, ego_y: float, ego_yaw: float) -> None:
        """Set everybody down around the ego."""
        for i in range(len(self.crowd.s)):
            self._set_down(i, ego_x, ego_y, ego_yaw, seen_m=SPAWN_M[0])

    def bodies(self) -> Bodies:
        """Footprints of people; those crossing also where they will be soon, so that drivers brake in time."""
        c = self.crowd
        size = np.full(len(c.s), SIZE_M / 2.0)
        real = Bodies(c.x, c.y, c.z, c.yaw, c.speed, size, size)
        on = np.flatnonzero(c.active & (c.mode == CROSSING))
        ghosts = [self._ghosts(on, ahead) for ahead in GHOST_S] if len(on) else []
        return Bodies.join([real, *ghosts])

    def _ghosts(self, rows: np.ndarray, ahead_s: float) -> Bodies:
        c = self.crowd
        reach = c.speed[rows] * ahead_s
        size = np.full(len(rows), SIZE_M / 2.0)
        x, y = c.x[rows] + reach * np.cos(c.yaw[rows]), c.y[rows] + reach * np.sin(c.yaw[rows])
        return Bodies(x, y, c.z[rows], c.yaw[rows], np.zeros(len(rows)), size, size)

    def step(self, dt: float, vehicles: Bodies) -> None:
        """Move everybody. `vehicles`: the ego in row 0, then other vehicles."""
        c = self.crowd
        if len(c.s) == 0:
            return
        self._recycle(vehicles)
        self._walk(dt)
        for i in np.flatnonzero(c.active & (c.mode == WAITING)):
            self._wait(int(i), dt, vehicles)
        crossing = np.flatnonzero(c.active & (c.mode == CROSSING))
        if len(crossing):
            self._cross(crossing, dt, vehicles)

    def _walk(self, dt: float) -> None:
        """Along the sidewalk; at its end turn round or cross; now and then cross mid-block."""
        c, graph = self.crowd, self.graph
        on = c.active & (c.mode == WALKING)
        c.speed[on] = c.pace[on]
        c.s[on] += c.sense[on] * c.speed[on] * dt
        length = graph.length[c.lane]
        at_end = on & (((c.s >= length - 1.5) & (c.sense > 0)) | ((c.s <= 1.5) & (c.sense < 0)))
        wish = self.rng.random(len(c.s))
        for i in np.flatnonzero(on & ((wish < CROSS_RATE_PER_S * dt) | at_end)):
            wants = not at_end[i] or self.rng.random() < CROSS_AT_END
            if not (wants and self._choose_target(int(i))) and at_end[i]:
                c.sense[i] = -c.sense[i]
        c.s = np.clip(c.s, 0.5, np.maximum(length - 0.5, 0.5))
        self._place(on & (c.mode == WALKING))

    def _place(self, rows: np.ndarray) -> None:
        """Position and heading of people who walk along a lane."""
        c, graph = self.crowd, self.graph
        lane, s = c.lane[rows], c.s[rows]
        xyz, yaw = graph.xyz(lane, s), graph.yaw(lane, s)
        right = graph.width[lane] / 2.0 + c.offset[rows]
        c.x[rows], c.y[rows] = xyz[:, 0] + right * np.sin(yaw), xyz[:, 1] - right * np.cos(yaw)
        c.z[rows] = xyz[:, 2] + KERB_M
        c.yaw[rows] = yaw + np.where(c.sense[rows] > 0, 0.0, math.pi)

    def _choose_target(self, i: int) -> bool:
        """Find the kerb opposite to person `i` and start waiting for a gap; False when there is none."""
        c, graph = self.crowd, self.graph
        lanes, s, places, yaws = self._kerb
        yaw = float(graph.yaw(c.lane[i : i + 1], c.s[i : i + 1])[0])
        dx, dy = places[:, 0] - c.x[i], places[:, 1] - c.y[i]
        along, left = dx * math.cos(yaw) + dy * math.sin(yaw), dy * math.cos(yaw) - dx * math.sin(yaw)
        fits = (np.abs(along) < 2.5) & (left > ROAD_WIDTH_M[0]) & (left < ROAD_WIDTH_M[1]) & (np.cos(yaws - yaw) < -0.7)
        fits &= np.abs(places[:, 2] - c.z[i]) < 2.0
        found = np.flatnonzero(fits)
        if len(found) == 0:
            return False
        best = found[np.argmin(left[found] + np.abs(along[found]))]
        c.target[i], c.target_lane[i], c.target_s[i] = places[best, :2], lanes[best], s[best]
        c.mode[i], c.waited[i], c.speed[i] = WAITING, 0.0, 0.0
        c.yaw[i] = math.atan2(c.target[i, 1] - c.y[i], c.target[i, 0] - c.x[i])
        return True

    def _wait(self, i: int, dt: float, vehicles: Bodies) -> None:
        """At the kerb: go when the gap is big enough, give up after a while."""
        c = self.crowd
        c.waited[i] += dt
        if c.waited[i] > PATIENCE_S:
            c.mode[i], c.sense[i] = WALKING, -c.sense[i]
            return
        distance, share = _ways_to_line(np.array([c.x[i], c.y[i]]), c.target[i], vehicles)
        span = float(np.hypot(c.target[i, 0] - c.x[i], c.target[i, 1] - c.y[i]))
        comes = (share > -0.1) & (share < 1.1) & (distance > -1.0) & (distance < 90.0)
        v = np.abs(vehicles.speed)
        if c.bold[i]:
            unsafe = distance < v * BOLD_REACTION_S + v * v / (2.0 * BOLD_BRAKE_MPS2) + 3.0
        else:
            unsafe = distance / np.maximum(v, 0.3) < share * span / c.pace[i] + GAP_MARGIN_S
        unsafe = np.where(v < 0.5, distance < 1.0, unsafe)
        if not (comes & unsafe).any():
            c.mode[i] = CROSSING
            c.z[i] -= KERB_M

    def _cross(self, rows: np.ndarray, dt: float, vehicles: Bodies) -> None:
        """Across the road, stopping short of vehicles that stand in the way or cannot stop any more."""
        c = self.crowd
        dx, dy = c.target[rows, 0] - c.x[rows], c.target[rows, 1] - c.y[rows]
        left = np.hypot(dx, dy)
        c.yaw[rows] = np.arctan2(dy, dx)
        c.speed[rows] = np.where(self._must_halt(rows, vehicles), 0.0, 1.15 * c.pace[rows])
        step = np.minimum(c.speed[rows] * dt, left) / np.maximum(left, 1e-6)
        c.x[rows] += dx * step
        c.y[rows] += dy * step
        for i in rows[left < 0.15]:
            c.mode[i], c.lane[i], c.s[i] = WALKING, c.target_lane[i], c.target_s[i]
            c.sense[i] = 1.0 if self.rng.random() < 0.5 else -1.0
            c.offset[i] = SIDEWALK_OFFSET_M[0]

    def _must_halt(self, rows: np.ndarray, vehicles: Bodies) -> np.ndarray:
        """(K,) bool for people on the road."""
        c = self.crowd
        heading = c.yaw[rows]
        cos_v, sin_v = np.cos(vehicles.yaw), np.sin(vehicles.yaw)

        def in_frame(ahead_m: float) -> tuple[np.ndarray, np.ndarray]:
            px = (c.x[rows] + ahead_m * np.cos(heading))[:, None] - vehicles.x
            py = (c.y[rows] + ahead_m * np.sin(heading))[:, None] - vehicles.y
            return px * cos_v + py * sin_v, py * cos_v - px * sin_v

        along, side = in_frame(0.9)
        body = (np.abs(along) < vehicles.half_length + 0.5) & (np.abs(side) < vehicles.half_width + 0.3)
        now_along, now_side = in_frame(0.0)
        arrives = (now_along - vehicles.half_length) / np.maximum(vehicles.speed, 0.1)
        outside = np.abs(now_side) > vehicles.half_width + 0.35
        nearing = (np.abs(side) < np.abs(now_side)) & (np.abs(now_side) < vehicles.half_width + 2.0)
        passing = (
            (vehicles.speed > 1.5) & (arrives < 1.2) & (now_along > -vehicles.half_length - 0.5) & outside & nearing
        )
        return (body | passing).any(axis=1)

    def _recycle(self, vehicles: Bodies) -> None:
        c = self.crowd
        self._steps += 1
        if self._steps % 10:
            return
        x, y, yaw = float(vehicles.x[0]), float(vehicles.y[0]), float(vehicles.yaw[0])
        far = np.hypot(c.x - x, c.y - y) > MAX_DISTANCE_M
        for i in np.flatnonzero(far | ~c.active)[:2]:
            self._set_down(int(i), x, y, yaw, SPAWN_SEEN_M)

    def _set_down(self, i: int, x: float, y: float, yaw: float, seen_m: float) -> None:
        """Put person `i` on a sidewalk in the ring around (x, y); off the map if there is none."""
        c, rng = self.crowd, self.rng
        lanes, s, places, _ = self._kerb
        dx, dy = places[:, 0] - x, places[:, 1] - y
        far = np.hypot(dx, dy)
        seen = dx * math.cos(yaw) + dy * math.sin(yaw) > 0.3 * far
        options = np.flatnonzero((far > np.where(seen, seen_m, SPAWN_M[0])) & (far < SPAWN_M[1]))
        c.active[i], c.x[i], c.y[i] = False, FAR_M, FAR_M
        if len(options) == 0:
            return
        place = int(options[rng.integers(len(options))])
        c.active[i], c.mode[i], c.lane[i], c.s[i] = True, WALKING, lanes[place], s[place]
        c.sense[i] = 1.0 if rng.random() < 0.5 else -1.0
        c.offset[i], c.pace[i] = rng.uniform(*SIDEWALK_OFFSET_M), rng.uniform(0.9, 1.7)
        c.bold[i] = rng.random() < BOLD_SHARE
        c.height[i] = rng.uniform(1.1, 1.4) if rng.random() < 0.12 else rng.uniform(1.55, 1.92)
        c.colour[i] = np.clip(CLOTHES[rng.integers(len(CLOTHES))] + rng.normal(0.0, 0.04, size=3), 0.02, 1.0)
        c.serial[i], self._next_serial = self._next_serial, self._next_serial + 1
        self._place(np.array([i]))

    def actors(self) -> list[ActorState]:
        """Everybody on the map."""
        c, on = self.crowd, np.flatnonzero(self.crowd.active)
        columns = [column[on].tolist() for column in (c.serial, c.x, c.y, c.z, c.yaw, c.speed, c.height)]
        return [
            ActorState(number, "pedestrian", -1, 0.0, x, y, z, yaw, speed, 0.0, SIZE_M, SIZE_M, height, tuple(colour))
            for number, x, y, z, yaw, speed, height, colour in zip(*columns, c.colour[on].tolist(), strict=True)
        ]

    def snapshot(self) -> tuple:
        """Everything that a later `restore` needs."""
        return self.crowd.copy(), copy.deepcopy(self.rng.bit_generator.state), self._next_serial, self._steps

    def restore(self, saved: tuple) -> None:
        crowd, rng_state, self._next_serial, self._steps = saved
        self.crowd = crowd.copy()
        self.rng.bit_generator.state = copy.deepcopy(rng_state)


def _ways_to_line(start: np.ndarray, end: np.ndarray, vehicles: Bodies) -> tuple[np.ndarray, np.ndarray]:
    """Where each vehicle, going straight on, meets the line start-end: (bumper distance m, share 0..1 of the line)."""
    ux, uy = end - start
    cos_v, sin_v = np.cos(vehicles.yaw), np.sin(vehicles.yaw)
    cross = cos_v * uy - sin_v * ux
    cross = np.where(np.abs(cross) < 1e-6, 1e-6, cross)
    px, py = start[0] - vehicles.x, start[1] - vehicles.y
    return (px * uy - py * ux) / cross - vehicles.half_length, (px * sin_v - py * cos_v) / cross


def _kerb_places(graph: LaneGraph) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Places on sidewalks near the kerb every 2 m: lane (K,), s (K,), xyz (K, 3), lane heading (K,)."""
    lanes, s = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    for lane in np.flatnonzero(graph.sidewalk & (graph.junction < 0) & (graph.length > 6.0)):
        places = np.arange(2.0, graph.length[lane] - 1.5, 2.0)
        lanes.append(np.full(len(places), lane))
        s.append(places)
    lane_rows, s_rows = np.concatenate(lanes), np.concatenate(s)
    xyz, yaw = graph.xyz(lane_rows, s_rows), graph.yaw(lane_rows, s_rows)
    right = graph.width[lane_rows] / 2.0 + SIDEWALK_OFFSET_M[0]
    xyz[:, 0] += right * np.sin(yaw)
    xyz[:, 1] -= right * np.cos(yaw)
    return lane_rows, s_rows, xyz, yaw
