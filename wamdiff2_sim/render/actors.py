"""Road users and signal heads as instance tables for the shaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_sim.render.actor_mesh import SHAPES
from wamdiff2_sim.render.town import SignalHeads
from wamdiff2_sim.types import ActorView, LightState

INSTANCE = np.dtype([("place", "f4", 4), ("size", "f4", 4), ("paint", "u1", 4), ("second", "u1", 4), ("id", "u1", 4)])
INSTANCE_FORMAT = "4f4 4f4 4f1 4f1 4f1 /i"
INSTANCE_NAMES = ("in_place", "in_size", "in_paint", "in_second", "in_id")
SHADOW_FORMAT = "4f4 4f4 4f1 8x1 /i"
SHADOW_NAMES = ("in_place", "in_size", "in_paint")
BRAKING, LEFT, RIGHT = 1, 2, 4
DARK_HEAD = 4 << 4  # a signal head with no lamp lit
DRAW_RANGE_M = 260.0

SHAPE_NAMES = tuple(SHAPES)
_TROUSERS = np.array([[30, 34, 52], [52, 50, 46], [24, 24, 26], [92, 84, 66], [70, 40, 34], [44, 62, 88]], np.uint8)


def shape_of(actor: ActorView) -> str:
    """Name of the shape that draws this actor. Raises DataError for a kind without one."""
    if actor.kind == "car":
        return "suv" if actor.height > 1.62 or actor.id % 3 == 0 else "sedan"
    if actor.kind not in ("truck", "pedestrian", "cyclist"):
        raise DataError(f"actor {actor.id}: expected kind car, truck, pedestrian or cyclist, got {actor.kind!r}")
    return actor.kind


def actor_rows(actors: Sequence[ActorView], eye: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Instances (INSTANCE) of the actors within DRAW_RANGE_M of `eye`, and their shapes (indices into SHAPE_NAMES).

    `id` is 1 + the position in `actors`.
    """
    x, y = eye
    near = [i for i, a in enumerate(actors) if abs(a.x - x) < DRAW_RANGE_M and abs(a.y - y) < DRAW_RANGE_M]
    rows, shapes = np.zeros(len(near), INSTANCE), np.zeros(len(near), np.int64)
    if not near:
        return rows, shapes
    chosen = [actors[i] for i in near]
    table = np.array(
        [
            (a.x, a.y, a.z, a.yaw, a.length, a.width, a.height, *a.colour, a.brake_lights, a.indicator, a.id)
            for a in chosen
        ]
    )
    ids = table[:, 12].astype(np.int64)
    shapes[:] = [SHAPE_NAMES.index(shape_of(a)) for a in chosen]
    rows["place"], rows["size"][:, :3] = table[:, :4], table[:, 4:7]
    # legs swing with the distance walked, so that standing people stand still
    walked = table[:, 0] * np.cos(table[:, 3]) + table[:, 1] * np.sin(table[:, 3])
    rows["size"][:, 3] = 0.8 * np.sin(4.0 * walked + ids)
    rows["paint"][:, :3] = np.clip(table[:, 7:10] * 255.0, 0.0, 255.0)
    rows["paint"][:, 3] = BRAKING * table[:, 10] + LEFT * (table[:, 11] > 0) + RIGHT * (table[:, 11] < 0)
    rows["second"] = _second_colours(shapes, (ids * 2654435761) & 0xFFFFFFFF)
    rows["id"] = id_bytes(np.array(near) + 1)
    return rows, shapes


def _second_colours(shapes: np.ndarray, mixed: np.ndarray) -> np.ndarray:
    """(N, 4) uint8: trousers or the cargo box, and the skin tone. `mixed`: hashed ids."""
    second = np.zeros((len(shapes), 4), np.uint8)
    second[:, :3] = _TROUSERS[mixed % len(_TROUSERS)]
    second[:, 3] = (mixed >> 8) & 255
    white = (shapes == SHAPE_NAMES.index("truck")) & (mixed & 3 != 0)
    second[white, :3] = (225, 226, 228)
    return second


def head_rows(heads: SignalHeads, lights: Mapping[int, LightState], first_id: int) -> np.ndarray:
    """Instances of all signal heads; groups without a state in `lights` are dark. Ids from `first_id`."""
    rows = np.zeros(len(heads.group), INSTANCE)
    rows["place"] = heads.pose
    rows["size"] = (1.0, 1.0, 1.0, 0.0)
    lamp = {group: (1 + int(state)) << 4 for group, state in lights.items()}
    rows["paint"][:, 3] = [lamp.get(int(group), DARK_HEAD) for group in heads.group]
    rows["id"] = id_bytes(np.arange(len(rows)) + first_id)
    return rows


def id_bytes(number: np.ndarray) -> np.ndarray:
    """(N, 4) uint8: the numbers (N,) as little-endian bytes."""
    return np.asarray(number, "<u4").view(np.uint8).reshape(-1, 4)
