"""Markers for viewers: plan, candidates and boxes in base_link. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from builtin_interfaces.msg import Duration
from geometry_msgs.msg import Point
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker, MarkerArray

from wamdiff2_core.overlay import BOX_COLOURS, PLAN_COLOUR
from wamdiff2_core.scene import Box, Camera, Failure, Plan
from wamdiff2_core.trajectory import Trajectory
from wamdiff2_ros import conversions as cv

GROUND_M = 0.1  # lines lie this high above the ground
FARTHEST_M = 80.0  # a foot point further away is no measurement any more
UNKNOWN_M = 30.0  # where a box is drawn whose foot does not stand on the ground: a light, the horizon
GREY, RED = (190, 190, 190), (255, 70, 70)
LINE, DOTS, TEXT = 0, 1, 2  # marker ids of the plan


def plan_markers(stamp: cv.Stamp, plan: Plan | Failure, smooth: Trajectory | None, lifetime_s: float) -> MarkerArray:
    """A plan: its smooth path (as planned, not moved on) and the model's own points; or the words "no plan"."""
    if isinstance(plan, Failure):
        words = _text(stamp, "plan", TEXT, (0.0, 0.0, 3.0), f"no plan: {plan.kind.value}", RED)
        return _lasting([_gone(stamp, "plan", LINE), _gone(stamp, "plan", DOTS), words], lifetime_s)
    dots = _marker(stamp, "plan", DOTS, Marker.SPHERE_LIST, PLAN_COLOUR)
    dots.scale.x = dots.scale.y = dots.scale.z = 0.4
    dots.points = [_point(x, y) for x, y in plan.points]
    path = _from_here(plan.points) if smooth is None else smooth.points
    line = _line(stamp, "plan", LINE, path, PLAN_COLOUR, 0.3)
    return _lasting([line, dots, _gone(stamp, "plan", TEXT)], lifetime_s)


def stop_markers(stamp: cv.Stamp, smooth: Trajectory, lifetime_s: float) -> MarkerArray:
    """A stop trajectory: its braking path in red."""
    line = _line(stamp, "plan", LINE, smooth.points, RED, 0.3)
    words = _text(stamp, "plan", TEXT, (0.0, 0.0, 3.0), "stop: no young plan", RED)
    return _lasting([line, _gone(stamp, "plan", DOTS), words], lifetime_s)


def candidate_markers(stamp: cv.Stamp, candidates: Sequence[Plan], lifetime_s: float) -> MarkerArray:
    """Thin lines, the surer the less transparent."""
    lines = []
    for index, candidate in enumerate(candidates):
        line = _line(stamp, "candidates", index, _from_here(candidate.points), GREY, 0.05)
        line.color.a = float(np.clip(0.25 + 0.75 * float(candidate.confidence.mean()), 0.25, 1.0))
        lines.append(line)
    return _lasting(lines, lifetime_s)


def box_markers(stamp: cv.Stamp, boxes: Iterable[Box], camera: Camera | None, lifetime_s: float) -> MarkerArray:
    """Boxes as rectangles where they stand on flat ground, with words; without the camera, words above the car."""
    markers: list[Marker] = []
    for index, box in enumerate(boxes):
        colour = BOX_COLOURS.get(box.label, (255, 255, 255))
        words = f"{box.label} {box.confidence:.2f}"
        if camera is None or box.camera != camera.name:
            place = (0.0, 0.0, 3.5 + 0.6 * index)
            markers.append(_text(stamp, "boxes", 2 * index + 1, place, f"{words} in {box.camera}", colour))
            continue
        corners, known = box_in_space(box, camera)
        frame = _marker(stamp, "boxes", 2 * index, Marker.LINE_STRIP, colour)
        frame.scale.x = 0.1
        frame.points = [Point(x=float(x), y=float(y), z=float(z)) for x, y, z in [*corners, corners[0]]]
        top = corners[2:].mean(axis=0) + (0.0, 0.0, 0.4)
        words = words if known else f"{words} (distance unknown)"
        markers += [frame, _text(stamp, "boxes", 2 * index + 1, tuple(top), words, colour)]
    return _lasting(markers, lifetime_s)


def box_in_space(box: Box, camera: Camera) -> tuple[np.ndarray, bool]:
    """Corners (4, 3) in base_link of an upright rectangle that covers the box, and whether its distance is known.

    The distance is that of the place where the middle of the lower edge meets flat ground, if it does within 80 m.
    """
    x1, y1, x2, y2 = box.pixels(camera.width, camera.height)
    foot = _ray((x1 + x2) / 2.0, y2, camera)
    height = float(camera.position[2])
    known = foot[2] < 0.0 and np.hypot(*foot[:2]) * height / -foot[2] <= FARTHEST_M
    # The same depth along the optical axis for all corners: rays are scaled to 1 m of depth.
    depth = height / -float(foot[2]) if known else UNKNOWN_M
    rays = np.array([_ray(u, v, camera) for u, v in ((x1, y2), (x2, y2), (x2, y1), (x1, y1))])
    return np.asarray(camera.position) + depth * rays, bool(known)


def _ray(u: float, v: float, camera: Camera) -> np.ndarray:
    """Direction (3,) in base_link of a pixel, 1 m deep along the optical axis. Inverse of overlay.project."""
    right = (u - camera.width / 2.0) / camera.focal_px
    down = (v - camera.height / 2.0) / camera.focal_px
    cp, sp = np.cos(camera.pitch), np.sin(camera.pitch)
    ahead, up = cp - down * sp, -down * cp - sp
    c, s = np.cos(camera.yaw), np.sin(camera.yaw)
    return np.array([c * ahead + s * right, s * ahead - c * right, up])


def _lasting(markers: list[Marker], lifetime_s: float) -> MarkerArray:
    """All of them vanish by themselves after so long, if nothing newer replaces them."""
    whole, part = divmod(round(lifetime_s * 1e9), 1_000_000_000)
    for marker in markers:
        marker.lifetime = Duration(sec=whole, nanosec=part)
    return MarkerArray(markers=markers)


def _gone(stamp: cv.Stamp, name: str, number: int) -> Marker:
    return Marker(header=cv.header(stamp, cv.BASE_FRAME), ns=name, id=number, action=Marker.DELETE)


def _from_here(points: np.ndarray) -> np.ndarray:
    return np.vstack([[0.0, 0.0], points])


def _line(stamp: cv.Stamp, name: str, number: int, points: np.ndarray, colour: Sequence[int], width_m: float) -> Marker:
    line = _marker(stamp, name, number, Marker.LINE_STRIP, colour)
    line.scale.x = float(width_m)
    line.points = [_point(x, y) for x, y in points]
    return line


def _text(stamp: cv.Stamp, name: str, number: int, at: Sequence[float], words: str, colour: Sequence[int]) -> Marker:
    text = _marker(stamp, name, number, Marker.TEXT_VIEW_FACING, colour)
    text.scale.z = 0.5
    text.pose.position = Point(x=float(at[0]), y=float(at[1]), z=float(at[2]))
    text.text = words
    return text


def _marker(stamp: cv.Stamp, name: str, number: int, kind: int, colour: Sequence[int]) -> Marker:
    marker = Marker(header=cv.header(stamp, cv.BASE_FRAME), ns=name, id=number, type=kind, action=Marker.ADD)
    marker.pose.orientation.w = 1.0
    r, g, b = (float(value) / 255.0 for value in colour)
    marker.color = ColorRGBA(r=r, g=g, b=b, a=1.0)
    return marker


def _point(x: float, y: float) -> Point:
    return Point(x=float(x), y=float(y), z=GROUND_M)
