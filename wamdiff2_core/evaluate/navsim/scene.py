"""A scene to be scored, as arrays: the ego, its past, the map, other road users, the reference plan.

Read from the plain format of scene files (docs/navsim.md). Global positions become offsets from the ego's
start, because maps lie at millions of metres.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.navsim import fields
from wamdiff2_core.evaluate.navsim import vehicle as car
from wamdiff2_core.evaluate.navsim.fields import distinct, listed, number, numbers, size, steps_between, text
from wamdiff2_core.evaluate.navsim.geometry import edges_of
from wamdiff2_core.evaluate.navsim.vehicle import PLAN_POSES, POSES

LANES = ("LANE", "LANE_CONNECTOR")
DRIVABLE = ("ROADBLOCK", "INTERSECTION", "DRIVABLE_AREA", "CARPARK_AREA")
INTERSECTION = "INTERSECTION"
AGENTS = ("vehicle", "pedestrian", "bicycle")
STATIC = ("traffic_cone", "barrier", "czone_sign", "generic_object")
LIGHTS = ("red", "yellow", "green", "unknown")
TRACK_POSES = 51  # 0 ... 5.0 s
STOPPED_MPS = 0.05
LONGEST_PAST_S = 60.0


@dataclass(frozen=True)
class Area:
    """A polygon of the map: edges (4, V, 1), see `edges_of`, and its bounds."""

    id: str
    kind: str
    on_route: bool
    edges: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Objects:
    """Other road users: poses (O, 51, 3) of box centres at 0.1 s (NaN: absent), half sizes (O, 2).

    agent: hit means 0, else 0.5. stopped: static, or standing in its first frame.
    """

    poses: np.ndarray
    half: np.ndarray
    agent: np.ndarray
    stopped: np.ndarray

    def __len__(self) -> int:
        return len(self.half)

    def only(self, which: np.ndarray) -> Objects:
        return Objects(self.poses[which], self.half[which], self.agent[which], self.stopped[which])


@dataclass(frozen=True)
class Before:
    """The plan of the frame before: its age in steps of 0.1 s, its start state (11,) and its path (41, 3)."""

    steps: int
    start: np.ndarray
    path: np.ndarray


@dataclass(frozen=True)
class Scene:
    """All that scoring needs. Positions are relative to `origin` (2,); paths are (41, 3) at 0.1 s."""

    id: str
    origin: np.ndarray
    start: np.ndarray
    past: np.ndarray  # (14, 11) states at -1.5 ... -0.2 s
    areas: tuple[Area, ...]
    centreline: np.ndarray  # (V, 2)
    red: tuple[tuple[np.ndarray, np.ndarray], ...]  # edges of a connector of the route, (41,) whether it is red
    objects: Objects
    reference: np.ndarray
    plan: np.ndarray  # (8, 3), in the frame of the ego
    human: np.ndarray | None  # (8, 3)
    before: Before | None
    kept: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)  # what scoring makes of it once


def read_scene(record: object) -> Scene:
    """A scene out of its plain form. DataError names what is missing, of a wrong shape, not finite or there twice."""
    name = text(record, "id", "scene")
    ego = fields.field(record, "ego", name)
    origin = numbers(fields.field(ego, "pose", f"{name}.ego"), (3,), f"{name}.ego.pose")[:2].copy()
    areas = _areas(fields.field(record, "map", name), origin, name)
    human = record.get("human") if isinstance(record, dict) else None
    previous = record.get("previous") if isinstance(record, dict) else None
    return Scene(
        id=name,
        origin=origin,
        start=_state(ego, origin, f"{name}.ego"),
        past=_past(listed(record, "ego_past", name), origin, name),
        areas=areas,
        centreline=_centreline(fields.field(record, "route_centerline", name), origin, name),
        red=_red_lights(listed(record, "traffic_lights", name), areas, name),
        objects=_objects(record, origin, name),
        reference=_moved(numbers(fields.field(record, "reference", name), (POSES, 3), f"{name}.reference"), origin),
        plan=_plan(fields.field(record, "plan", name), f"{name}.plan"),
        human=None if human is None else _plan(human, f"{name}.human"),
        before=None if previous is None else _before(previous, origin, name),
    )


def _between() -> np.ndarray:
    """Matrix (41, 9) from nine knots at 0.5 s to poses at 0.1 s, straight between knots."""
    at = np.arange(POSES) * car.STEP_S / car.PLAN_STEP_S
    left = np.minimum(at.astype(int), PLAN_POSES - 1)
    matrix = np.zeros((POSES, PLAN_POSES + 1))
    matrix[np.arange(POSES), left] = 1.0 - (at - left)
    matrix[np.arange(POSES), left + 1] += at - left
    return matrix


_BETWEEN = _between()


def unwrapped(angles: np.ndarray) -> np.ndarray:
    """np.unwrap along the last axis, in a fifth of its time where nothing jumps."""
    if (np.abs(np.diff(angles)) < np.pi).all():
        return angles
    return np.unwrap(angles)


def path_of(plans: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Paths (N, 41, 3) at 0.1 s of plans (N, 8, 3) in the frame of a start state, which goes in front."""
    x, y, heading = start[: car.HEADING + 1]
    cos, sin = np.cos(heading), np.sin(heading)
    knots = np.empty((len(plans), PLAN_POSES + 1, 3))
    knots[:, 0] = x, y, heading
    knots[:, 1:, 0] = x + plans[..., 0] * cos - plans[..., 1] * sin
    knots[:, 1:, 1] = y + plans[..., 0] * sin + plans[..., 1] * cos
    knots[:, 1:, 2] = car.wrapped(heading + plans[..., 2])
    knots[..., 2] = unwrapped(knots[..., 2])
    return _BETWEEN @ knots


