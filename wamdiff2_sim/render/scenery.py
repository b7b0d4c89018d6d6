"""What stands beside the streets: ground, buildings, trees, street lamps, signal poles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wamdiff2_sim.render import textures
from wamdiff2_sim.render.mesh import MeshBuilder, Tier, box_faces
from wamdiff2_sim.render.occupancy import Occupancy, Terrain
from wamdiff2_sim.render.road_mesh import SIDEWALK_M, UP
from wamdiff2_sim.roads.roadmap import Lane, RoadMap, offset_polyline

WALLS = np.array(
    [[0.72, 0.66, 0.58], [0.62, 0.40, 0.32], [0.78, 0.76, 0.72], [0.55, 0.55, 0.58], [0.70, 0.60, 0.45],
     [0.50, 0.36, 0.30], [0.66, 0.70, 0.72], [0.80, 0.72, 0.60], [0.42, 0.46, 0.50], [0.74, 0.56, 0.48]]
)  # fmt: skip
BUILDING_MARGIN_M = 2.8  # kept free between a wall and any lane
LAMP_HEIGHT_M = 6.5


@dataclass(frozen=True)
class Style:
    """Character of a town, drawn from its seed."""

    grass: np.ndarray
    leaf: np.ndarray
    height: float  # typical building height, m
    density: float  # share of lots with a building
    trees: float  # trees per lot
    lamp_gap: float


def random_style(rng: np.random.Generator) -> Style:
    grass = np.array([0.30, 0.40, 0.16]) * rng.uniform(0.8, 1.15) + np.array([0.10, 0.03, 0.0]) * rng.random()
    leaf = np.array([0.20, 0.34, 0.12]) * rng.uniform(0.8, 1.2) + np.array([0.14, 0.05, 0.0]) * rng.random() ** 2
    return Style(
        grass, leaf, rng.uniform(6.0, 24.0), rng.uniform(0.55, 0.95), rng.uniform(0.4, 1.6), rng.uniform(24.0, 40.0)
    )


def add_ground(builder: MeshBuilder, terrain: Terrain, lanes_wide: Occupancy, style: Style) -> None:
    """Grass a little below the roads: coarse squares, fine ones where the ground is not flat."""
    block = 4
    rows, columns = ((n - 1) // block for n in terrain.z.shape)
    tiles = [terrain.z[i : i + rows * block : 1, j : j + columns * block] for i in (0, 1) for j in (0, 1)]
    spread = np.stack(tiles).reshape(4, rows, block, columns, block)
    flat = spread.max(axis=(0, 2, 4)) - spread.min(axis=(0, 2, 4)) < 0.12
    for step, chosen in ((block, flat), (1, ~flat)):
        corner = np.argwhere(chosen) * block
        inner = np.stack(np.meshgrid(np.arange(0, block, step), np.arange(0, block, step), indexing="ij"), -1).reshape(
            -1, 2
        )
        corner = (corner[:, None] + inner).reshape(-1, 2)
        if len(corner):
            _add_ground_squares(builder, terrain, lanes_wide, style, corner, step)


def _add_ground_squares(
    builder: MeshBuilder, terrain: Terrain, lanes_wide: Occupancy, style: Style, corner: np.ndarray, step: int
) -> None:
    """Squares of `step` terrain cells whose low corners are the grid indices (N, 2)."""
    grid = (corner[:, None] + np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * step).reshape(-1, 2)
    grid, where = np.unique(grid, axis=0, return_inverse=True)
    flat = grid * terrain.cell + terrain.low
    sink = np.where(lanes_wide.taken(flat) & (step == 1), 0.25, 0.10)
    pos = np.column_stack([flat, terrain.z[tuple(grid.T)] - sink])
    wave = np.sin(flat[:, 0] * 0.03 + np.sin(flat[:, 1] * 0.04)) + np.sin(
        flat[:, 1] * 0.05 + 2 * np.sin(flat[:, 0] * 0.023)
    )
    colour = style.grass * (1.0 + 0.12 * wave[:, None]) + np.array([0.04, 0.02, 0.0]) * np.clip(wave, 0, 2)[:, None]
    triangles = where.reshape(-1, 4)[:, [0, 1, 2, 0, 2, 3]].reshape(-1, 3)
    builder.add(pos, triangles, UP, flat / textures.SCALE_M[textures.GRASS], colour, layer=textures.GRASS, wet=0.1)


def border_lanes(town: RoadMap) -> list[Lane]:
    """Lanes outside junctions with nothing to their right."""
    return [lane for lane in town.lanes.values() if lane.junction_id < 0 and lane.right_id < 0]


def place_buildings(
    town: RoadMap, terrain: Terrain, taken: Occupancy, style: Style, rng: np.random.Generator
) -> np.ndarray:
    """(N, 8) x, y, z, yaw, length, width, height, wall type: right of border lanes, clear of all `taken` cells."""
    found = []
    for lane in border_lanes(town):
        s = rng.uniform(0.0, 6.0)
        while s < lane.length:
            length, depth = rng.uniform(10.0, 24.0), rng.uniform(9.0, 16.0)
            at = min(s + length / 2, lane.length)
            district = np.sin(lane.points[0, 0] * 0.011) + np.sin(lane.points[0, 1] * 0.013)
            height = np.clip(style.height * np.exp(rng.normal(0.0, 0.4) + 0.3 * district), 4.0, 60.0)
            setback = SIDEWALK_M + (rng.uniform(0.6, 3.0) if rng.random() < 0.7 else rng.uniform(4.0, 14.0))
            heading = lane.heading_at(at)
            centre = lane.point_at(at)[:2] + (lane.width / 2 + setback + depth / 2) * np.array(
                [np.sin(heading), -np.cos(heading)]
            )
            s += length + (rng.uniform(0.3, 2.0) if rng.random() < 0.5 else rng.uniform(4.0, 14.0))
            if rng.random() > style.density or taken.any_taken(centre, heading, length, depth):
                continue
            taken.take(centre, heading, length + 0.5, depth + 0.5)
            z = float(terrain.height(centre[None])[0])
            found.append([*centre, z, heading, length, depth, height, rng.integers(1 << 30)])
    return np.array(found).reshape(-1, 8)


def add_buildings(builder: MeshBuilder, buildings: np.ndarray) -> None:
    """Boxes with window walls, some with shops below, a parapet and a roof house."""
    if not len(buildings):
        return
    kind = buildings[:, 7].astype(np.int64)
    tone = 0.85 + 0.25 * ((kind // 7) % 97) / 97.0
    wall = WALLS[kind % len(WALLS)] * tone[:, None]
    layer = np.array(textures.FACADES)[(kind // 13) % len(textures.FACADES)]
    base = buildings[:, :3] - (0.0, 0.0, 1.5)
    shops = (kind // 101) % 3 == 0
    low = np.where(shops, 4.0, 0.0)
    _add_walls(builder, base, buildings[:, 3], buildings[:, 4:6], 1.5, wall * 0.8, 0, textures.FACADE_SCALE_M)  # plinth
    rows = np.flatnonzero(shops)
    ground = buildings[:, :3]
    _add_walls(
        builder, ground[rows], buildings[rows, 3], buildings[rows, 4:6], 4.0, wall[rows], textures.SHOPS, (12.0, 4.0)
    )
    upper = ground + np.stack([np.zeros_like(low), np.zeros_like(low), low], 1)
    storeys = np.maximum(np.round((buildings[:, 6] - low) / 3.2), 1.0)
    _add_walls(builder, upper, buildings[:, 3], buildings[:, 4:6], storeys * 3.2, wall, layer, textures.FACADE_SCALE_M)
    roof = upper + np.stack([np.zeros_like(low), np.zeros_like(low), storeys * 3.2 - 0.01], 1)
    size = np.concatenate([buildings[:, 4:6] + 0.5, np.full((len(buildings), 1), 0.5)], 1)
    quads, normals = box_faces(roof, buildings[:, 3], size)
    grey = np.repeat(wall * 0.75, 5, 0)
    builder.add_quads(quads.reshape(-1, 4, 3), normals.reshape(-1, 3), np.zeros((len(quads) * 5, 4, 2)), grey)


def _add_walls(builder, base, yaw, plan, height, colour, layer, scale) -> None:
    """Four walls of each box.

    The pattern starts at a corner, and widths are rounded to whole bays (scale / 4 across).
    """
    if not len(base):
        return
    size = np.concatenate([plan, np.broadcast_to(np.asarray(height, np.float64), (len(base),))[:, None]], 1)
    quads, normals = box_faces(base, yaw, size)
    across = size[:, [1, 0, 1, 0]]
    bay = scale[0] / 4.0
    u = np.maximum(np.round(across / bay), 1.0) / 4.0
    v = np.broadcast_to((size[:, 2] / scale[1])[:, None], u.shape)
    zero = np.zeros_like(u)
    uv = np.stack([np.stack([zero, u, u, zero], -1), np.stack([zero, zero, v, v], -1)], -1)
    layers = np.repeat(np.broadcast_to(layer, (len(base),)), 4)
    tones = np.repeat(colour, 4, 0)
    builder.add_quads(
        quads[:, :4].reshape(-1, 4, 3), normals[:, :4].reshape(-1, 3), uv.reshape(-1, 4, 2), tones, layer=layers
    )


def place_along(town: RoadMap, gap: float, offset: float, taken: Occupancy, rng: np.random.Generator) -> np.ndarray:
    """(N, 3) x, y, heading on free ground, `offset` metres right of border lanes, about every `gap` metres."""
    places = []
    for lane in border_lanes(town):
        for s in np.arange(rng.uniform(2.0, gap), lane.length - 1.0, gap):
            at = s + rng.uniform(-0.15, 0.15) * gap
            heading = lane.heading_at(at)
            point = offset_polyline(lane.point_at(at)[None], np.array([heading]), -lane.width / 2 - offset)[0]
            if not taken.taken(point[None])[0]:
                places.append([*point[:2], heading])
    return np.array(places).reshape(-1, 3)


def add_trees(
    builder: MeshBuilder, places: np.ndarray, terrain: Terrain, style: Style, rng: np.random.Generator
) -> None:
    """Trunk and two leafy lumps at each of `places` (N, 2 or more)."""
    n = len(places)
    if not n:
        return
    z = terrain.height(places)
    ground = np.column_stack([places[:, :2], z - 0.2])
    size = rng.uniform(0.7, 1.35, n)
    yaw = rng.uniform(0, 2 * np.pi, n)
    trunk = np.stack([0.28 * size, 0.28 * size, 2.6 * size], 1)
    quads, normals = box_faces(ground, yaw, trunk)
    bark = np.array([0.25, 0.19, 0.14])
    builder.add_quads(
        quads[:, :4].reshape(-1, 4, 3), normals[:, :4].reshape(-1, 3), np.zeros((n * 4, 4, 2)), bark, tier=Tier.DETAIL
    )
    tone = style.leaf * rng.uniform(0.75, 1.25, (n, 1)) + np.array([0.05, 0.02, 0.0]) * rng.random((n, 1))
    lean = np.stack([np.cos(yaw), np.sin(yaw), np.zeros(n)], 1) * 0.7
    ball, faces = _icosahedron()
    for tier, share, height, shift in (
        (Tier.NEAR, 1.0, 3.7, 0.0),
        (Tier.NEAR, 0.72, 4.9, 1.0),
        (Tier.FAR, 1.2, 4.1, 0.4),
    ):
        radius = size[:, None] * share * rng.uniform((1.5, 1.5, 1.4), (2.3, 2.3, 2.2), (n, 3))
        middle = ground + (lean * shift + (0.0, 0.0, height)) * size[:, None]
        pos = middle[:, None] + ball * rng.uniform(0.8, 1.2, (n, len(ball), 1)) * radius[:, None]
        triangles = (faces[None] + np.arange(n)[:, None, None] * len(ball)).reshape(-1, 3)
        shade = (0.72 + 0.38 * (ball[:, 2] + 1) / 2)[None, :, None] * tone[:, None]
        uv = np.stack([np.arctan2(ball[:, 1], ball[:, 0]), ball[:, 2] * 2], -1) / 3.0
        builder.add(
            pos.reshape(-1, 3), triangles, np.tile(ball, (n, 1)), np.tile(uv, (n, 1)), shade.reshape(-1, 3),
            layer=textures.FOLIAGE, tier=tier, at=np.repeat(places[:, :2], len(faces), 0),
        )  # fmt: skip


def _icosahedron() -> tuple[np.ndarray, np.ndarray]:
    """Unit vertices (12, 3) and outward faces (20, 3)."""
    g = (1 + 5**0.5) / 2
    corners = np.array([(0, a, b * g) for a in (-1, 1) for b in (-1, 1)], float)
    corners = np.concatenate([corners, corners[:, [1, 2, 0]], corners[:, [2, 0, 1]]])
    corners /= np.linalg.norm(corners, axis=1, keepdims=True)
    edge = np.linalg.norm(corners[:, None] - corners[None], axis=2)
    near = edge < edge[edge > 0.1].min() * 1.1
    faces = []
    for a in range(12):
        for b in range(a + 1, 12):
            for c in range(b + 1, 12):
                if near[a, b] and near[b, c] and near[a, c]:
                    outward = np.dot(np.cross(corners[b] - corners[a], corners[c] - corners[a]), corners[a]) > 0
                    faces.append((a, b, c) if outward else (a, c, b))
    return corners, np.array(faces)


def add_lamps(builder: MeshBuilder, places: np.ndarray, terrain: Terrain) -> np.ndarray:
    """Street lamps at places (N, 3) that reach over the road to their left; gives their heads (N, 3)."""
    n = len(places)
    if not n:
        return np.zeros((0, 3))
    ground = np.column_stack([places[:, :2], terrain.height(places)])
    left = np.stack([-np.sin(places[:, 2]), np.cos(places[:, 2]), np.zeros(n)], 1)
    heads = ground + left * 1.8 + (0.0, 0.0, LAMP_HEIGHT_M)
    steel = np.array([0.36, 0.37, 0.38])
    add_boxes(builder, ground, places[:, 2], (0.16, 0.16, LAMP_HEIGHT_M), steel)
    add_boxes(builder, ground + left * 0.95 + (0, 0, LAMP_HEIGHT_M - 0.1), places[:, 2], (0.1, 1.9, 0.1), steel)
    add_boxes(builder, heads - (0, 0, 0.12), places[:, 2], (0.3, 0.7, 0.14), np.array([1.0, 0.93, 0.75]), emissive=0.5)
    return heads


def add_boxes(
    builder: MeshBuilder,
    base: np.ndarray,
    yaw: np.ndarray,
    size: tuple[float, float, float],
    colour: np.ndarray,
    emissive: float = 0.0,
) -> None:
    """Equal small boxes standing on base (N, 3), with an underside."""
    quads, normals = box_faces(base, yaw, np.tile(np.array(size), (len(base), 1)))
    under = quads[:, 4:5, ::-1] - (0.0, 0.0, size[2])
    quads = np.concatenate([quads, under], 1).reshape(-1, 4, 3)
    normals = np.concatenate([normals, np.broadcast_to(-UP, (len(base), 1, 3))], 1).reshape(-1, 3)
    builder.add_quads(quads, normals, np.zeros((len(quads), 4, 2)), colour, tier=Tier.DETAIL, emissive=emissive)


def add_signal_poles(builder: MeshBuilder, town: RoadMap, terrain: Terrain) -> None:
    """A post under every signal head: straight, or beside the road with an arm when the head hangs over a lane."""
    heads = np.array([pole for group in town.light_groups.values() for pole in group.poles], np.float64).reshape(-1, 4)
    if not len(heads):
        return
    steel = np.array([0.24, 0.25, 0.26])
    for x, y, z, yaw in heads:
        ground = float(terrain.height(np.array([[x, y]]))[0])
        back = np.array([x - 0.22 * np.cos(yaw), y - 0.22 * np.sin(yaw)])
        base = np.array([[*back, ground - 0.2]])
        add_boxes(builder, base, np.array([yaw]), (0.15, 0.15, max(z - ground + 0.7, 1.0)), steel)
