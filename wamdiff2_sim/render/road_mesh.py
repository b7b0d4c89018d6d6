"""Geometry of the streets: lane ribbons, marks, junctions, stop lines, crosswalks, kerbs and pavements."""

from __future__ import annotations

import numpy as np

from wamdiff2_sim.render import textures
from wamdiff2_sim.render.mesh import MeshBuilder, Tier, ribbon_triangles
from wamdiff2_sim.render.occupancy import Occupancy, Terrain
from wamdiff2_sim.roads.roadmap import Lane, RoadMap, offset_polyline, polyline_headings

UP = np.array([0.0, 0.0, 1.0])
WHITE, YELLOW = np.array([0.86, 0.86, 0.84]), np.array([0.88, 0.66, 0.12])
MARK_WIDTH_M, DASH_M, GAP_M = 0.16, 3.0, 4.5
MARK_Z, PAINT_Z, JUNCTION_Z, SHOULDER_Z = 0.030, 0.036, -0.015, -0.03
KERB_HEIGHT_M, SIDEWALK_M, SHOULDER_M = 0.14, 2.4, 0.45
SKIRT_M = 0.9


def add_roads(
    builder: MeshBuilder, town: RoadMap, terrain: Terrain, lanes_only: Occupancy, rng: np.random.Generator
) -> None:
    """All street surfaces of `town`. `lanes_only` holds the cells well inside lanes."""
    asphalt = np.array([0.29, 0.29, 0.30]) * rng.uniform(0.8, 1.2)
    kerb = np.array([0.60, 0.59, 0.57]) * rng.uniform(0.85, 1.1)
    paving = kerb * np.array([1.0, rng.uniform(0.92, 1.0), rng.uniform(0.85, 1.0)]) * 0.92
    paint = _Paint()
    for lane in town.lanes.values():
        _add_surface(builder, lane, asphalt)
        if lane.junction_id < 0:
            _add_marks(paint, lane)
        if lane.stop_s >= 0:
            middle, heading = lane.point_at(lane.stop_s), lane.heading_at(lane.stop_s)
            paint.block(middle[None], np.array([heading]), 0.4, lane.width - 0.3, WHITE, PAINT_Z)
        if lane.has_sidewalk_right:
            _add_sidewalk(builder, lane, lanes_only, kerb, paving)
        elif lane.right_id < 0:
            _add_skirt(builder, lane, -1, asphalt)
        if lane.left_id < 0:
            _add_skirt(builder, lane, 1, asphalt)
    for polygon in town.junctions.values():
        _add_junction(builder, polygon, terrain, asphalt)
    for corners in town.crosswalks:
        _add_crosswalk(paint, np.asarray(corners, np.float64))
    paint.add_to(builder)


class _Paint:
    """Painted rectangles, collected so that they enter the mesh in one piece."""

    def __init__(self) -> None:
        self._corners: list[np.ndarray] = []
        self._colours: list[np.ndarray] = []
        self._owners: dict[tuple[int, int], int] = {}

    def claim(self, dashes: np.ndarray, owner: int) -> np.ndarray:
        """(N,) bool: which dashes (N, 3 points, 3) are more than about 2 m from others'; these are claimed."""
        new = []
        for dash in np.floor(dashes[:, :, :2] / 2.0).astype(int).tolist():
            around = {(x + i, y + j) for x, y in dash for i in (-1, 0, 1) for j in (-1, 0, 1)}
            new.append(all(self._owners.get(cell, owner) == owner for cell in around))
            if new[-1]:
                self._owners.update(dict.fromkeys(((x, y) for x, y in dash), owner))
        return np.array(new, bool)

    def strip(
        self, start: np.ndarray, end: np.ndarray, headings: np.ndarray, width: float, colour: np.ndarray, z: float
    ) -> None:
        """Rectangles from start to end (N, 3) each; headings (N, 2) at both."""
        side = np.stack([-np.sin(headings), np.cos(headings), np.zeros_like(headings)], -1) * width / 2.0
        corners = np.stack([start - side[:, 0], end - side[:, 1], end + side[:, 1], start + side[:, 0]], 1)
        self._corners.append(corners + (0.0, 0.0, z))
        self._colours.append(np.broadcast_to(colour, (len(corners), 3)))

    def block(
        self, middle: np.ndarray, heading: np.ndarray, length: float, width: float, colour: np.ndarray, z: float
    ) -> None:
        """Rectangles around middle (N, 3); `length` along the heading (N,)."""
        half = np.stack([np.cos(heading), np.sin(heading), np.zeros_like(heading)], -1) * length / 2.0
        self.strip(middle - half, middle + half, np.stack([heading, heading], 1), width, colour, z)

    def add_to(self, builder: MeshBuilder) -> None:
        if self._corners:
            corners = np.concatenate(self._corners)
            uv = corners[..., :2] / textures.SCALE_M[textures.ASPHALT]
            builder.add_quads(
                corners, UP, uv, np.concatenate(self._colours), layer=textures.ASPHALT, wet=0.4, tier=Tier.DETAIL
            )


