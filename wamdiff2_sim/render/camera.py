"""Where a rig's cameras look: matrices, view culling, and their places in one atlas picture.

Camera axes for projection: x right, y down, z forward (optical frame). Clip space has y down too, so that the first
row read back
from the framebuffer is the top row of the image: nothing needs flipping, and front faces are clockwise.
A positive `Camera.pitch` looks down (right-handed turn about the ego's left axis).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wamdiff2_core.scene import Camera
from wamdiff2_sim.types import Pose

NEAR_M = 0.4
FAR_M = 900.0


@dataclass(frozen=True)
class View:
    """A camera at one moment.

    `eye` (3,) map frame; `rotation` (3, 3) rows right, down, forward; `matrix` (4, 4) map -> clip.
    """

    camera: Camera
    eye: np.ndarray
    rotation: np.ndarray
    matrix: np.ndarray

    def to_camera(self, points: np.ndarray) -> np.ndarray:
        """Map points (N, 3) in the optical frame: right, down, forward (m)."""
        return (np.asarray(points, dtype=np.float64) - self.eye) @ self.rotation.T

    def visible(self, centres: np.ndarray, radii: np.ndarray, far_m: float) -> np.ndarray:
        """(N,) bool: spheres that may touch the view, nearer than `far_m`."""
        right, _, forward = ((centres - self.eye) @ self.rotation.T).T
        half = math.tan(math.radians(self.camera.fov_deg) / 2.0)
        slack = radii * math.hypot(1.0, half)
        return (
            (forward > -radii) & (np.abs(right) - slack <= np.maximum(forward, 0.0) * half) & (forward < far_m + radii)
        )


def look(camera: Camera, ego: Pose) -> View:
    """The view of `camera` on a vehicle whose base_link is at `ego`."""
    c, s = math.cos(ego.yaw), math.sin(ego.yaw)
    px, py, pz = camera.position
    eye = np.array([ego.x + c * px - s * py, ego.y + s * px + c * py, ego.z + pz])
    c, s = math.cos(ego.yaw + camera.yaw), math.sin(ego.yaw + camera.yaw)
    cp, sp = math.cos(camera.pitch), math.sin(camera.pitch)
    rotation = np.array([[s, -c, 0.0], [-c * sp, -s * sp, -cp], [c * cp, s * cp, -sp]])
    extrinsic = np.eye(4)
    extrinsic[:3, :3] = rotation
    extrinsic[:3, 3] = -rotation @ eye
    return View(camera, eye, rotation, _projection(camera) @ extrinsic)


def _projection(camera: Camera) -> np.ndarray:
    """Optical frame -> clip space, (4, 4)."""
    matrix = np.zeros((4, 4))
    matrix[0, 0] = 2.0 * camera.focal_px / camera.width
    matrix[1, 1] = 2.0 * camera.focal_px / camera.height
    matrix[2, 2] = (FAR_M + NEAR_M) / (FAR_M - NEAR_M)
    matrix[2, 3] = -2.0 * FAR_M * NEAR_M / (FAR_M - NEAR_M)
    matrix[3, 2] = 1.0
    return matrix


@dataclass(frozen=True)
class Atlas:
    """One picture that holds all cameras: its size and the place (x, y, width, height) of each, in rig order."""

    width: int
    height: int
    places: tuple[tuple[int, int, int, int], ...]


def pack(sizes: list[tuple[int, int]]) -> Atlas:
    """Stack (width, height) pictures in columns as high as the highest of them."""
    height = max(h for _, h in sizes)
    columns: list[list[int]] = []  # x, width, filled height
    places = []
    for w, h in sizes:
        column = next((c for c in columns if c[1] == w and c[2] + h <= height), None)
        if column is None:
            column = [sum(c[1] for c in columns), w, 0]
            columns.append(column)
        places.append((column[0], column[2], w, h))
        column[2] += h
    return Atlas(sum(c[1] for c in columns), height, tuple(places))
