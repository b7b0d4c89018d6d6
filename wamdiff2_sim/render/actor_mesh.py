"""Shapes of road users and signal heads.

They fill a unit box: x -0.5..0.5 (front +), y -0.5..0.5 (left +), z 0..1 from the ground.

Every vertex carries a part code, from which the shader takes colour and light (paint, glass, brake lamp, left
indicator, ...).
Signal heads are in metres instead, around the middle of the head, facing +x.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

VERTEX = np.dtype([("pos", "f4", 3), ("normal", "u1", 4)])  # 128 + 127 * component; normal[3]: part code
VERTEX_FORMAT = "3f4 4f1"
VERTEX_NAMES = ("in_pos", "in_normal")


class Part(IntEnum):
    """What a face is made of. The shader (shaders.py) has the same numbers."""

    PAINT = 0
    GLASS = 1
    DARK = 2
    METAL = 3
    HEAD_LAMP = 4
    TAIL_LAMP = 5
    BRAKE_LAMP = 6  # a lamp that only lights up when braking
    LEFT_INDICATOR = 7
    RIGHT_INDICATOR = 8
    SKIN = 9
    SECOND = 10  # trousers, cargo box
    HAIR = 11
    LEFT_LEG = 12
    RIGHT_LEG = 13
    RED = 14
    YELLOW = 15
    GREEN = 16
    HOUSING = 17
    PLATE = 18


class Shape:
    """Collects flat faces."""

    def __init__(self) -> None:
        self._triangles: list[tuple[np.ndarray, int]] = []

    def polygon(self, corners, part: Part) -> None:
        """A convex polygon (N, 3), counter-clockwise seen from outside."""
        corners = np.asarray(corners, float)
        for i in range(1, len(corners) - 1):
            self._triangles.append((corners[[0, i, i + 1]], part))

    def box(
        self, low, high, part: Part, top_inset: tuple[float, float, float] = (0.0, 0.0, 0.0), faces: str = "fblrtu"
    ) -> None:
        """An axis-aligned box; its top is pulled in by top_inset (front, back, sides).

        Faces: front, back, left, right, top, under.
        """
        (x0, y0, z0), (x1, y1, z1) = low, high
        front, back, side = top_inset
        a, b, c, d = (x1, y0, z0), (x1, y1, z0), (x0, y1, z0), (x0, y0, z0)
        e, f, g, h = (
            (x1 - front, y0 + side, z1),
            (x1 - front, y1 - side, z1),
            (x0 + back, y1 - side, z1),
            (x0 + back, y0 + side, z1),
        )
        quads = {
            "f": (a, b, f, e),
            "l": (b, c, g, f),
            "b": (c, d, h, g),
            "r": (d, a, e, h),
            "t": (e, f, g, h),
            "u": (d, c, b, a),
        }
        for face in faces:
            self.polygon(quads[face], part)

    def profile(self, points, half_width: float, part: Part) -> None:
        """A side view [(x, z), ...] from the rear bottom over the top to the front bottom, extruded across."""
        left = [(x, half_width, z) for x, z in points]
        right = [(x, -half_width, z) for x, z in points]
        self.polygon(left[::-1] if _turns_left(points) else left, part)
        self.polygon(right if _turns_left(points) else right[::-1], part)
        for i in range(len(points)):
            k = (i + 1) % len(points)
            self.polygon((right[i], right[k], left[k], left[i]), part)

    def wheel(self, x: float, y: float, radius_x: float, radius_z: float, width: float, side: int) -> None:
        """An octagonal wheel whose outer face is at y, on the given side (+1 left)."""
        turn = np.linspace(0, 2 * np.pi, 9)[:-1] + np.pi / 8
        ring = np.stack([x + radius_x * np.cos(turn), np.full(8, y), radius_z * (1 + np.sin(turn))], 1)
        hub = np.stack(
            [x + 0.55 * radius_x * np.cos(turn), np.full(8, y + side * 0.004), radius_z * (1 + 0.55 * np.sin(turn))], 1
        )
        inner = ring - (0, side * width, 0)
        order = slice(None, None, -side)
        self.polygon(ring[order], Part.DARK)
        self.polygon(hub[order], Part.METAL)
        for i in range(8):
            k = (i + 1) % 8
            quad = (ring[i], inner[i], inner[k], ring[k])
            self.polygon(quad if side < 0 else quad[::-1], Part.DARK)

    def vertices(self) -> np.ndarray:
        """(3 * triangles,) VERTEX with flat normals."""
        corners = np.stack([t for t, _ in self._triangles])
        parts = np.array([p for _, p in self._triangles])
        normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-12)
        out = np.zeros((len(corners), 3), VERTEX)
        out["pos"] = corners
        out["normal"][..., :3] = 128 + np.round(normal * 127)[:, None]
        out["normal"][..., 3] = parts[:, None]
        return out.ravel()


def _turns_left(points) -> bool:
    p = np.asarray(points, float)
    return float(np.sum(p[:, 0] * np.roll(p[:, 1], -1) - np.roll(p[:, 0], -1) * p[:, 1])) > 0


def _lamps(shape: Shape, front: float, rear: float, z: tuple[float, float], y: tuple[float, float]) -> None:
    """Head and tail lamps with indicators at their outer ends."""
    (z0, z1), (y0, y1) = z, y
    split = y1 - 0.06
    for side in (1, -1):
        turn = Part.LEFT_INDICATOR if side > 0 else Part.RIGHT_INDICATOR
        for x, part, face in ((front, Part.HEAD_LAMP, 1), (rear, Part.TAIL_LAMP, -1)):
            for a, b, piece in ((y0, split, part), (split, y1, turn)):
                low, high = sorted((side * a, side * b))
                quad = [(x, low, z0), (x, high, z0), (x, high, z1), (x, low, z1)]
                shape.polygon(quad if face > 0 else quad[::-1], piece)


def _cabin(
    shape: Shape,
    bottom: tuple[float, float],
    top: tuple[float, float],
    z: tuple[float, float],
    width: tuple[float, float],
) -> None:
    """Painted hull with window panes a little outside it. bottom, top:

    (rear, front) x; width: half widths below and above.
    """
    (xb0, xb1), (xt0, xt1), (z0, z1), (w0, w1) = bottom, top, z, width
    shape.box((xb0, -w0, z0), (xb1, w0, z1), Part.PAINT, (xb1 - xt1, xt0 - xb0, w0 - w1), "fblrt")

    def at(u: float, v: float, side: float, out: float = 0.006) -> tuple[float, float, float]:
        """u 0..1 rear to front, v 0..1 bottom to top, on the hull's side."""
        low, high = xb0 + (xb1 - xb0) * u, xt0 + (xt1 - xt0) * u
        return low + (high - low) * v, side * (w0 + (w1 - w0) * v + out), z0 + (z1 - z0) * v

    for side in (1, -1):
        for u0, u1 in ((0.08, 0.47), (0.52, 0.93)):
            quad = [at(u0, 0.1, side), at(u1, 0.1, side), at(u1, 0.86, side), at(u0, 0.86, side)]
            shape.polygon(quad[::-1] if side > 0 else quad, Part.GLASS)
    for u, shift, order in ((1.0, 0.006, 1), (0.0, -0.006, -1)):
        quad = []
        for v, s in ((0.1, -0.88), (0.1, 0.88), (0.88, 0.88), (0.88, -0.88)):
            x, y, height = at(u, v, 1.0, 0.0)
            quad.append((x + shift, y * s, height))
        shape.polygon(quad[::order], Part.GLASS)


