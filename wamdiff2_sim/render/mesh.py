"""Collecting triangles into one vertex buffer that is drawn chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

CHUNK_M = 48.0


class Tier(IntEnum):
    """When a piece is drawn, by the distance of its chunk's middle."""

    ALWAYS = 0  # up to the horizon
    NEAR = 1  # the fine version of something that also has a FAR version
    FAR = 2
    DETAIL = 3  # small things, left out far away


NEAR_RANGE_M = 80.0
RANGE_M = {
    Tier.ALWAYS: (0.0, 420.0),
    Tier.NEAR: (0.0, NEAR_RANGE_M),
    Tier.FAR: (NEAR_RANGE_M, 270.0),
    Tier.DETAIL: (0.0, 125.0),
}

# normal: 128 + 127 * component; extra: street lamp light, wetness (shine when it rains), texture layer, unused
VERTEX = np.dtype([("pos", "f4", 3), ("uv", "f4", 2), ("normal", "u1", 4), ("colour", "u1", 4), ("extra", "u1", 4)])
VERTEX_FORMAT = "3f4 2f4 4f1 4f1 4f1"
VERTEX_NAMES = ("in_pos", "in_uv", "in_normal", "in_colour", "in_extra")


@dataclass(frozen=True)
class StaticMesh:
    """Vertices (VERTEX) and triangle indices (3 * M,) u4, sorted by chunk.

    Per chunk (C,) what it takes to cull and draw it.
    """

    vertices: np.ndarray
    indices: np.ndarray
    first: np.ndarray
    count: np.ndarray
    centre: np.ndarray  # (C, 3) middle of the bounding sphere
    radius: np.ndarray
    cell: np.ndarray  # (C, 2) middle of the ground cell, whose distance decides
    near_m: np.ndarray  # drawn from this distance
    far_m: np.ndarray  # ... up to this one


class MeshBuilder:
    """Takes pieces of geometry (numpy arrays) and gives a StaticMesh."""

    def __init__(self) -> None:
        self._vertices: list[np.ndarray] = []
        self._triangles: list[np.ndarray] = []
        self._places: list[np.ndarray] = []
        self._tiers: list[np.ndarray] = []
        self._size = 0

    def add(
        self,
        pos: np.ndarray,
        triangles: np.ndarray,
        normal: np.ndarray,
        uv: np.ndarray,
        colour: np.ndarray,
        layer: int | np.ndarray = 0,
        wet: float | np.ndarray = 0.0,
        emissive: float | np.ndarray = 0.0,
        tier: Tier = Tier.ALWAYS,
        at: np.ndarray | None = None,
    ) -> None:
        """Vertices pos (N, 3), normal (N, 3) or (3,), uv (N, 2), colour (N, 3) or (3,) in 0..1; triangles (M, 3).

        Triangles are counter-clockwise seen from outside. `at` (M, 2) or (2,): place that decides the chunk
        (default: first corner).
        """
        n = len(pos)
        if n == 0 or len(triangles) == 0:
            return
        v = np.zeros(n, VERTEX)
        v["pos"], v["uv"] = pos, uv
        v["normal"][:, :3] = 128.0 + np.round(np.asarray(normal) * 127.0)
        v["colour"][:, :3] = np.clip(np.asarray(colour) * 255.0, 0, 255)
        v["colour"][:, 3] = np.asarray(emissive) * 255.0
        v["extra"][:, 1] = np.asarray(wet) * 255.0
        v["extra"][:, 2] = layer
        triangles = np.asarray(triangles, np.int64).reshape(-1, 3)
        place = np.asarray(pos)[triangles[:, 0], :2] if at is None else np.broadcast_to(at, (len(triangles), 2))
        self._vertices.append(v)
        self._triangles.append(triangles + self._size)
        self._places.append(place)
        self._tiers.append(np.full(len(triangles), tier))
        self._size += n

    def add_quads(
        self, corners: np.ndarray, normal: np.ndarray, uv: np.ndarray, colour: np.ndarray, **extra: Any
    ) -> None:
        """Quads (N, 4, 3), counter-clockwise seen from outside.

        Normal (N, 3) or (3,), uv (N, 4, 2), colour (N, 3) or (3,).
        """
        n = len(corners)
        spread: dict[str, Any] = {
            key: np.repeat(value, 4) if np.ndim(value) == 1 and key != "at" else value for key, value in extra.items()
        }
        self.add(
            corners.reshape(-1, 3),
            quad_triangles(n),
            _per_corner(normal),
            uv.reshape(-1, 2),
            _per_corner(colour),
            **spread,
        )

    def build(self, lamps: np.ndarray | None = None) -> StaticMesh:
        """Sort into chunks. `lamps` (L, 3): street lamps that light the vertices around them at night."""
        vertices = np.concatenate(self._vertices)
        triangles = np.concatenate(self._triangles)
        tier = np.concatenate(self._tiers)
        cell = np.floor(np.concatenate(self._places) / CHUNK_M).astype(np.int64)
        if lamps is not None and len(lamps):
            vertices["extra"][:, 0] = lamp_light(vertices["pos"], lamps) * 255.0
        order = np.lexsort((cell[:, 1], cell[:, 0], tier))
        triangles, tier, cell = triangles[order], tier[order], cell[order]
        key = np.column_stack([tier, cell])
        starts = np.flatnonzero(np.append(True, np.any(np.diff(key, axis=0) != 0, axis=1)))
        ends = np.append(starts[1:], len(key))
        corner = vertices["pos"][triangles].reshape(-1, 3)
        low = np.minimum.reduceat(corner, starts * 3)
        high = np.maximum.reduceat(corner, starts * 3)
        ranges = np.array([RANGE_M[Tier(t)] for t in tier[starts]])
        return StaticMesh(
            vertices, triangles.astype(np.uint32).ravel(), starts * 3, (ends - starts) * 3, (low + high) / 2.0,
            np.linalg.norm(high - low, axis=1) / 2.0, (cell[starts] + 0.5) * CHUNK_M, ranges[:, 0], ranges[:, 1],
        )  # fmt: skip