PIECE_M = 30.0


def piece_middles(lane: Lane, rows: np.ndarray) -> np.ndarray:
    """(len(rows) - 1, 2) for each step between point indices: the middle of the PIECE_M long piece it is in."""
    count = max(1, round(lane.length / PIECE_M))
    piece = np.minimum((lane.s[rows[:-1]] / lane.length * count).astype(int), count - 1)
    at = np.searchsorted(lane.s, (piece + 0.5) * lane.length / count)
    return lane.points[np.minimum(at, len(lane.points) - 1), :2]


def coarse(keep: np.ndarray) -> np.ndarray:
    """Every third index, and the last."""
    return np.unique(np.append(keep[::3], keep[-1]))


def thin(lane: Lane) -> np.ndarray:
    """Indices of lane points to keep: about one in 2 m in sharp bends, one in 10 m on straight stretches; both ends."""
    turn = np.abs(np.gradient(lane.headings))
    climb = np.abs(np.gradient(np.gradient(lane.points[:, 2].astype(np.float64))))
    need = np.where((turn > 0.03) | (climb > 0.03), 0.5, np.where((turn > 0.004) | (climb > 0.004), 0.3, 0.1))
    keep = np.flatnonzero(np.diff(np.floor(np.cumsum(need) - need[0]), prepend=-1.0) > 0)
    return np.unique(np.append(keep, len(lane.points) - 1))


def _shade(points: np.ndarray, amount: float) -> np.ndarray:
    """(N, 1) slow brightness variation over the ground, so that large surfaces are not uniform."""
    x, y = points[:, 0], points[:, 1]
    wave = (
        np.sin(x * 0.11 + 1.3 * np.sin(y * 0.07)) + np.sin(y * 0.13 + 1.7 * np.sin(x * 0.05)) + np.sin((x + y) * 0.31)
    )
    return (1.0 + amount * wave / 3.0)[:, None]


def _sheet(builder: MeshBuilder, lines: list[np.ndarray], colours: list[np.ndarray], layer: int, **extra) -> None:
    """A horizontal sheet between parallel lines (each (N, 3)), from left to right."""
    rows = len(lines[0])
    pos = np.stack(lines, 1).reshape(-1, 3)
    colour = np.broadcast_to(np.stack(colours, 0), (rows, len(lines), 3)).reshape(-1, 3) * _shade(pos, 0.10)
    uv = pos[:, :2] / textures.SCALE_M[layer]
    builder.add(pos, ribbon_triangles(rows, len(lines)), UP, uv, colour, layer=layer, **extra)


def _add_surface(builder: MeshBuilder, lane: Lane, asphalt: np.ndarray) -> None:
    outer = SHOULDER_M if lane.right_id < 0 and not lane.has_sidewalk_right else 0.15
    offsets = np.array([0.5, 0.22, -0.22, -0.5]) * lane.width + (0.05, 0.0, 0.0, -outer)
    tone = (1.04, 0.90, 0.90, 1.04) if lane.junction_id < 0 else (1.0, 1.0, 1.0, 1.0)  # worn where the wheels run
    fine = thin(lane)
    for tier, rows, columns in ((Tier.NEAR, fine, (0, 1, 2, 3)), (Tier.FAR, coarse(fine), (0, 3))):
        columns = columns if lane.junction_id < 0 else (0, 3)
        points, headings = lane.points[rows].astype(np.float64), lane.headings[rows]
        lines = [offset_polyline(points, headings, offsets[c]) for c in columns]
        colours = [asphalt * (tone[c] if tier == Tier.NEAR else 1.0) for c in columns]
        at = np.tile(np.repeat(piece_middles(lane, rows), len(columns) - 1, 0), (2, 1))
        _sheet(builder, lines, colours, textures.ASPHALT, wet=1.0, tier=tier, at=at)


