"""What the driver saw and decided, drawn into its images: planned path, boxes, a line of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import cv2
import numpy as np

from wamdiff2_core.scene import Box, Camera

PLAN_COLOUR = (40, 220, 120)
EXPERT_COLOUR = (250, 190, 60)
BOX_COLOURS = {
    "car": (80, 170, 255),
    "truck": (150, 120, 255),
    "pedestrian": (255, 90, 90),
    "cyclist": (255, 120, 220),
    "light": (255, 220, 60),
}
NEAR_M = 0.3  # points closer to the image plane than this are cut off


def camera_points(points: np.ndarray, camera: Camera) -> np.ndarray:
    """Ego-frame points (N, 3) in the camera's own frame (N, 3): x right, y down, z forward (REP-103 optical)."""
    offset = np.asarray(points, float) - np.asarray(camera.position, float)
    c, s = np.cos(camera.yaw), np.sin(camera.yaw)
    forward, left, up = offset[:, 0] * c + offset[:, 1] * s, offset[:, 1] * c - offset[:, 0] * s, offset[:, 2]
    cp, sp = np.cos(camera.pitch), np.sin(camera.pitch)  # pitch > 0 looks down (rotation about y, left)
    return np.stack([-left, -(up * cp + forward * sp), forward * cp - up * sp], axis=1)


def project(points: np.ndarray, camera: Camera) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (N, 2) of ego-frame points (N, 3), and which of them lie in front of the camera (N,)."""
    local = camera_points(points, camera)
    ahead = local[:, 2] > NEAR_M
    depth = np.where(ahead, local[:, 2], 1.0)
    centre = np.array([camera.width / 2.0, camera.height / 2.0])
    return centre + local[:, :2] / depth[:, None] * camera.focal_px, ahead


def draw_path(image: np.ndarray, points: np.ndarray, camera: Camera, colour=PLAN_COLOUR, width_m: float = 1.2) -> None:
    """Draw a planned path (N, 2) of base_link as a ribbon on flat ground, with a dot per waypoint; in place.

    The ribbon starts at the ego vehicle, so that a plan which stands still shows as a short stub and not as nothing.
    """
    path = _dense(np.vstack([[0.0, 0.0], np.asarray(points, float)]))
    heading = np.gradient(path, axis=0)
    norm = np.linalg.norm(heading, axis=1, keepdims=True)
    normal = np.stack([-heading[:, 1], heading[:, 0]], axis=1) / np.where(norm > 1e-6, norm, 1.0)
    sides = [path + normal * (side * width_m / 2) for side in (1.0, -1.0)]
    (left, left_ok), (right, right_ok) = (project(_on_ground(side), camera) for side in sides)
    layer = image.copy()
    for k in np.flatnonzero((left_ok & right_ok)[:-1] & (left_ok & right_ok)[1:]):
        quad = np.array([left[k], left[k + 1], right[k + 1], right[k]])
        if np.abs(quad).max() < 16_000:  # OpenCV's fixed-point limit
            cv2.fillConvexPoly(layer, np.round(quad * 16).astype(np.int32), colour, cv2.LINE_AA, shift=4)
    cv2.addWeighted(layer, 0.45, image, 0.55, 0.0, dst=image)
    dots, ok = project(_on_ground(np.asarray(points, float)), camera)
    for dot in dots[ok]:
        if np.abs(dot).max() < 16_000:
            cv2.circle(image, _pixel(dot), max(2, camera.width // 200), colour, -1, cv2.LINE_AA)


def draw_boxes(image: np.ndarray, boxes: Iterable[Box], dashed: bool = False) -> None:
    """Draw boxes (relative units) with label and confidence; thin and without text when `dashed` (truth); in place."""
    height, width = image.shape[:2]
    for box in boxes:
        x1, y1, x2, y2 = (int(round(v)) for v in box.pixels(width, height))
        colour = BOX_COLOURS.get(box.label, (255, 255, 255))
        cv2.rectangle(image, (x1, y1), (x2, y2), colour, 1 if dashed else max(1, width // 320), cv2.LINE_AA)
        if not dashed:
            draw_text(image, f"{box.label} {box.confidence:.2f}", (x1, max(10, y1 - 4)), colour)


def draw_text(image: np.ndarray, text: str, at: tuple[int, int], colour: Sequence[int] = (255, 255, 255)) -> None:
    """A line of ASCII text with a dark outline, its size following the image; in place."""
    scale = max(0.32, image.shape[1] / 1600.0)
    # The outline is the same text moved by a pixel: thicker letters are wider as well in OpenCV 5.
    around = [(dx, dy, (0, 0, 0)) for dx in (-1, 0, 1) for dy in (-1, 0, 1)]
    for dx, dy, ink in [*around, (0, 0, tuple(colour))]:
        cv2.putText(image, text, (at[0] + dx, at[1] + dy), cv2.FONT_HERSHEY_SIMPLEX, scale, ink, 1, cv2.LINE_AA)


def overlay(
    image: np.ndarray, camera: Camera, plan: np.ndarray | None, boxes: Iterable[Box] = (), lines: Sequence[str] = ()
) -> np.ndarray:
    """A copy of the camera's image (H, W, 3) with plan (8, 2), boxes and text lines; no path where plan is None."""
    picture = np.ascontiguousarray(image).copy()
    if plan is not None:
        draw_path(picture, plan, camera)
    draw_boxes(picture, boxes)
    step = max(13, image.shape[0] // 22)
    for k, line in enumerate(lines):
        draw_text(picture, line, (6, step * (k + 1)))
    return picture


def _on_ground(points: np.ndarray) -> np.ndarray:
    return np.column_stack([points, np.zeros(len(points))])


def _dense(points: np.ndarray, step_m: float = 0.5) -> np.ndarray:
    """Points about `step_m` apart along the polyline, so that its near end can be cut at the image plane."""
    length = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
    at = np.linspace(0.0, length[-1], max(2, int(length[-1] / step_m) + 1))
    return np.column_stack([np.interp(at, length, points[:, k]) for k in range(2)])


def _pixel(point: np.ndarray) -> tuple[int, int]:
    return int(round(float(point[0]))), int(round(float(point[1])))