def _per_corner(value: np.ndarray) -> np.ndarray:
    value = np.asarray(value)
    return np.repeat(value, 4, axis=0) if value.ndim == 2 else value


def quad_triangles(n: int) -> np.ndarray:
    """(2n, 3) triangles of n quads whose corners lie one after the other."""
    return (np.arange(n)[:, None, None] * 4 + np.array([[0, 1, 2], [0, 2, 3]])).reshape(-1, 3)


def ribbon_triangles(rows: int, columns: int) -> np.ndarray:
    """Triangles of a (rows, columns) sheet whose columns run from left to right along the rows' direction of travel."""
    r, c = np.meshgrid(np.arange(rows - 1), np.arange(columns - 1), indexing="ij")
    a = (r * columns + c).ravel()
    b, d, e = a + 1, a + columns, a + columns + 1
    return np.concatenate([np.stack([a, b, e], 1), np.stack([a, e, d], 1)])


def box_faces(centre: np.ndarray, yaw: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Upright boxes standing on `centre` (N, 3), `size` (N, 3): quads (N, 5, 4, 3) of front, left, back, right, top.

    Normals (N, 5, 3).
    """
    c, s = np.cos(yaw)[:, None], np.sin(yaw)[:, None]
    signs = np.array([[1, -1], [1, 1], [-1, 1], [-1, -1]])  # front right, front left, back left, back right
    flat = signs[None] * size[:, None, :2] / 2.0
    x, y = flat[..., 0] * c - flat[..., 1] * s + centre[:, :1], flat[..., 0] * s + flat[..., 1] * c + centre[:, 1:2]
    low = np.stack([x, y, np.broadcast_to(centre[:, 2:3], x.shape)], -1)
    high = low + np.concatenate([np.zeros((len(size), 2)), size[:, 2:]], 1)[:, None]
    sides = [np.stack([low[:, i], low[:, (i + 1) % 4], high[:, (i + 1) % 4], high[:, i]], 1) for i in range(4)]
    quads = np.stack([*sides, high], 1)
    turn = yaw[:, None] + np.array([0.0, np.pi / 2, np.pi, -np.pi / 2])
    around = np.stack([np.cos(turn), np.sin(turn), np.zeros_like(turn)], -1)
    up = np.broadcast_to(np.array([0.0, 0.0, 1.0]), (len(size), 1, 3))
    return quads, np.concatenate([around, up], 1)


def lamp_light(points: np.ndarray, lamps: np.ndarray) -> np.ndarray:
    """(N,) light 0..1 that street lamps (L, 3) throw on points (N, 3)."""
    light = np.zeros(len(points))
    cell = np.floor(points[:, :2] / 24.0).astype(np.int64)
    order = np.lexsort((cell[:, 1], cell[:, 0]))
    change = np.flatnonzero(np.any(np.diff(cell[order], axis=0, prepend=cell[order[:1]] - 1), axis=1))
    for rows in np.split(order, change[1:]):
        middle = (cell[rows[0]] + 0.5) * 24.0
        near = lamps[np.hypot(*(lamps[:, :2] - middle).T) < 40.0]
        if len(near):
            squared = ((points[rows, None, :2] - near[None, :, :2]) ** 2).sum(-1)
            squared += 4.0 * np.maximum(points[rows, None, 2] - near[None, :, 2] + 4.0, 0.0) ** 2  # lamps shine down
            light[rows] = (1.0 / (1.0 + squared / 70.0) ** 1.4).sum(1)
    return np.clip(light, 0.0, 1.0)
