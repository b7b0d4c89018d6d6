"""What a replay's page and its line-by-line file show of each frame, as plain data."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from wamdiff2_core.evaluate.plots import picture_uri
from wamdiff2_core.scene import Box, Camera
from wamdiff2_ros.replay import Frame, Made, Replay

WIDTH_PX = 480
QUALITY = 72
GAP = 2.5  # times the usual time between frames: shown as a hole in the chart


def viewer(replay: Replay, cameras: Sequence[Camera], timing: bool = True) -> dict[str, Any]:
    """Cameras, block sizes, pictures (data URIs) and frames, in order of time."""
    seen = {name for pictures in replay.pictures.values() for name in pictures}
    shown = [camera for camera in sorted(cameras, key=lambda camera: -camera.yaw) if camera.name in seen]
    front = min(shown, key=lambda camera: abs(camera.yaw), default=None)
    numbers = {ns: k for k, ns in enumerate(sorted(replay.pictures))}
    start = min((frame.ns for frame in replay.frames), default=0)
    made = by_frame(replay.made)
    steps = np.diff(sorted(frame.ns for frame in replay.frames)) * 1e-9
    return {
        "cameras": [_camera(camera, camera is front) for camera in sorted(shown, key=lambda c: c is not front)],
        "sizes": sorted({one.block_size for one in replay.made}),
        "gap": GAP * float(np.median(steps)) if len(steps) else 1.0,
        "pictures": [
            {name: picture_uri(_small(picture), QUALITY) for name, picture in replay.pictures[ns].items()}
            for ns in sorted(replay.pictures)
        ],
        "frames": [
            {
                **frame_data(frame, start),
                "picture": numbers.get(frame.ns),
                "made": {one.block_size: made_data(one, frame, timing) for one in made.get(frame.ns, [])},
            }
            for frame in sorted(replay.frames, key=lambda frame: frame.ns)
        ],
    }


def write_lines(path: Path, replay: Replay) -> None:
    """A line of JSON for each frame and block size: what was answered, without anything measured; byte for byte the
    same for the same bag, checkpoint and settings on one machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = {frame.ns: frame for frame in replay.frames}
    partial = path.with_suffix(path.suffix + ".part")
    with partial.open("w", encoding="utf-8") as out:
        for one in sorted(replay.made, key=lambda one: (one.ns, one.block_size)):
            frame = frames[one.ns]
            line = {"stamp_ns": one.ns, "block_size": one.block_size, **made_data(one, frame, timing=False)}
            line |= {"forwards": one.cost.forwards, "tokens": one.cost.tokens, "failures": one.failures}
            line |= {"instruction": frame.instruction, "question": frame.question, "driven": _points(frame.driven)}
            out.write(json.dumps(line, allow_nan=False) + "\n")
    os.replace(partial, path)


def by_frame(made: Sequence[Made]) -> dict[int, list[Made]]:
    """What was made of each frame."""
    found: dict[int, list[Made]] = {}
    for one in made:
        found.setdefault(one.ns, []).append(one)
    return found


def frame_data(frame: Frame, start_ns: int) -> dict[str, Any]:
    """What the bag tells about a frame."""
    return {
        "t": (frame.ns - start_ns) * 1e-9,
        "instruction": frame.instruction,
        "question": frame.question,
        "speed": frame.speed_mps,
        "driven": _points(frame.driven),
        "planned": _points(frame.planned),
        "expert": _points(frame.expert),
        "ade_then": _ade(frame.planned, frame.driven),
        "boxes": _boxes(frame.boxes),
        "true_boxes": _boxes(frame.true_boxes),
        "answer": frame.answer,
        "true_answer": frame.true_answer,
    }


def made_data(one: Made, frame: Frame, timing: bool) -> dict[str, Any]:
    """What was made of a frame. `why`: the reason of a failed plan."""
    why = one.failures.get("plan")
    return {
        "points": _points(one.points),
        "ade": _ade(one.points, frame.driven),
        "ade_then": _ade(one.points, frame.planned),
        "why": None if why is None else f"{why}: {one.said.get('plan', '')}",
        "boxes": _boxes(one.boxes),
        "answer": one.answer,
        "ms": one.cost.total_ms if timing and one.cost.forwards else None,
    }


def _camera(camera: Camera, front: bool) -> Mapping[str, Any]:
    view: dict[str, Any] = {"name": camera.name, "front": front, "width": camera.width, "height": camera.height}
    view |= {"focal": camera.focal_px, "position": list(camera.position), "yaw": camera.yaw, "pitch": camera.pitch}
    return view


def _small(picture: np.ndarray) -> np.ndarray:
    height, width = picture.shape[:2]
    if width <= WIDTH_PX:
        return picture
    size = (WIDTH_PX, max(1, round(height * WIDTH_PX / width)))
    return cv2.resize(picture, size, interpolation=cv2.INTER_AREA)


def _points(points: np.ndarray | None) -> list[list[float]] | None:
    return None if points is None else [[round(float(x), 3), round(float(y), 3)] for x, y in points]


def _ade(points: np.ndarray | None, reference: np.ndarray | None) -> float | None:
    if points is None or reference is None:
        return None
    return round(float(np.linalg.norm(points - reference, axis=1).mean()), 4)


def _boxes(boxes: Sequence[Box] | None) -> list[dict[str, Any]] | None:
    if boxes is None:
        return None
    return [{"label": box.label, "camera": box.camera, "xyxy": list(box.xyxy)} for box in boxes]