def _wheels(shape: Shape, front: float, rear: float, radius_x: float, radius_z: float) -> None:
    for x in (front, rear):
        for side in (1, -1):
            shape.wheel(x, side * 0.5, radius_x, radius_z, 0.13, side)


def _plates(shape: Shape, front: float, rear: float, z: float) -> None:
    for x, order in ((front, 1), (rear, -1)):
        quad = [(x, -0.14, z), (x, 0.14, z), (x, 0.14, z + 0.07), (x, -0.14, z + 0.07)]
        shape.polygon(quad[::order], Part.PLATE)


def sedan() -> np.ndarray:
    shape = Shape()
    hull = [
        (-0.495, 0.17),
        (-0.5, 0.45),
        (-0.485, 0.62),
        (-0.30, 0.66),
        (0.24, 0.64),
        (0.44, 0.55),
        (0.495, 0.45),
        (0.5, 0.17),
    ]
    shape.profile(hull, 0.485, Part.PAINT)
    shape.box((-0.46, -0.44, 0.1), (0.47, 0.44, 0.19), Part.DARK, faces="fblru")
    _cabin(shape, (-0.40, 0.24), (-0.24, 0.06), (0.63, 1.0), (0.46, 0.36))
    _lamps(shape, 0.503, -0.503, (0.40, 0.53), (0.24, 0.475))
    shape.polygon([(-0.36, 0.1, 0.70), (-0.36, -0.1, 0.70), (-0.345, -0.1, 0.74), (-0.345, 0.1, 0.74)], Part.BRAKE_LAMP)
    _wheels(shape, 0.31, -0.29, 0.072, 0.215)
    _plates(shape, 0.504, -0.504, 0.27)
    return shape.vertices()


