"""A frame of the world as conversation entries in upstream's JSON layout: one plan, one detect, some ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from wamdiff2_core.scene import Box, EgoState
from wamdiff2_core.tasks import ask, detect, plan
from wamdiff2_sim.types import GtBox, WorldState

DATASOURCE = "wamdiff2_sim"
MIN_VISIBLE = 0.35
MIN_WIDTH_UNITS, MIN_HEIGHT_UNITS = 8, 16  # of 1000: smaller boxes cannot be seen at the model's image size


@dataclass(frozen=True)
class Frame:
    """One labelled moment. `images`: model-sized (H, W, 3) uint8 RGB by camera, in rig order; `points` (8, 2) m,
    ego frame.
    """

    name: str
    images: dict[str, np.ndarray]
    ego: EgoState
    instruction: str
    points: np.ndarray
    boxes: tuple[Box, ...]
    questions: tuple[tuple[str, str], ...]
    meta: dict[str, object] = field(default_factory=dict)


def ego_state(state: WorldState) -> EgoState:
    """Motion as odometry tells it: base_link moves along its own x; sideways acceleration by the yaw rate."""
    return EgoState((state.speed, 0.0), (state.acceleration, state.speed * state.yaw_rate), state.yaw_rate)


def detections(boxes: Sequence[GtBox], size: tuple[int, int]) -> tuple[Box, ...]:
    """The six largest visible true boxes of the front camera, `size` (width, height) px, in units of 0-1000."""
    width, height = size
    out = []
    for box in boxes:
        if box.visible < MIN_VISIBLE or box.camera != "cam_front":
            continue
        x1, y1, x2, y2 = box.xyxy
        units = np.round(np.array([x1 / width, y1 / height, x2 / width, y2 / height]) * 1000.0).astype(int)
        x1, y1, x2, y2 = (int(value) for value in np.clip(units, 0, 1000))
        if x2 - x1 < MIN_WIDTH_UNITS or y2 - y1 < MIN_HEIGHT_UNITS:
            continue
        out.append(Box(box.label, (x1, y1, x2, y2)))
    out.sort(key=lambda box: -(box.xyxy[2] - box.xyxy[0]) * (box.xyxy[3] - box.xyxy[1]))
    return tuple(out[: detect.MAX_BOXES])


def entries(frame: Frame, image_paths: Sequence[str]) -> list[dict[str, object]]:
    """The conversations of a frame; the human text is exactly what the driver asks."""
    head = "<image>\n" * len(image_paths)
    talks = [
        ("plan", plan.prompt_text(frame.ego, frame.instruction), plan.serialise(frame.points)),
        ("detect", detect.prompt(), detect.serialise(frame.boxes)),
        *(("ask", ask.prompt_text(question), ask.serialise(answer)) for question, answer in frame.questions),
    ]
    out: list[dict[str, object]] = []
    for index, (task, human, answer) in enumerate(talks):
        said = [{"from": "human", "value": head + human}, {"from": "gpt", "value": answer}]
        entry: dict[str, object] = {
            "id": f"{frame.name}_{task}{index}",
            "datasource": DATASOURCE,
            "image": list(image_paths),
            "conversations": said,
            "task": task,
            "meta": frame.meta if task == "plan" else {},
        }
        out.append(entry)
    return out
