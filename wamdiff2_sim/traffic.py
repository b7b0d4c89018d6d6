"""Other vehicles: cars, trucks and cyclists that follow lanes, leaders, lights and the right of way around the ego.

All vehicles move in one set of numpy calls (IDM car following). They live in a ring around the ego: who gets too far
is taken off the road and set down again elsewhere in the ring, out of sight.
"""

from __future__ import annotations

import copy
import math

import numpy as np

from wamdiff2_sim.corridor import MARGIN_M, SAMPLE_M, Bodies, Leaders, find_leaders
from wamdiff2_sim.fleet import CYCLIST, KIND_NAMES, QUEUE, TRUCK, dress, new_fleet, remove
from wamdiff2_sim.lane_graph import BRAKE_COMFORT_MPS2, LaneGraph
from wamdiff2_sim.right_of_way import Entries, Holder, RightOfWay, must_stop, next_entries
from wamdiff2_sim.types import ActorState

MAX_ACCEL_MPS2 = 1.9
COMFORT_BRAKE_MPS2 = 2.2
HARD_BRAKE_MPS2 = 8.0
JAM_GAP_M = 1.8
LINE_GAP_M = 0.6
CYCLIST_MPS = 4.6
CREEP_MPS = 2.5
MAX_DISTANCE_M = 120.0
SPAWN_FIRST_M = (12.0, 105.0)
SPAWN_LATER_M = (55.0, 112.0)
SPAWN_AHEAD_M = 80.0
SLOT_STEP_M = 7.0
FREE_AROUND_M = 13.0
FOCUS_SHARE, FOCUS_RADIUS_M = 0.3, 14.0
STILL_S = 0.3  # m/s under which a vehicle counts as standing
GIVE_UP_STILL_S = 45.0
REMOVE_STILL_S = 90.0
MUTUAL_BLOCK_S = 4.0
RECYCLE_EVERY = 10


