"""What goes into the driver (a Scene) and what comes out of it (Plan, Detections, Answer, or a Failure).

Frames: ego frame = `base_link`, the point on the ground below the middle of the rear axle; x forward, y left, z up
(REP-103). Lengths in metres, angles in radians, times in seconds, unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

PLAN_POINTS = 8
PLAN_STEP_S = 0.5


class Command(str, Enum):
    """Navigation command of the next manoeuvre on the route."""

    FOLLOW = "follow"
    LEFT = "left"
    RIGHT = "right"
    STRAIGHT = "straight"


@dataclass(frozen=True)
class Camera:
    """A pinhole camera. `fov_deg` is horizontal; `position` (x, y, z) in the ego frame, yaw left positive."""

    name: str
    width: int
    height: int
    fov_deg: float
    position: tuple[float, float, float]
    yaw: float = 0.0
    pitch: float = 0.0

    @property
    def focal_px(self) -> float:
        """Focal length in pixels (square pixels, principal point in the middle)."""
        return self.width / (2.0 * float(np.tan(np.radians(self.fov_deg) / 2.0)))


@dataclass(frozen=True)
class EgoState:
    """Motion of the ego vehicle in its own frame: velocity (m/s), acceleration (m/s^2), yaw rate (rad/s)."""

    velocity: tuple[float, float] = (0.0, 0.0)
    acceleration: tuple[float, float] = (0.0, 0.0)
    yaw_rate: float = 0.0

    @property
    def speed(self) -> float:
        return float(np.hypot(*self.velocity))


@dataclass(frozen=True)
class Scene:
    """One moment to answer for: images by camera name (H, W, 3) uint8 RGB, in rig order; what to do; how we move."""

    images: dict[str, np.ndarray]
    instruction: str = "follow the road"
    ego: EgoState = field(default_factory=EgoState)
    question: str | None = None
    stamp_s: float = 0.0


class FailureKind(str, Enum):
    """Why there is no answer. EMPTY/TRUNCATED/INVALID come from the decoder, PARSE/RANGE from the task's grammar.

    CONTRADICTION: a plan withheld because it contradicts the instruction or an answer.
    """

    EMPTY = "empty"
    TRUNCATED = "truncated"
    INVALID = "invalid"
    PARSE = "parse"
    RANGE = "range"
    INPUT = "input"
    CONTRADICTION = "contradiction"


@dataclass(frozen=True)
class Cost:
    """What an answer took: forward passes of the text model, steps of each block, milliseconds by stage."""

    forwards: int = 0
    steps_per_block: tuple[int, ...] = ()
    tokens: int = 0
    vision_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        return self.vision_ms + self.prefill_ms + self.decode_ms


@dataclass(frozen=True)
class Failure:
    """A typed failure of a task: never driveable, always counted. `text` is the raw answer; consumers shorten it."""

    kind: FailureKind
    message: str
    text: str = ""
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True)
class Plan:
    """Eight future positions of base_link: points (8, 2) float64 (x, y), 0.5 s apart, the first at +0.5 s."""

    points: np.ndarray
    confidence: np.ndarray  # (8,) mean token probability of each waypoint
    text: str = ""
    cost: Cost = field(default_factory=Cost)
    log_likelihood: float = 0.0  # sum of the logarithms of all tokens' probabilities (natural), 0: not known


@dataclass(frozen=True)
class Box:
    """A 2D detection. `xyxy` in relative units 0-1000 of the named camera's image (Qwen3-VL's convention)."""

    label: str
    xyxy: tuple[int, int, int, int]
    confidence: float = 1.0
    camera: str = "cam_front"

    def pixels(self, width: int, height: int) -> tuple[float, float, float, float]:
        """(x1, y1, x2, y2) in pixels of an image of that size."""
        x1, y1, x2, y2 = self.xyxy
        return x1 * width / 1000.0, y1 * height / 1000.0, x2 * width / 1000.0, y2 * height / 1000.0


@dataclass(frozen=True)
class Detections:
    """Boxes in the front camera, possibly none: an empty tuple means the model said "nothing there".

    dropped: boxes of the answer that no rectangle has, and that are left out here.
    """

    boxes: tuple[Box, ...]
    text: str = ""
    cost: Cost = field(default_factory=Cost)
    dropped: int = 0


@dataclass(frozen=True)
class Answer:
    """A free-text answer to `question`."""

    question: str
    text: str
    confidence: float = 1.0
    cost: Cost = field(default_factory=Cost)