def suv() -> np.ndarray:
    """Hatchback, sport utility car or van: the cabin reaches to the rear."""
    shape = Shape()
    hull = [(-0.495, 0.17), (-0.5, 0.45), (-0.49, 0.60), (0.26, 0.60), (0.45, 0.53), (0.495, 0.42), (0.5, 0.17)]
    shape.profile(hull, 0.485, Part.PAINT)
    shape.box((-0.46, -0.44, 0.1), (0.47, 0.44, 0.19), Part.DARK, faces="fblru")
    _cabin(shape, (-0.49, 0.27), (-0.42, 0.10), (0.59, 1.0), (0.47, 0.39))
    _lamps(shape, 0.503, -0.503, (0.42, 0.56), (0.27, 0.475))
    shape.polygon(
        [(-0.437, 0.11, 0.93), (-0.437, -0.11, 0.93), (-0.432, -0.11, 0.965), (-0.432, 0.11, 0.965)], Part.BRAKE_LAMP
    )
    _wheels(shape, 0.32, -0.31, 0.078, 0.20)
    _plates(shape, 0.504, -0.504, 0.26)
    return shape.vertices()


def truck() -> np.ndarray:
    """Driver's cab, cargo box, chassis."""
    shape = Shape()
    shape.box((-0.49, -0.40, 0.13), (0.48, 0.40, 0.27), Part.DARK)
    shape.box((-0.5, -0.5, 0.27), (0.22, 0.5, 1.0), Part.SECOND)
    shape.box((0.255, -0.48, 0.13), (0.5, 0.48, 0.80), Part.PAINT, (0.03, 0.0, 0.02))
    shape.polygon([(0.502, -0.42, 0.46), (0.502, 0.42, 0.46), (0.483, 0.40, 0.74), (0.483, -0.40, 0.74)], Part.GLASS)
    for side in (1, -1):
        quad = [
            (0.33, side * 0.486, 0.46),
            (0.47, side * 0.486, 0.46),
            (0.46, side * 0.472, 0.72),
            (0.33, side * 0.472, 0.72),
        ]
        shape.polygon(quad[::-1] if side > 0 else quad, Part.GLASS)
        low, high = sorted((side * 0.02, side * 0.46))
        shape.polygon(
            [(-0.502, high, 0.31), (-0.502, low, 0.31), (-0.502, low, 0.96), (-0.502, high, 0.96)], Part.METAL
        )
        stripe = [
            (-0.48, side * 0.504, 0.42),
            (0.20, side * 0.504, 0.42),
            (0.20, side * 0.504, 0.52),
            (-0.48, side * 0.504, 0.52),
        ]
        shape.polygon(stripe[::-1] if side > 0 else stripe, Part.PAINT)
    _lamps(shape, 0.504, -0.503, (0.185, 0.26), (0.26, 0.48))
    for x in (0.36, -0.22, -0.38):
        for side in (1, -1):
            shape.wheel(x, side * 0.49, 0.065, 0.155, 0.14, side)
    _plates(shape, 0.505, -0.505, 0.15)
    return shape.vertices()