class Traffic:
    """N vehicles around the ego on a LaneGraph. All randomness comes from the generator given; `fleet` is the whole
    state beside it."""

    def __init__(self, graph: LaneGraph, n: int, rng: np.random.Generator) -> None:
        self.graph = graph
        self.rng = rng
        self.fleet = new_fleet(n, rng)
        self.rules = RightOfWay(graph)
        self._slots = _spawn_slots(graph)
        self.focus = np.zeros((0, 2))  # places (K, 2) around which half of the vehicles are set down: the ego's way
        self._next_serial = 1
        self._steps = 0

    def populate(self, ego_x: float, ego_y: float, ego_yaw: float) -> None:
        """Set vehicles down anywhere in the ring, near the ego included. Set `focus` before."""
        for i in range(len(self.fleet)):
            remove(self.fleet, i)
            self._set_down(i, ego_x, ego_y, ego_yaw, SPAWN_FIRST_M, 0.0, tries=24)

    def bodies(self) -> Bodies:
        """Footprints of all slots; inactive ones are far away."""
        f = self.fleet
        return Bodies(f.x, f.y, f.z, f.yaw, f.speed, f.length / 2.0, f.width / 2.0)

    def step(self, dt: float, t: float, lights: np.ndarray, others: Bodies, ego: list[Holder]) -> None:
        """Move all vehicles. `others`: row 0 is the ego, then people; `lights` (G,) states; `ego`: junction lanes the
        ego claims."""
        f = self.fleet
        if len(f) == 0:
            return
        self._recycle(others)
        points, yaws = self._paths()
        leaders = self._leaders(points, yaws, others)
        entries = next_entries(f, self.graph, lights)
        stop = must_stop(entries, f.speed)
        self.rules.update(f, entries, stop, leaders.gap, ego, t)
        wanted = self._wanted_speed(entries, t)
        hold = (entries.slot > 0) & (stop | ~f.granted)
        line = np.where(hold & ((entries.distance > -1.5) | stop), np.maximum(entries.distance, 0.0), np.inf)
        f.accel = self._acceleration(wanted, leaders, line)
        self._move(dt)
        waits_for_light = stop & (entries.distance < 5.0)
        f.still = np.where((f.speed < STILL_S) & f.active & ~waits_for_light, f.still + dt, 0.0)
        self._signals()

    def _paths(self) -> tuple[np.ndarray, np.ndarray]:
        """Places (N, S, 2) and headings (N, S) of every vehicle at SAMPLE_M metres along its path; unknown ones are
        far away."""
        f, graph = self.fleet, self.graph
        along = f.s[:, None] + SAMPLE_M[None, :]
        slot = (along[:, :, None] >= f.cum[:, None, 1:]).sum(axis=2)
        rows = np.arange(len(f))[:, None]
        lane = f.path[rows, slot]
        known = lane >= 0
        lane, along = np.where(known, lane, 0), along - f.cum[rows, slot]
        known &= along < graph.length[lane] + 1.0
        row, part = graph.rows(lane, along)
        xy = graph.points[row, :2]
        xy = xy + (graph.points[row + 1, :2] - xy) * part[..., None]
        yaw = graph.heading[row] + (graph.heading[row + 1] - graph.heading[row]) * part
        shift = f.shift[:, None]
        points = np.stack([xy[..., 0] - shift * np.sin(yaw), xy[..., 1] + shift * np.cos(yaw)], axis=-1)
        points[~known] = -1.0e6
        return points, yaw

    def _leaders(self, points: np.ndarray, yaws: np.ndarray, others: Bodies) -> Leaders:
        f = self.fleet
        bodies = Bodies.join([self.bodies(), others])
        reach = np.minimum(14.0 + 3.0 * f.speed + f.speed * f.speed / 4.0, SAMPLE_M[-1])
        margin = np.where(f.kind == CYCLIST, 0.1, np.where(f.speed < 1.0, 0.15, MARGIN_M))
        leaders = find_leaders(points, yaws, bodies, reach, margin, f.active)
        self._untie(leaders)
        return leaders

    def _untie(self, leaders: Leaders) -> None:
        """Two vehicles that stand in each other's way: after a while the one with the lower row passes, slowly."""
        f, n = self.fleet, len(self.fleet)
        row = leaders.row
        mine = np.flatnonzero((row >= 0) & (row < n) & (f.still > MUTUAL_BLOCK_S))
        for i in mine:
            if (
                row[row[i]] == i
                and i < row[i]
                and abs(math.cos(f.yaw[i] - f.yaw[row[i]])) < 0.9
                and leaders.gap[i] > -0.5
            ):
                leaders.gap[i], leaders.speed[i], leaders.row[i] = 4.0, CREEP_MPS, -1

    def _wanted_speed(self, entries: Entries, t: float) -> np.ndarray:
        """Speed for limits and bends on the path ahead, by temper; impatient vehicles creep into the junction."""
        f, graph = self.fleet, self.graph
        lane = np.maximum(f.path, 0)
        cap = graph.speed_cap(lane[:, 0], f.s)
        ahead = np.maximum(f.cum[:, 1:] - f.s[:, None], 0.0)
        entry = np.where(f.path[:, 1:] >= 0, graph.entry_cap[lane[:, 1:]], 50.0)
        cap = np.minimum(cap, np.sqrt(entry * entry + 2.0 * BRAKE_COMFORT_MPS2 * ahead).min(axis=1))
        cap = np.where(
            f.kind == CYCLIST, np.minimum(cap, CYCLIST_MPS), np.where(f.kind == TRUCK, np.minimum(cap, 19.0), cap)
        )
        creeps = f.granted & (t - f.asked_at > 8.0) & (entries.distance < 4.0)
        return np.where(creeps, CREEP_MPS, cap * f.temper)

    def _acceleration(self, wanted: np.ndarray, leaders: Leaders, line: np.ndarray) -> np.ndarray:
        """IDM towards the wanted speed, behind the leader and before the stop line."""
        v = self.fleet.speed
        ratio = v / np.maximum(wanted, 0.5)
        free = np.where(ratio <= 1.0, MAX_ACCEL_MPS2 * (1.0 - ratio**4), -np.minimum(2.5, 2.0 * (v - wanted)))
        follow = _interaction(v, v - leaders.speed, leaders.gap, JAM_GAP_M, self.fleet.headway)
        stop = _interaction(v, v, line, LINE_GAP_M, 0.4)
        accel = np.minimum(free, np.minimum(follow, stop))
        accel = np.where((leaders.gap < 0.4) | (line < 0.05), -HARD_BRAKE_MPS2, accel)
        return np.maximum(accel, -HARD_BRAKE_MPS2)

    def _move(self, dt: float) -> None:
        f = self.fleet
        before = f.speed
        f.speed = np.where(f.active, np.maximum(before + f.accel * dt, 0.0), 0.0)
        f.accel = (f.speed - before) / dt
        f.s = f.s + 0.5 * (before + f.speed) * dt
        lane = np.maximum(f.path[:, 0], 0)
        for i in np.flatnonzero(f.active & (f.s >= self.graph.length[lane])):
            self._next_lane(int(i))
        self.place()

    def place(self) -> None:
        """Update x, y, z, yaw from lane, s and shift."""
        f, graph = self.fleet, self.graph
        on = f.active
        lane, s = f.path[on, 0], f.s[on]
        xyz, yaw = graph.xyz(lane, s), graph.yaw(lane, s)
        shift = f.shift[on]
        f.x[on], f.y[on] = xyz[:, 0] - shift * np.sin(yaw), xyz[:, 1] + shift * np.cos(yaw)
        f.z[on], f.yaw[on] = xyz[:, 2], yaw

    def _next_lane(self, i: int) -> None:
        """Vehicle `i` has come to its lane's end: the queue moves up by one."""
        f, graph = self.fleet, self.graph
        left = int(f.path[i, 0])
        if f.path[i, 1] < 0:  # the road ends here
            remove(f, i)
            return
        f.s[i] -= graph.length[left]
        f.previous[i] = left
        f.path[i, :-1] = f.path[i, 1:]
        f.path[i, -1] = -1
        self._fill(i)
        if graph.junction[f.path[i, 0]] >= 0 and graph.junction[f.path[i, 0]] != graph.junction[left]:
            f.granted[i], f.asked_at[i] = False, np.inf

    def _fill(self, i: int) -> None:
        """Choose lanes until the queue of vehicle `i` is full, and add up their lengths."""
        f, graph = self.fleet, self.graph
        for k in range(1, QUEUE):
            if f.path[i, k] < 0 and f.path[i, k - 1] >= 0:
                options = graph.successors[int(f.path[i, k - 1])]
                onward = [o for o in options if graph.successors[o]] or options
                if onward:
                    f.path[i, k] = onward[int(self.rng.integers(len(onward)))]
        lengths = np.where(f.path[i] >= 0, graph.length[np.maximum(f.path[i], 0)], 0.0)
        f.cum[i, 1:] = np.cumsum(lengths)[:-1]

    def _signals(self) -> None:
        f, graph = self.fleet, self.graph
        stands = (f.speed < 0.2) & (f.accel < 0.1)
        f.braking = f.active & ((f.accel < -0.6) | stands) & (f.kind != CYCLIST)
        near = (f.path >= 0) & (f.cum - f.s[:, None] < 35.0)
        signs = np.where(near, graph.turn_sign[np.maximum(f.path, 0)], 0)
        first = (signs != 0).argmax(axis=1)
        f.indicator = np.where(f.kind != CYCLIST, signs[np.arange(len(f)), first], 0).astype(np.int8)

    def _recycle(self, others: Bodies) -> None:
        """Take distant and hopelessly stuck vehicles away, and set one or two down elsewhere."""
        f = self.fleet
        self._steps += 1
        if self._steps % RECYCLE_EVERY:
            return
        x, y, yaw = float(others.x[0]), float(others.y[0]), float(others.yaw[0])
        far = np.hypot(f.x - x, f.y - y)
        hidden = (far > 50.0) | ((f.x - x) * math.cos(yaw) + (f.y - y) * math.sin(yaw) < -10.0)
        gone = (far > MAX_DISTANCE_M) | ((f.still > GIVE_UP_STILL_S) & hidden) | (f.still > REMOVE_STILL_S)
        for i in np.flatnonzero(f.active & gone):
            remove(f, int(i))
        for i in np.flatnonzero(~f.active)[:2]:
            self._set_down(int(i), x, y, yaw, SPAWN_LATER_M, SPAWN_AHEAD_M)

    def _set_down(
        self, i: int, x: float, y: float, yaw: float, ring: tuple[float, float], ahead_m: float, tries: int = 6
    ) -> None:
        """Put slot `i` on a free place of the ring around (x, y), or leave it off the road if none is found in a few
        tries."""
        f, graph = self.fleet, self.graph
        lanes, s, places = self._slots
        dx, dy = places[:, 0] - x, places[:, 1] - y
        far = np.hypot(dx, dy)
        seen = dx * math.cos(yaw) + dy * math.sin(yaw) > 0.3 * far
        options = np.flatnonzero((far > np.where(seen, max(ring[0], ahead_m), ring[0])) & (far < ring[1]))
        if len(self.focus) and len(options) and self.rng.random() < FOCUS_SHARE:
            gaps = places[options, None, :2] - self.focus[None, :, :]
            close = ((gaps * gaps).sum(axis=2) < FOCUS_RADIUS_M**2).any(axis=1)
            options = options[close] if close.any() else options
        for _ in range(tries if len(options) else 0):
            slot = int(options[self.rng.integers(len(options))])
            if np.hypot(f.x - places[slot, 0], f.y - places[slot, 1]).min() < FREE_AROUND_M:
                continue
            remove(f, i)
            dress(f, i, self.rng)
            lane = int(lanes[slot])
            if f.kind[i] == CYCLIST and not graph.rightmost[lane]:
                continue
            f.active[i], f.path[i, 0], f.s[i] = True, lane, s[slot]
            f.shift[i] = -(graph.width[lane] / 2.0 - 0.15) if f.kind[i] == CYCLIST else 0.0
            self._fill(i)
            f.speed[i] = min(0.6 * float(graph.speed_cap(lanes[slot : slot + 1], s[slot : slot + 1])[0]), 9.0)
            f.speed[i] = min(f.speed[i], CYCLIST_MPS) if f.kind[i] == CYCLIST else f.speed[i]
            f.serial[i], self._next_serial = self._next_serial, self._next_serial + 1
            self.place()
            return

    def actors(self) -> list[ActorState]:
        """The vehicles on the road."""
        f, on = self.fleet, np.flatnonzero(self.fleet.active)
        names = [KIND_NAMES[kind] for kind in f.kind[on]]
        lanes = self.graph.ids[f.path[on, 0]]
        floats = (f.s, f.x, f.y, f.z, f.yaw, f.speed, f.accel, f.length, f.width, f.height)
        columns = [f.serial[on].tolist(), names, lanes.tolist(), *(column[on].tolist() for column in floats)]
        columns += [list(map(tuple, f.colour[on].tolist())), f.braking[on].tolist(), f.indicator[on].tolist()]
        return [ActorState(*row) for row in zip(*columns, strict=True)]

    def snapshot(self) -> tuple:
        """Everything that a later `restore` needs to go on exactly from here."""
        return self.fleet.copy(), copy.deepcopy(self.rng.bit_generator.state), self._next_serial, self._steps

    def restore(self, saved: tuple) -> None:
        fleet, rng_state, self._next_serial, self._steps = saved
        self.fleet = fleet.copy()
        self.rng.bit_generator.state = copy.deepcopy(rng_state)


def _interaction(
    v: np.ndarray, closing: np.ndarray, gap: np.ndarray, jam: float, headway: np.ndarray | float
) -> np.ndarray:
    """IDM's braking term against something `gap` metres ahead that we close in on with `closing` m/s."""
    dynamic = v * headway + v * closing / (2.0 * math.sqrt(MAX_ACCEL_MPS2 * COMFORT_BRAKE_MPS2))
    wanted = jam + np.maximum(dynamic, 0.0)
    return MAX_ACCEL_MPS2 * (1.0 - (wanted / np.maximum(gap, 0.05)) ** 2)


def _spawn_slots(graph: LaneGraph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places where a vehicle may appear: lane (K,), s (K,), xyz (K, 3), outside junctions and not on a lane's last
    metres."""
    lanes, s = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    for lane in np.flatnonzero((graph.junction < 0) & (graph.length > 14.0)):
        if graph.successors[lane]:
            places = np.arange(6.0, graph.length[lane] - 6.0, SLOT_STEP_M)
            lanes.append(np.full(len(places), lane))
            s.append(places)
    lane_rows, s_rows = np.concatenate(lanes), np.concatenate(s)
    return lane_rows, s_rows, graph.xyz(lane_rows, s_rows)
