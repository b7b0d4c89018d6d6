"""True 2D boxes: which pixels of a camera picture an actor or a signal head covers, and how much of it can be seen.

The visible fraction is counted in a small picture of ids (`Renderer.render_ids`): pixels where the thing is in front,
over pixels it
would cover alone. It is exact at that resolution; for things of a few id pixels it is coarse (steps of 1 / alone).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wamdiff2_core.scene import Camera
from wamdiff2_sim.render.actor_mesh import HEAD_DEPTH_M, HEAD_HEIGHT_M, HEAD_WIDTH_M
from wamdiff2_sim.render.camera import NEAR_M, View, look
from wamdiff2_sim.render.id_pass import IdImage
from wamdiff2_sim.render.town import SignalHeads
from wamdiff2_sim.types import ActorView, Pose

FACING_RAD = np.radians(60.0)
SIGNAL_BOX_RANGE_M = 60.0
_EDGES = [(a, b) for a in range(8) for b in range(a + 1, 8) if bin(a ^ b).count("1") == 1]


class ProjectedBox(NamedTuple):
    """`id`: actor id, or the index of a signal head.

    `xyxy` in pixels, clipped to the picture; `distance` from the camera, m.
    """

    id: int
    xyxy: tuple[float, float, float, float]
    visible_fraction: float
    distance: float


def project_boxes(actors: Sequence[ActorView], camera: Camera, ego_pose: Pose, ids: IdImage) -> list[ProjectedBox]:
    """Boxes of the actors that are in the picture at all, in the order of `actors`; `ids` from the same moment."""
    view = look(camera, ego_pose)
    found = []
    for number, actor in enumerate(actors, start=1):
        middle = np.array([actor.x, actor.y, actor.z + actor.height / 2.0])
        xyxy = _clip(project_box(view, middle, actor.yaw, (actor.length, actor.width, actor.height)), camera)
        if xyxy is not None:
            distance = float(np.linalg.norm(middle - view.eye))
            found.append(ProjectedBox(actor.id, xyxy, ids.fraction(number), distance))
    return found


def project_lights(
    heads: SignalHeads, camera: Camera, ego_pose: Pose, ids: IdImage, actor_count: int
) -> list[ProjectedBox]:
    """Boxes of the signal heads that face the camera within 60 degrees, nearer than 60 m.

    `id` is the index into `heads`.
    """
    view = look(camera, ego_pose)
    offset = view.eye - heads.pose[:, :3]
    distance = np.linalg.norm(offset, axis=1)
    turn = np.arctan2(offset[:, 1], offset[:, 0]) - heads.pose[:, 3]
    facing = np.cos(turn) >= np.cos(FACING_RAD)
    found = []
    for row in np.flatnonzero(facing & (distance < SIGNAL_BOX_RANGE_M)).tolist():
        size = (HEAD_DEPTH_M, HEAD_WIDTH_M, HEAD_HEIGHT_M)
        xyxy = _clip(project_box(view, heads.pose[row, :3], heads.pose[row, 3], size), camera)
        if xyxy is not None:
            found.append(ProjectedBox(row, xyxy, ids.fraction(1 + actor_count + row), float(distance[row])))
    return found


def project_box(view: View, middle: np.ndarray, yaw: float, size: tuple[float, float, float]) -> np.ndarray | None:
    """(4,) x1 y1 x2 y2 in pixels around a box (length, width, height), not clipped to the picture.

    None when it is all behind.
    """
    corner = np.array([[(i >> axis) & 1 for axis in range(3)] for i in range(8)]) - 0.5
    local = corner * size
    c, s = np.cos(yaw), np.sin(yaw)
    points = middle + np.stack([c * local[:, 0] - s * local[:, 1], s * local[:, 0] + c * local[:, 1], local[:, 2]], 1)
    eye = view.to_camera(points)
    front = eye[eye[:, 2] >= NEAR_M]
    if not len(front):
        return None
    if len(front) < 8:  # cut the edges that cross the near plane
        cuts = []
        for a, b in _EDGES:
            if (eye[a, 2] - NEAR_M) * (eye[b, 2] - NEAR_M) < 0:
                t = (NEAR_M - eye[a, 2]) / (eye[b, 2] - eye[a, 2])
                cuts.append(eye[a] + t * (eye[b] - eye[a]))
        front = np.concatenate([front, np.array(cuts).reshape(-1, 3)])
    camera = view.camera
    pixels = camera.focal_px * front[:, :2] / front[:, 2:] + (camera.width / 2.0, camera.height / 2.0)
    return np.concatenate([pixels.min(axis=0), pixels.max(axis=0)])


def _clip(xyxy: np.ndarray | None, camera: Camera) -> tuple[float, float, float, float] | None:
    """Clipped to the picture; None when nothing of it is inside."""
    if xyxy is None:
        return None
    x1, y1, x2, y2 = np.clip(xyxy, 0.0, [camera.width, camera.height] * 2).tolist()
    return (x1, y1, x2, y2) if x2 - x1 > 0.5 and y2 - y1 > 0.5 else None