def pedestrian() -> np.ndarray:
    shape = Shape()
    shape.box((-0.16, 0.05, 0.0), (0.14, 0.25, 0.49), Part.LEFT_LEG, faces="fblru")
    shape.box((-0.16, -0.25, 0.0), (0.14, -0.05, 0.49), Part.RIGHT_LEG, faces="fblru")
    shape.box((-0.20, -0.30, 0.47), (0.20, 0.30, 0.83), Part.PAINT, (0.04, 0.04, -0.03))
    for side in (1, -1):
        low, high = sorted((side * 0.34, side * 0.48))
        shape.box((-0.12, low, 0.46), (0.12, high, 0.81), Part.PAINT)
        shape.box((-0.10, low, 0.40), (0.10, high, 0.46), Part.SKIN)
    shape.box((-0.16, -0.13, 0.85), (0.17, 0.13, 0.97), Part.SKIN, (0.02, 0.02, 0.02), "fblru")
    shape.box((-0.20, -0.15, 0.90), (0.10, 0.15, 1.0), Part.HAIR, (0.04, 0.04, 0.03))
    return shape.vertices()


def cyclist() -> np.ndarray:
    shape = Shape()
    for x in (0.30, -0.30):
        for side in (1, -1):
            shape.wheel(x, side * 0.05, 0.19, 0.19, 0.05, side)
    shape.box((-0.28, -0.05, 0.34), (0.26, 0.05, 0.40), Part.METAL)
    shape.box((0.18, -0.05, 0.36), (0.24, 0.05, 0.60), Part.METAL)
    shape.box((0.16, -0.42, 0.58), (0.22, 0.42, 0.62), Part.DARK)
    shape.box((-0.16, -0.05, 0.36), (-0.10, 0.05, 0.54), Part.METAL)
    for side in (1, -1):
        low, high = sorted((side * 0.12, side * 0.34))
        leg = Part.LEFT_LEG if side > 0 else Part.RIGHT_LEG
        shape.box((-0.08, low, 0.16), (0.04, high, 0.56), leg)
    shape.box((-0.18, -0.36, 0.52), (0.02, 0.36, 0.84), Part.PAINT, (-0.10, 0.10, 0.02))
    for side in (1, -1):
        low, high = sorted((side * 0.34, side * 0.46))
        shape.box((0.0, low, 0.60), (0.20, high, 0.68), Part.PAINT)
    shape.box((-0.02, -0.15, 0.84), (0.10, 0.15, 0.95), Part.SKIN)
    shape.box((-0.05, -0.18, 0.91), (0.11, 0.18, 1.0), Part.HAIR, (0.02, 0.02, 0.04))
    return shape.vertices()


HEAD_WIDTH_M, HEAD_HEIGHT_M, HEAD_DEPTH_M = 0.62, 1.40, 0.30
LAMP_RADIUS_M, LAMP_STEP_M = 0.20, 0.44


def signal_head() -> np.ndarray:
    """Back plate, housing, three lamps with hoods; red above. Metres, middle at the origin."""
    shape = Shape()
    w, h, d = HEAD_WIDTH_M / 2, HEAD_HEIGHT_M / 2, HEAD_DEPTH_M / 2
    shape.box((-d, -w + 0.08, -h + 0.05), (d - 0.06, w - 0.08, h - 0.05), Part.HOUSING, faces="blrtu")
    shape.box((d - 0.07, -w, -h), (d - 0.05, w, h), Part.HOUSING)
    turn = np.linspace(0, 2 * np.pi, 11)[:-1]
    for part, z in ((Part.RED, LAMP_STEP_M), (Part.YELLOW, 0.0), (Part.GREEN, -LAMP_STEP_M)):
        disc = np.stack([np.full(10, d - 0.04), LAMP_RADIUS_M * np.cos(turn), z + LAMP_RADIUS_M * np.sin(turn)], 1)
        shape.polygon(disc, part)
        top = z + LAMP_RADIUS_M + 0.01
        shape.box((d - 0.05, -LAMP_RADIUS_M, top), (d + 0.15, LAMP_RADIUS_M, top + 0.02), Part.HOUSING)
    return shape.vertices()


SHAPES = {
    "sedan": sedan, "suv": suv, "truck": truck, "pedestrian": pedestrian, "cyclist": cyclist, "signal": signal_head,
}  # fmt: skip