def _add_skirt(builder: MeshBuilder, lane: Lane, side: int, asphalt: np.ndarray) -> None:
    """The road bed's flank below a border, so that banks and bridges are closed."""
    rows = coarse(thin(lane))
    points, headings = lane.points[rows].astype(np.float64), lane.headings[rows]
    edge = offset_polyline(points, headings, side * (lane.width / 2 + (SHOULDER_M if side < 0 else 0.05)))
    edge[:, 2] -= 0.06  # under the surface of lanes that cross
    low = edge - (0.0, 0.0, SKIRT_M)
    lines = (edge, low) if side > 0 else (low, edge)
    pos = np.stack(lines, 1).reshape(-1, 3)
    outward = side * np.stack([-np.sin(headings), np.cos(headings), np.zeros(len(rows))], 1)
    uv = np.repeat(np.arange(len(rows)) * 0.5, 2)[:, None] * (1.0, 0.0)
    # seen from outside, going along the lane runs to the left on its right side
    triangles = ribbon_triangles(len(rows), 2)[:, ::-1]
    builder.add(pos, triangles, np.repeat(outward, 2, 0), uv, asphalt * 0.8, tier=Tier.DETAIL)


def _add_marks(paint: _Paint, lane: Lane) -> None:
    """Solid lines inside the lane (oncoming lanes thus share a double line), broken ones on the border, once."""
    inset = {"solid": 0.12, "broken": 0.0}
    if lane.left_mark != "none":
        kind, colour = lane.left_mark.split("_")
        shared = lane.left_id >= 0
        _add_mark(paint, lane, lane.edge(1, 0.0 if shared else inset[kind]), kind, colour, once=not shared)
    if lane.right_id < 0 and lane.right_mark != "none":
        kind, colour = lane.right_mark.split("_")
        _add_mark(paint, lane, lane.edge(-1, 0.14), kind, colour, once=False)


def _add_mark(paint: _Paint, lane: Lane, line: np.ndarray, kind: str, colour: str, once: bool) -> None:
    rgb = YELLOW if colour == "yellow" else WHITE
    headings = polyline_headings(line)
    if kind == "solid":
        keep = thin(lane)
        both = np.stack([headings[keep[:-1]], headings[keep[1:]]], 1)
        paint.strip(line[keep[:-1]], line[keep[1:]], both, MARK_WIDTH_M, rgb, MARK_Z)
        return
    s = np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(line[:, :2], axis=0).T))))
    starts = np.arange(GAP_M / 2, max(s[-1] - 1.0, 0.0), DASH_M + GAP_M)
    ends = np.minimum(starts + DASH_M, s[-1])
    a, b = (np.stack([np.interp(at, s, line[:, axis]) for axis in range(3)], 1) for at in (starts, ends))
    both = np.stack([np.interp(starts, s, headings), np.interp(ends, s, headings)], 1)
    if once:
        new = paint.claim(np.concatenate([a, (a + b) / 2, b], 1).reshape(-1, 3, 3), lane.id)
        a, b, both = a[new], b[new], both[new]
    paint.strip(a, b, both, MARK_WIDTH_M, rgb, MARK_Z)


def _add_crosswalk(paint: _Paint, corners: np.ndarray) -> None:
    """Zebra bars along the shorter side, spread over the longer one."""
    a, b, c, d = corners
    long_way, short_way = (b - a, d - a) if np.linalg.norm(b - a) >= np.linalg.norm(d - a) else (d - a, b - a)
    bars = max(int(np.linalg.norm(long_way) / 1.1), 1)
    middles = a + long_way * ((np.arange(bars) + 0.5) / bars)[:, None] + short_way / 2
    heading = np.full(bars, np.arctan2(short_way[1], short_way[0]))
    paint.block(middles, heading, float(np.linalg.norm(short_way)), 0.5, WHITE, PAINT_Z)


