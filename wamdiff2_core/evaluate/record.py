"""What a drive left behind, as typed data: filled from a bag (or a simulation), read by summary and report."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wamdiff2_core.scene import Box


@dataclass(frozen=True)
class PlanRecord:
    """One published plan beside what the expert would have done at the same moment.

    `points` (8, 2) in the ego frame at `stamp_s`, None where the plan was withheld; `expert` likewise. A cost that is
    not known is None.
    """

    stamp_s: float
    points: np.ndarray | None
    expert: np.ndarray | None = None
    latency_ms: float | None = None
    frame_age_ms: float | None = None
    forwards: int | None = None
    instruction: str = ""
    stamp_ns: int = 0  # exact, for matching: seconds since 1970 as a float do not hold nanoseconds


@dataclass(frozen=True)
class BoxRecord:
    """Boxes the model saw at `stamp_s` (front camera, relative units) and the boxes that were there."""

    stamp_s: float
    predicted: tuple[Box, ...]
    truth: tuple[Box, ...]


@dataclass(frozen=True)
class AnswerRecord:
    """A question, the answer given and the right one (empty where it is not known)."""

    stamp_s: float
    question: str
    answer: str
    truth: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Snapshot:
    """A moment to show: (H, W, 3) uint8 RGB pictures by camera, already drawn over, and a caption."""

    stamp_s: float
    pictures: dict[str, np.ndarray]
    caption: str = ""


@dataclass
class DriveRecord:
    """A whole drive. `track` (T, 4): time s, x m, y m, speed m/s of base_link in the map frame."""

    settings: dict[str, object] = field(default_factory=dict)
    score: dict[str, object] = field(default_factory=dict)
    track: np.ndarray = field(default_factory=lambda: np.zeros((0, 4)))
    route: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))
    lanes: list[np.ndarray] = field(default_factory=list)
    plans: list[PlanRecord] = field(default_factory=list)
    boxes: list[BoxRecord] = field(default_factory=list)
    answers: list[AnswerRecord] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    parse_failures: int = 0
    failures: dict[str, int] = field(default_factory=dict)  # of all tasks, by kind
    frames_dropped: int = 0
    wall_seconds: float = 0.0
