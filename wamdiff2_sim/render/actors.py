"""Road users and signal heads as instance tables for the shaders."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

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


def actor_rows(actors: Iterable[ActorView], eye: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Instances (INSTANCE) of the actors within DRAW_RANGE_M of `eye`, and their shapes (indices into SHAPE_NAMES).

    `id` is 1 + the position in `actors`.
    """
    rows, shapes = [], []
    for number, actor in enumerate(actors, start=1):
        if math.hypot(actor.x - eye[0], actor.y - eye[1]) < DRAW_RANGE_M:
            rows.append(_row(actor, number))
            shapes.append(SHAPE_NAMES.index(shape_of(actor)))
    return np.array(rows, INSTANCE), np.array(shapes, np.int64)


def _row(actor: ActorView, number: int) -> tuple:
    flags = BRAKING * actor.brake_lights + LEFT * (actor.indicator > 0) + RIGHT * (actor.indicator < 0)
    paint = tuple(min(max(int(c * 255), 0), 255) for c in actor.colour)
    mixed = (actor.id * 2654435761) & 0xFFFFFFFF
    second = (225, 226, 228) if actor.kind == "truck" and mixed & 3 else tuple(_TROUSERS[mixed % len(_TROUSERS)])
    second = paint if actor.kind == "cyclist" else second
    skin = (mixed >> 8) & 255
    # legs swing with the distance walked, so that standing people stand still
    gait = 0.8 * math.sin(4.0 * (actor.x * math.cos(actor.yaw) + actor.y * math.sin(actor.yaw)) + actor.id)
    place, size = (actor.x, actor.y, actor.z, actor.yaw), (actor.length, actor.width, actor.height, gait)
    return place, size, (*paint, flags), (*second, skin), id_bytes(number)


def head_rows(heads: SignalHeads, lights: Mapping[int, LightState], first_id: int) -> np.ndarray:
    """Instances of all signal heads; groups without a state in `lights` are dark. Ids from `first_id`."""
    rows = np.zeros(len(heads.group), INSTANCE)
    rows["place"] = heads.pose
    rows["size"] = (1.0, 1.0, 1.0, 0.0)
    lamp = {group: (1 + int(state)) << 4 for group, state in lights.items()}
    rows["paint"][:, 3] = [lamp.get(int(group), DARK_HEAD) for group in heads.group]
    number = np.arange(len(rows)) + first_id
    rows["id"] = np.stack([number & 255, (number >> 8) & 255, (number >> 16) & 255, np.zeros_like(number)], 1)
    return rows


def id_bytes(number: int) -> tuple[int, int, int, int]:
    return number & 255, (number >> 8) & 255, (number >> 16) & 255, 0
