"""A route as the expert sees it: resampled centre line with heading, curvature, speed profile, lights and junctions along it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter1d

from wamdiff2_core.scene import Command

STEP_M = 0.5
EXTEND_M = 90.0  # straight continuation behind the end of the route, so that a rollout never runs out of road
LATERAL_ACCELERATION = 2.2  # m/s^2, comfort in curves
CURVE_DECELERATION = 1.6  # m/s^2, when slowing for a curve or a lower limit
MIN_CURVE_SPEED = 2.5  # m/s


@dataclass(frozen=True)
class StopLine:
    """A stop line on the route at arc length `s` (m), controlled by light group `group`."""

    s: float
    group: int


@dataclass(frozen=True)
class JunctionSpan:
    """Route section `start`..`end` (m) inside junction `junction_id`, taken with `turn`; `lane_id` is the first lane inside."""

    start: float
    end: float
    junction_id: int
    turn: Command
    lane_id: int
    signalised: bool
    heading_in: float


class RouteProfile:
    """Arrays over arc length, spacing `STEP_M`, from 0 to the route's end plus `EXTEND_M`.

    xy (N, 2) m, heading (N,) rad unwrapped, curvature (N,) 1/m left positive, speed (N,) m/s (limits, curves and the braking
    before them), limit (N,) m/s (signs only).
    """

    def __init__(self, road_map, route) -> None:
        s = np.asarray(route.s, dtype=np.float64)
        points = np.asarray(route.points, dtype=np.float64)[:, :2]
        self.length = float(s[-1])
        grid = np.arange(0.0, self.length, STEP_M)
        xy = np.stack([np.interp(grid, s, points[:, 0]), np.interp(grid, s, points[:, 1])], axis=1)
        self.xy = _extend(_smooth(xy))
        self.heading = _heading(self.xy)
        self.curvature = gaussian_filter1d(np.gradient(self.heading) / STEP_M, 1.5)
        spans = _lane_spans(route, s)
        self.limit = _limits(road_map, spans, len(self.xy))
        curve = np.sqrt(LATERAL_ACCELERATION / np.maximum(np.abs(self.curvature), 1e-4))
        self.speed = _braking_profile(np.minimum(self.limit, np.maximum(curve, MIN_CURVE_SPEED)))
        self.stop_lines = _stop_lines(road_map, spans)
        self.junctions = _junctions(road_map, spans, self.heading)
        self._lists = (self.xy[:, 0].tolist(), self.xy[:, 1].tolist(), self.heading.tolist(),
                       self.curvature.tolist(), self.speed.tolist(), self.limit.tolist())  # fmt: skip

    @property
    def lists(self) -> tuple[list[float], ...]:
        """x, y, heading, curvature, speed, limit as Python lists: scalar look-ups in a rollout are faster in lists."""
        return self._lists

    def project(self, x: float, y: float, s_hint: float, window: float = 12.0) -> tuple[float, float]:
        """Arc length (m) and signed lateral offset (m, left positive) of a map point near `s_hint`."""
        low = max(0, int((s_hint - window) / STEP_M))
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
    """Take kinks at lane joints out of the line; the mirrored ends stay in place."""
    if len(xy) < 8:
        return xy
    return gaussian_filter1d(xy, 1.5, axis=0, mode="mirror") if len(xy) > 8 else xy


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


def _lane_spans(route, s: np.ndarray) -> list[tuple[int, float, float]]:
    """(lane id, start, end) of each run of points on one lane; a lane driven twice gives two runs."""
    ids = np.asarray(route.point_lane_ids)
    cuts = np.flatnonzero(np.diff(ids)) + 1
    starts = np.concatenate([[0], cuts])
    ends = np.concatenate([cuts, [len(ids) - 1]])
    return [(int(ids[a]), float(s[a]), float(s[b])) for a, b in zip(starts, ends, strict=True)]


def _limits(road_map, spans, count: int) -> np.ndarray:
    limit = np.empty(count)
    for lane_id, start, _ in spans:
        limit[int(start / STEP_M) :] = road_map.lanes[lane_id].speed_limit_mps
    return limit


def _braking_profile(speed: np.ndarray) -> np.ndarray:
    """Lower the speeds before slow places so that braking stays within comfort."""
    squares = speed**2
    out = squares.tolist()
    gain = 2.0 * CURVE_DECELERATION * STEP_M
    for i in range(len(out) - 2, -1, -1):
        out[i] = min(out[i], out[i + 1] + gain)
    return np.sqrt(out)


def _stop_lines(road_map, spans) -> list[StopLine]:
    lines = []
    for index, (lane_id, start, end) in enumerate(spans):
        lane = road_map.lanes[lane_id]
        if lane.light_group < 0:
            continue
        offset = end - lane.length if index == 0 else start  # the first lane may be entered in its middle
        stop_s = lane.stop_s if lane.stop_s >= 0.0 else max(lane.length - 1.0, 0.0)  # -1: no painted line
        if offset + stop_s <= end + 1.5:
            lines.append(StopLine(float(offset + stop_s), int(lane.light_group)))
    return lines


def _junctions(road_map, spans, heading: np.ndarray) -> list[JunctionSpan]:
    signalised = {group.junction_id for group in road_map.light_groups.values()}
    out: list[JunctionSpan] = []
    for lane_id, start, end in spans:
        lane = road_map.lanes[lane_id]
        if lane.junction_id < 0:
            continue
        if out and out[-1].junction_id == lane.junction_id and abs(out[-1].end - start) < 1.5:
            last = out[-1]
            out[-1] = JunctionSpan(last.start, end, last.junction_id, last.turn, last.lane_id, last.signalised,
                                   last.heading_in)  # fmt: skip
            continue
        facing = float(heading[min(int(start / STEP_M), len(heading) - 1)])
        out.append(JunctionSpan(start, end, lane.junction_id, lane.turn, lane_id, lane.junction_id in signalised, facing))
    return out
