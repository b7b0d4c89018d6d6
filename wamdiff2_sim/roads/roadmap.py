"""A town as lanes, junctions, lights and crosswalks.

Coordinates: right-handed world (ROS; CARLA's y negated), metres, z up, yaw counter-clockwise. Traffic drives on the
right. Arc length `s` and headings are planar (xy); z only rides along.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import Command
from wamdiff2_sim.roads.grid_index import GridIndex

MARKS = ("none", "solid_white", "broken_white", "solid_yellow", "broken_yellow")
MAPS_DIR = Path(__file__).parent / "maps"


class LanePosition(NamedTuple):
    """A place relative to a lane: arc length along its centre line, signed offset (left positive), distance (m)."""

    lane_id: int
    s: float
    lateral: float
    distance: float


@dataclass(eq=False)
class Lane:
    """One drivable lane. `points` (N, 3) float32 is the centre line in driving direction, evenly spaced at about 1 m.

    `turn` is what a junction lane does (FOLLOW elsewhere). `stop_s` is the arc length of the painted stop line, -1
    without one; `light_group` controls the lane's end, -1 for none. `left_id` / `right_id`: same-direction neighbours.
    """

    id: int
    points: np.ndarray
    width: float = 3.5
    speed_limit_mps: float = 8.33
    junction_id: int = -1
    turn: Command = Command.FOLLOW
    successors: list[int] = field(default_factory=list)
    predecessors: list[int] = field(default_factory=list)
    left_id: int = -1
    right_id: int = -1
    left_mark: str = "none"
    right_mark: str = "none"
    has_sidewalk_right: bool = False
    light_group: int = -1
    stop_s: float = -1.0

    def __post_init__(self) -> None:
        self.points = np.ascontiguousarray(self.points, dtype=np.float32)
        if self.points.ndim != 2 or self.points.shape[1] != 3 or len(self.points) < 2:
            raise DataError(f"lane {self.id}: points must be (N >= 2, 3), got {self.points.shape}")
        if self.left_mark not in MARKS or self.right_mark not in MARKS:
            raise DataError(f"lane {self.id}: marks must be of {MARKS}, got {self.left_mark!r}, {self.right_mark!r}")

    @cached_property
    def s(self) -> np.ndarray:
        """(N,) planar arc length of each point, float64."""
        steps = np.diff(self.points[:, :2].astype(np.float64), axis=0)
        return np.concatenate(([0.0], np.cumsum(np.hypot(steps[:, 0], steps[:, 1]))))

    @cached_property
    def headings(self) -> np.ndarray:
        """(N,) unwrapped tangent directions at the points, radians."""
        return polyline_headings(self.points)

    @property
    def length(self) -> float:
        return float(self.s[-1])

    def heading_at(self, s: float) -> float:
        """Driving direction at `s` (clamped to the lane), radians, not wrapped."""
        return float(np.interp(s, self.s, self.headings))

    def point_at(self, s: float) -> np.ndarray:
        """(3,) float64 point of the centre line at `s`, clamped to the lane."""
        return np.array([np.interp(s, self.s, self.points[:, axis]) for axis in range(3)])

    def edge(self, side: int, inset: float = 0.0) -> np.ndarray:
        """(N, 3) float64 border line: side +1 left, -1 right, moved `inset` metres towards the centre."""
        offset = side * (self.width / 2.0 - inset)
        return offset_polyline(self.points, self.headings, offset)

    def project(self, xy: np.ndarray) -> tuple[float, float, float]:
        """(s, lateral, distance) of the nearest place on the centre line to `xy`."""
        return project_polyline(self.points[:, :2].astype(np.float64), self.s, xy)


@dataclass(eq=False)
class LightGroup:
    """Signal heads that show one colour together. `poles`: (x, y, z, yaw) per head; yaw = direction the head faces."""

    id: int
    junction_id: int
    phase: int
    poles: list[tuple[float, float, float, float]] = field(default_factory=list)


@dataclass(eq=False)
class RoadMap:
    """A town. `junctions`: outline polygons (N, 2) by id, counter-clockwise; `crosswalks`: (4, 3) rectangles."""

    name: str
    lanes: dict[int, Lane]
    junctions: dict[int, np.ndarray] = field(default_factory=dict)
    light_groups: dict[int, LightGroup] = field(default_factory=dict)
    crosswalks: list[np.ndarray] = field(default_factory=list)

    @cached_property
    def bounds(self) -> tuple[float, float, float, float]:
        """(x_min, y_min, x_max, y_max) over all lane centre lines."""
        points = self._index.points
        low, high = points.min(axis=0), points.max(axis=0)
        return float(low[0]), float(low[1]), float(high[0]), float(high[1])

    @cached_property
    def _index(self) -> GridIndex:
        owners = np.concatenate([np.full(len(lane.points), lane.id) for lane in self.lanes.values()])
        points = np.concatenate([lane.points[:, :2] for lane in self.lanes.values()]).astype(np.float64)
        return GridIndex(points, owners)

    def lanes_near(self, xy: np.ndarray, radius: float) -> list[int]:
        """Ids of lanes with a centre point within `radius` of `xy`, ascending."""
        return [int(owner) for owner in np.unique(self._index.owners_within(xy, radius))]

    def nearest_lane(self, xy: np.ndarray, heading: float | None = None, z: float | None = None) -> LanePosition:
        """Nearest lane to `xy`. `heading` leaves out lanes more than 90 degrees off; `z` leaves out other storeys.

        If the filters leave no lane within 30 m, the nearest lane of all is given.
        """
        xy = np.asarray(xy, dtype=np.float64)[:2]
        distance = self._index.nearest_distance(xy)
        wide = distance if heading is None and z is None else max(distance, 30.0)
        positions = [LanePosition(i, *self.lanes[i].project(xy)) for i in self.lanes_near(xy, wide + 1.5)]
        fitting = [p for p in positions if self._fits(p, heading, z)]
        return min(fitting or positions, key=lambda p: p.distance)

    def _fits(self, position: LanePosition, heading: float | None, z: float | None) -> bool:
        lane = self.lanes[position.lane_id]
        if heading is not None and np.cos(lane.heading_at(position.s) - heading) <= 0.0:
            return False
        return z is None or abs(float(lane.point_at(position.s)[2]) - z) < 3.0

    def save(self, path: Path | str) -> None:
        """Write a compressed .npz (millimetre resolution, no pickle)."""
        from wamdiff2_sim.roads import mapfile

        mapfile.write(self, Path(path))


def load_map(name_or_path: str | Path) -> RoadMap:
    """`"procedural:SEED"`, a name of the shipped maps (`"Town01"`), or a path of an .npz file.

    Raises DataError when there is no such map.
    """
    from wamdiff2_sim.roads import mapfile, procedural

    text = str(name_or_path)
    if text.startswith("procedural:"):
        seed = text.removeprefix("procedural:")
        if not seed.isdigit():
            raise DataError(f"expected procedural:SEED with a whole number, got {text!r}")
        return procedural.generate(int(seed))
    path = Path(text) if text.endswith(".npz") else MAPS_DIR / f"{text}.npz"
    if not path.is_file():
        shipped = sorted(file.stem for file in MAPS_DIR.glob("*.npz"))
        raise DataError(f"no map {text!r}: expected procedural:SEED, an .npz file or one of {shipped}")
    return mapfile.read(path)


def polyline_headings(points: np.ndarray) -> np.ndarray:
    """(N,) unwrapped headings at the points of a line (N, 2 or 3); the ends are extrapolated from the inside."""
    steps = np.diff(points[:, :2].astype(np.float64), axis=0)
    segments = np.unwrap(np.arctan2(steps[:, 1], steps[:, 0]))
    if len(segments) == 1:
        return np.repeat(segments, 2)
    middle = (segments[1:] + segments[:-1]) / 2.0
    first = segments[0] - (segments[1] - segments[0]) / 2.0
    last = segments[-1] + (segments[-1] - segments[-2]) / 2.0
    return np.concatenate(([first], middle, [last]))


def offset_polyline(points: np.ndarray, headings: np.ndarray, offset: float) -> np.ndarray:
    """(N, 3) float64 line moved `offset` metres to the left of its driving direction."""
    moved = points.astype(np.float64).copy()
    moved[:, 0] -= offset * np.sin(headings)
    moved[:, 1] += offset * np.cos(headings)
    return moved


def project_polyline(line: np.ndarray, s: np.ndarray, xy: np.ndarray) -> tuple[float, float, float]:
    """(s, lateral, distance) of the place on `line` (N, 2) nearest to `xy`; lateral is left positive."""
    steps = np.diff(line, axis=0)
    lengths = np.maximum(np.hypot(steps[:, 0], steps[:, 1]), 1e-9)
    relative = np.asarray(xy, dtype=np.float64)[:2] - line[:-1]
    along = np.clip((relative * steps).sum(axis=1) / lengths, 0.0, lengths)
    gaps = relative - steps * (along / lengths)[:, None]
    squared = (gaps * gaps).sum(axis=1)
    best = int(np.argmin(squared))
    distance = float(np.sqrt(squared[best]))
    side = steps[best, 0] * relative[best, 1] - steps[best, 1] * relative[best, 0]
    return float(s[best] + along[best]), float(np.copysign(distance, side)), distance
