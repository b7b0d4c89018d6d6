"""A route as the expert sees it: resampled centre line with heading, curvature, speed profile, lights and
junctions along it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter1d

from wamdiff2_core.scene import Command
from wamdiff2_sim.roads.roadmap import RoadMap
from wamdiff2_sim.roads.route import Route
from wamdiff2_sim.types import EGO_FRONT_M

STEP_M = 0.5
EXTEND_M = 90.0  # straight continuation behind the end of the route, so that a rollout never runs out of road
LATERAL_ACCELERATION = 2.2  # m/s^2, comfort in curves
CURVE_DECELERATION = 1.6  # m/s^2, when slowing for a curve or a lower limit
MAX_SWING_M = 1.2
MIN_CURVE_SPEED = 2.5  # m/s


@dataclass(frozen=True)
class StopLine:
    """A stop line on the route at arc length `s` (m), controlled by light group `group`."""

    s: float
    group: int


@dataclass(frozen=True)
class JunctionSpan:
    """Route section `start`..`end` (m) inside junction `junction_id`, taken with `turn`; `heading_in` rad at its
    entry.
    """

    start: float
    end: float
    junction_id: int
    turn: Command
    signalised: bool
    heading_in: float


class RouteProfile:
    """Arrays over arc length, spacing `STEP_M`, from 0 to the route's end plus `EXTEND_M`.

    xy (N, 2) m, heading (N,) rad unwrapped, curvature (N,) 1/m left positive, speed (N,) m/s (limits, curves
    and the braking
    before them), limit (N,) m/s (signs only).
    """

    def __init__(self, road_map: RoadMap, route: Route) -> None:
        s = np.asarray(route.s, dtype=np.float64)
        points = np.asarray(route.points, dtype=np.float64)[:, :2]
        self.length = float(s[-1])
        grid = np.arange(0.0, self.length, STEP_M)
        xy = np.stack([np.interp(grid, s, points[:, 0]), np.interp(grid, s, points[:, 1])], axis=1)
        self.xy = _extend(_smooth(xy))
        self.heading = _heading(self.xy)
        self.curvature = gaussian_filter1d(np.gradient(self.heading) / STEP_M, 1.5)
        limits = np.asarray(route.limits_mps, dtype=np.float64)
        nearest = np.minimum(np.searchsorted(s, np.arange(len(self.xy)) * STEP_M), len(s) - 1)
        self.limit = limits[nearest]
        self.swing = _swing(self.curvature)
        curve = np.sqrt(LATERAL_ACCELERATION / np.maximum(np.abs(self.curvature), 1e-4))
        self.speed = _braking_profile(np.minimum(self.limit, np.maximum(curve, MIN_CURVE_SPEED)))
        self.stop_lines = [StopLine(float(at), int(group)) for at, group in route.stop_lines]
        self.junctions = _junctions(road_map, route, self.heading)
        self._lists = (self.xy[:, 0].tolist(), self.xy[:, 1].tolist(), self.heading.tolist(),
                       self.curvature.tolist(), self.speed.tolist(), self.limit.tolist())  # fmt: skip

    @property
    def lists(self) -> tuple[list[float], ...]:
        """x, y, heading, curvature, speed, limit as Python lists: scalar look-ups in a rollout are faster in
        lists.
        """
        return self._lists

    def project(self, x: float, y: float, s_hint: float, window: float = 12.0) -> tuple[float, float]:
        """Arc length (m) and signed lateral offset (m, left positive) of a map point near `s_hint`."""
        low = min(max(0, int((s_hint - window) / STEP_M)), len(self.xy) - 3)  # a hint beyond the end looks at the end
        high = min(len(self.xy) - 1, max(low + 2, int((s_hint + window) / STEP_M)))
        delta = self.xy[low:high] - (x, y)
        i = low + int(np.argmin(np.einsum("ij,ij->i", delta, delta)))
        c, n = math.cos(self.heading[i]), math.sin(self.heading[i])
        dx, dy = x - self.xy[i, 0], y - self.xy[i, 1]
        return i * STEP_M + dx * c + dy * n, -dx * n + dy * c

    def at(self, values: np.ndarray, s: float) -> float:
        """Value at the grid point next to arc length `s`."""
        return float(values[min(max(int(s / STEP_M + 0.5), 0), len(values) - 1)])


def _smooth(xy: np.ndarray) -> np.ndarray:
    """Take kinks at lane joints out of the line; the ends stay in place."""
    if len(xy) < 8:
        return xy
    out = gaussian_filter1d(xy, 1.5, axis=0, mode="nearest")
    out[:4], out[-4:] = xy[:4], xy[-4:]
    return out


def _extend(xy: np.ndarray) -> np.ndarray:
    direction = xy[-1] - xy[-3]
    direction /= max(float(np.hypot(*direction)), 1e-6)
    more = np.arange(1, int(EXTEND_M / STEP_M) + 1)[:, None] * STEP_M
    return np.concatenate([xy, xy[-1] + more * direction])


def _heading(xy: np.ndarray) -> np.ndarray:
    tangent = np.empty_like(xy)
    tangent[2:-2] = xy[4:] - xy[:-4]
    tangent[:2] = xy[2] - xy[0]
    tangent[-2:] = xy[-1] - xy[-3]
    return np.unwrap(np.arctan2(tangent[:, 1], tangent[:, 0]))


def _swing(curvature: np.ndarray) -> np.ndarray:
    """(N,) m, left positive: how far the front swings out of a bend at each place, the rear axle being on the line."""
    back = int(EGO_FRONT_M / STEP_M)
    before = np.concatenate(
        [np.full(back, curvature[0]), curvature]
    )  # the axle is behind the place that the front sweeps
    windows = np.lib.stride_tricks.sliding_window_view(before, back + 1)
    sharpest = np.take_along_axis(windows, np.abs(windows).argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.clip(-0.5 * EGO_FRONT_M**2 * sharpest, -MAX_SWING_M, MAX_SWING_M)


def _braking_profile(speed: np.ndarray) -> np.ndarray:
    """Lower the speeds before slow places so that braking stays within comfort."""
    squares = speed**2
    out = squares.tolist()
    gain = 2.0 * CURVE_DECELERATION * STEP_M
    for i in range(len(out) - 2, -1, -1):
        out[i] = min(out[i], out[i + 1] + gain)
    return np.sqrt(out)


def _junctions(road_map: RoadMap, route: Route, heading: np.ndarray) -> list[JunctionSpan]:
    signalised = {group.junction_id for group in road_map.light_groups.values()}
    out = []
    for start, end, turn, junction_id in route.manoeuvres:
        facing = float(heading[min(int(start / STEP_M), len(heading) - 1)])
        out.append(JunctionSpan(start, end, junction_id, turn, junction_id in signalised, facing))
    return out