def _plan(value: object, where: str) -> np.ndarray:
    return numbers(value, (PLAN_POSES, 3), where)


def _moved(poses: np.ndarray, origin: np.ndarray) -> np.ndarray:
    moved = poses.copy()
    moved[..., :2] -= origin
    return moved


def _state(record: object, origin: np.ndarray, where: str) -> np.ndarray:
    state = np.zeros(len(car.COLUMNS))
    state[: car.HEADING + 1] = _moved(numbers(fields.field(record, "pose", where), (3,), f"{where}.pose"), origin)
    state[[car.SPEED_X, car.SPEED_Y]] = numbers(fields.field(record, "velocity", where), (2,), f"{where}.velocity")
    state[[car.ACCEL_X, car.ACCEL_Y]] = numbers(
        fields.field(record, "acceleration", where), (2,), f"{where}.acceleration"
    )
    state[car.STEER] = number(record, "steering", where)
    return state


def _past(records: list, origin: np.ndarray, name: str) -> np.ndarray:
    """States at 10 Hz up to 0.2 s ago: the official code leaves out the last step before now. Angular rates are 0."""
    where = f"{name}.ego_past"
    times = np.array([number(record, "t", f"{where}[{i}]") for i, record in enumerate(records)])
    if len(times) < 2 or (np.diff(times) <= 0).any() or abs(times[-1]) > 1e-6 or times[0] < -LONGEST_PAST_S:
        raise DataError(f"{where}: expected two or more states with rising t that end at 0, got t {times.tolist()}")
    states = np.stack([_state(record, origin, f"{where}[{i}]") for i, record in enumerate(records)])
    states[:, car.HEADING] = np.unwrap(states[:, car.HEADING])
    count = round(-times[0] / car.STEP_S)
    at = times[0] + np.arange(max(count - 1, 0)) * car.STEP_S
    return np.stack([np.interp(at, times, column) for column in states.T], axis=1)


def _areas(record: object, origin: np.ndarray, name: str) -> tuple[Area, ...]:
    areas = []
    for index, polygon in enumerate(listed(record, "polygons", f"{name}.map")):
        where = f"{name}.map.polygons[{index}]"
        kind, on_route = text(polygon, "type", where), fields.field(polygon, "on_route", where)
        if kind not in LANES + DRIVABLE or not isinstance(on_route, bool):
            raise DataError(f"{where}: expected on_route and a type of {LANES + DRIVABLE}, got {on_route!r}, {kind!r}")
        ring = numbers(fields.field(polygon, "exterior", where), (None, 2), f"{where}.exterior") - origin
        if len(ring) > 1 and (ring[0] == ring[-1]).all():
            ring = ring[:-1]
        if len(ring) < 3:
            raise DataError(f"{where}.exterior: expected three points or more, got {len(ring)}")
        areas.append(
            Area(text(polygon, "id", where), kind, on_route, edges_of(ring), ring.min(axis=0), ring.max(axis=0))
        )
    distinct((area.id for area in areas), f"{name}.map.polygons")
    return tuple(areas)


