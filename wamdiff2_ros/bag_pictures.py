"""Moments of a drive to look at: camera pictures of a bag with the plan and the boxes drawn in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.record import Snapshot
from wamdiff2_core.overlay import overlay
from wamdiff2_core.scene import Camera
from wamdiff2_ros.bag_messages import BOXES_UNKNOWN, Bag, boxes_of, plan_points, stamp_ns
from wamdiff2_ros.images import message_to_rgb

Messages = Mapping[int, Any]


def moments(plans: Messages, boxes: Messages, status: Messages, count: int) -> list[int]:
    """Stamps (ns) spread over the drive; moments with plan and boxes where there are enough of them."""
    both = sorted(set(boxes) & set(plans))
    candidates = both if len(both) >= count else sorted(plans) or sorted(status)
    if not candidates or count < 1:
        return []
    at = np.linspace(0, len(candidates) - 1, min(count, len(candidates))).round().astype(int)
    return [candidates[k] for k in at]


def snapshots(
    bag: Bag, plans: Messages, boxes: Messages, status: Messages, cameras: Sequence[Camera], count: int
) -> list[Snapshot]:
    """At most `count` moments with the pictures of all `cameras` that the bag holds for them, left camera first."""
    wanted = set(moments(plans, boxes, status, count))
    topics: dict[str, str] = {}
    for camera in cameras:
        topics |= {f"/world/{camera.name}/image{end}": camera.name for end in ("", "/compressed")}
    pictures: dict[int, dict[str, np.ndarray]] = {}
    for topic, message in bag.messages(topics):
        ns = stamp_ns(message)
        if ns in wanted:
            with suppress(DataError):  # a picture that cannot be shown is left out of the strip
                pictures.setdefault(ns, {})[topics[topic]] = message_to_rgb(message)
    return [
        _snapshot(ns, pictures[ns], plans.get(ns), boxes.get(ns), status.get(ns), cameras) for ns in sorted(pictures)
    ]


def _snapshot(
    ns: int, pictures: Mapping[str, np.ndarray], plan: Any, boxes: Any, status: Any, cameras: Sequence[Camera]
) -> Snapshot:
    points, found = plan_points(plan), boxes_of(boxes) if boxes is not None else ()
    drawn = {}
    for camera in sorted(cameras, key=lambda camera: -camera.yaw):
        if camera.name in pictures:
            seen = [box for box in found if box.camera == camera.name]
            drawn[camera.name] = overlay(pictures[camera.name], camera, points, seen)
    caption = [plan.instruction] if plan is not None and plan.instruction else []
    if status is not None:
        caption = [f"{status.time_s:.1f} s", *caption, f"{status.speed_mps * 3.6:.0f} km/h"]
    if plan is not None and points is None:
        caption.append("no valid plan")
    if boxes is not None and boxes.status != BOXES_UNKNOWN:
        caption.append(f"{len(found)} boxes" if found else "nothing there")
    return Snapshot(ns * 1e-9, drawn, ", ".join(caption))
