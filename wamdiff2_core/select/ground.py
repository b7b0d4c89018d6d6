"""Detected boxes of the front camera as things on a flat road: what one picture tells of the surroundings.

The lower edge of a box is taken for where the thing stands; its size is that of its kind; it stands still, because one
picture tells no speed. Lights are left out, and so are boxes that end above the horizon or reach the lower edge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wamdiff2_core.scene import Box, Camera
from wamdiff2_core.select.rules import Thing

SIZES_M = {"car": (4.5, 1.9), "truck": (8.0, 2.5), "pedestrian": (0.5, 0.5), "cyclist": (1.8, 0.6)}
FARTHEST_M = 60.0
LOWEST = 995  # of 1000: boxes that reach down to here stand outside of the picture


def things_of(boxes: Sequence[Box], camera: Camera) -> tuple[Thing, ...]:
    """Things in base_link's frame, boxes of other cameras and kinds left out."""
    found = (_thing(box, camera) for box in boxes if box.camera == camera.name and box.label in SIZES_M)
    return tuple(one for one in found if one is not None)


def _thing(box: Box, camera: Camera) -> Thing | None:
    length, width = SIZES_M[box.label]
    if box.xyxy[3] >= LOWEST:
        return None
    x1, _, x2, y2 = box.pixels(camera.width, camera.height)
    right = ((x1 + x2) / 2.0 - camera.width / 2.0) / camera.focal_px
    down = (y2 - camera.height / 2.0) / camera.focal_px
    # Camera axes: forward (pitch up positive), right, down; the ray through the middle of the lower edge.
    cos, sin = math.cos(camera.pitch), math.sin(camera.pitch)
    ahead, up = cos + down * sin, sin - down * cos
    if up >= -1e-3:
        return None
    reach = camera.position[2] / -up
    ahead, left = reach * ahead, -reach * right
    if math.hypot(ahead, left) > FARTHEST_M:
        return None
    c, s = math.cos(camera.yaw), math.sin(camera.yaw)
    x = camera.position[0] + ahead * c - left * s + length / 2.0 * c  # the lower edge is the near side
    y = camera.position[1] + ahead * s + left * c + length / 2.0 * s
    return Thing(float(x), float(y), float(np.remainder(camera.yaw + np.pi, 2 * np.pi) - np.pi), 0.0, length, width)