def _centreline(value: object, origin: np.ndarray, name: str) -> np.ndarray:
    line = numbers(value, (None, 3), f"{name}.route_centerline")[:, :2] - origin
    if len(line) < 2:
        raise DataError(f"{name}.route_centerline: expected two points or more, got {len(line)}")
    return line


def _red_lights(records: list, areas: tuple[Area, ...], name: str) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Connectors of the route that are red at some step."""
    by_id = {area.id: area for area in areas}
    lights = []
    for index, record in enumerate(records):
        where = f"{name}.traffic_lights[{index}]"
        connector, state = text(record, "lane_connector_id", where), fields.field(record, "state", where)
        states = [state] * POSES if isinstance(state, str) else state
        if not isinstance(states, list) or len(states) != POSES or any(one not in LIGHTS for one in states):
            raise DataError(f"{where}.state: expected one of {LIGHTS} or a list of {POSES}, got {state!r}")
        if connector not in by_id:
            raise DataError(f"{where}: no polygon has the id {connector!r}")
        red = np.array([one == "red" for one in states])
        if by_id[connector].on_route and red.any():
            lights.append((by_id[connector].edges, red))
    distinct((record["lane_connector_id"] for record in records), f"{name}.traffic_lights")
    return tuple(lights)


def _objects(record: object, origin: np.ndarray, name: str) -> Objects:
    agents, statics = listed(record, "agents", name), listed(record, "static_objects", name)
    rows = [_agent(one, f"{name}.agents[{index}]") for index, one in enumerate(agents)]
    rows += [_static(one, f"{name}.static_objects[{index}]") for index, one in enumerate(statics)]
    distinct((one["token"] for one in agents + statics), f"{name}: objects")
    poses = np.array([row[0] for row in rows]).reshape(-1, TRACK_POSES, 3)
    half = np.array([row[1] for row in rows]).reshape(-1, 2)
    agent = np.arange(len(rows)) < len(agents)
    return Objects(_moved(poses, origin), half, agent, np.array([row[2] for row in rows], dtype=bool))


def _agent(record: object, where: str) -> tuple[np.ndarray, list[float], bool]:
    """Poses (51, 3), half size, whether it stands in its first frame."""
    _kind(record, AGENTS, where)
    poses, half = _track(record, where)
    first = next(row for row in record["track"] if row is not None)  # type: ignore[index]
    return poses, half, bool(abs(first[3]) <= STOPPED_MPS)


def _track(record: object, where: str) -> tuple[np.ndarray, list[float]]:
    """Poses (51, 3), NaN where it is absent, and half size."""
    track = listed(record, "track", where)
    present = np.array([row is not None for row in track])
    rows = numbers([row for row in track if row is not None], (None, 4), f"{where}.track")
    if len(track) != TRACK_POSES:
        raise DataError(f"{where}.track: expected {TRACK_POSES} entries, got {len(track)}")
    poses = np.full((TRACK_POSES, 3), np.nan)
    poses[present] = rows[:, :3]
    return poses, _half(record, where)


def _static(record: object, where: str) -> tuple[np.ndarray, list[float], bool]:
    _kind(record, STATIC, where)
    if isinstance(record, dict) and "track" in record:
        return *_track(record, where), True
    pose = [number(record, key, where) for key in ("x", "y", "heading")]
    return np.tile(pose, (TRACK_POSES, 1)), _half(record, where), True


def _kind(record: object, kinds: tuple[str, ...], where: str) -> None:
    text(record, "token", where)
    if text(record, "type", where) not in kinds:
        raise DataError(f"{where}.type: expected one of {kinds}, got {fields.field(record, 'type', where)!r}")


def _half(record: object, where: str) -> list[float]:
    return [size(record, "length", where) / 2, size(record, "width", where) / 2]


def _before(record: object, origin: np.ndarray, name: str) -> Before:
    where = f"{name}.previous"
    start = _state(fields.field(record, "ego", where), origin, f"{where}.ego")
    plan = _plan(fields.field(record, "plan", where), f"{where}.plan")
    return Before(steps_between(record, "dt", where), start, path_of(plan[None], start)[0])