def _add_junction(builder: MeshBuilder, polygon: np.ndarray, terrain: Terrain, asphalt: np.ndarray) -> None:
    polygon = np.asarray(polygon, np.float64)
    if len(polygon) < 3:
        return
    pos = np.concatenate([polygon, terrain.height(polygon)[:, None] + JUNCTION_Z], 1)
    uv = pos[:, :2] / textures.SCALE_M[textures.ASPHALT]
    colour = asphalt * _shade(pos, 0.10)
    builder.add(pos, triangulate(polygon), UP, uv, colour, layer=textures.ASPHALT, wet=1.0)


def triangulate(polygon: np.ndarray) -> np.ndarray:
    """(N - 2, 3) counter-clockwise triangles of a simple polygon (N, 2), by ear clipping; a fan if that gets stuck."""
    x, y = polygon.T
    area = np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y)
    left = list(range(len(polygon))) if area > 0 else list(range(len(polygon)))[::-1]
    triangles = []
    while len(left) > 3:
        ear = next((i for i in range(len(left)) if _is_ear(polygon, left, i)), 0)
        triangles.append((left[ear - 1], left[ear], left[(ear + 1) % len(left)]))
        del left[ear]
    return np.array([*triangles, tuple(left)])


def _is_ear(polygon: np.ndarray, left: list[int], i: int) -> bool:
    corner = polygon[[left[i - 1], left[i], left[(i + 1) % len(left)]]]
    if _cross(corner[0], corner[1], corner[2]) <= 1e-9:
        return False
    others = polygon[[k for k in left if k not in (left[i - 1], left[i], left[(i + 1) % len(left)])]]
    inside = np.ones(len(others), bool)
    for k in range(3):
        inside &= _cross(corner[k], corner[(k + 1) % 3], others) >= 0
    return not bool(inside.any())


def _cross(a: np.ndarray, b: np.ndarray, p: np.ndarray) -> np.ndarray:
    return (b[0] - a[0]) * (p[..., 1] - a[1]) - (b[1] - a[1]) * (p[..., 0] - a[0])


def _add_sidewalk(
    builder: MeshBuilder, lane: Lane, lanes_only: Occupancy, kerb: np.ndarray, paving: np.ndarray
) -> None:
    """Gutter, kerb face and pavement along the right border, interrupted where other lanes cross."""
    keep = thin(lane)
    points, headings = lane.points[keep].astype(np.float64), lane.headings[keep]
    inner = -lane.width / 2
    probe = [offset_polyline(points, headings, inner - d) for d in (0.5, 1.2, SIDEWALK_M)]
    free = ~np.any([lanes_only.taken(line) for line in probe], axis=0)
    runs = np.flatnonzero(np.diff(np.concatenate(([False], free, [False])).astype(int)))
    for start, end in runs.reshape(-1, 2):
        if end - start >= 2:
            _add_sidewalk_run(builder, points[start:end], headings[start:end], inner, kerb, paving)


def _add_sidewalk_run(
    builder: MeshBuilder, points: np.ndarray, headings: np.ndarray, inner: float, kerb: np.ndarray, paving: np.ndarray
) -> None:
    def line(distance: float, z: float) -> np.ndarray:
        return offset_polyline(points, headings, inner - distance) + (0.0, 0.0, z)

    top = KERB_HEIGHT_M
    edge_low, edge, back, end = line(0.12, -0.05), line(0.12, top), line(0.27, top), line(SIDEWALK_M, top)
    rows = len(points)
    towards_road = np.stack([-np.sin(headings), np.cos(headings), np.zeros(rows)], 1)
    face = np.stack([edge_low, edge], 1).reshape(-1, 3)
    uv = np.stack([np.repeat(np.arange(rows) * 0.5, 2), face[:, 2]], 1)
    tri = ribbon_triangles(rows, 2)
    builder.add(face, tri, np.repeat(towards_road, 2, 0), uv, kerb * 0.85, tier=Tier.DETAIL)
    _sheet(builder, [edge, back], [kerb, kerb], textures.PLAIN, wet=0.3, tier=Tier.DETAIL)
    _sheet(builder, [back, end], [paving, paving], textures.PAVING, wet=0.5, tier=Tier.DETAIL)
    rear = np.stack([end, line(SIDEWALK_M, -0.6)], 1).reshape(-1, 3)
    builder.add(rear, tri, np.repeat(-towards_road, 2, 0), uv, kerb * 0.6, tier=Tier.DETAIL)
