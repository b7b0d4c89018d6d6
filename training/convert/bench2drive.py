"""Bench2Drive clips as plan conversations: `CLIP/anno/00000.json.gz`, `CLIP/camera/rgb_front/00000.jpg`, 10 a second.

CARLA's world is left-handed (y right of x), `theta` is a compass: radians, clockwise, 0 where -y points. The recorded
point is the satellite receiver's, 1.4 m behind the middle of the car, at the rear axle. `pose` turns all that into a
right-handed pose; nothing else here knows about it. The compass is NaN, and speed null, for a few first frames: such
frames are counted and left out.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training.convert.common import Sample, is_number, local, numbers, plan_sample
from wamdiff2_core.distill.stream.conversations import BadSample, Tally
from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import PLAN_POINTS, PLAN_STEP_S, Command, EgoState
from wamdiff2_core.tasks.navigation import navigation_text

SOURCE = "bench2drive"
MOVED_M = 1.0  # within a plan step: less says nothing about the heading
_COMMANDS = {
    -1: Command.FOLLOW,
    1: Command.LEFT,
    2: Command.RIGHT,
    3: Command.STRAIGHT,
    4: Command.FOLLOW,
}
_LANE_CHANGES = {5: "change to the left lane", 6: "change to the right lane"}


@dataclass(frozen=True)
class Pose:
    """Rear axle in a right-handed world: x, y in metres, yaw in radians, left turns positive."""

    x: float
    y: float
    yaw: float


def pose(anno: dict) -> Pose:
    """Where an annotation says the car is: y is turned over, the compass becomes a yaw. Raises BadSample."""
    x, y = numbers([anno.get("x"), anno.get("y")], 2, "no position")
    if not is_number(anno.get("theta")):
        raise BadSample("no heading", f"theta: expected radians, got {anno.get('theta')}")
    yaw = math.pi / 2 - float(anno["theta"])
    return Pose(x, -y, math.atan2(math.sin(yaw), math.cos(yaw)))


def ego_state(anno: dict) -> EgoState:
    """Motion in the ego frame: the car moves along its own x; the sensor's y axis points right. Raises BadSample."""
    (speed,) = numbers(anno.get("speed"), 1, "no speed")
    forward, right = numbers(anno.get("acceleration"), 2, "no acceleration")
    return EgoState((speed, 0.0), (forward, -right))


def instruction(anno: dict, here: Pose) -> str:
    """What the route planner says next, and how far away that is. Raises BadSample."""
    value = anno.get("command_near")
    if value in _LANE_CHANGES:
        return _LANE_CHANGES[value]
    if isinstance(value, bool) or value not in _COMMANDS:
        raise BadSample("no command", f"command_near: expected -1 or 1..6, got {value!r}")
    x, y = numbers([anno.get("x_command_near"), anno.get("y_command_near")], 2, "no command")
    return navigation_text(_COMMANDS[value], math.hypot(x - here.x, -y - here.y))


def clip_samples(folder: Path, root: Path, tally: Tally, form: str, rate: int = 10, every: int = 5) -> Iterator[Sample]:
    """Samples of one clip, of each `every`-th frame that has 4 s of future. Image paths are relative to `root`."""
    step = _step(rate)
    annos: dict[int, dict | BadSample] = {}
    files = sorted(folder.glob("anno/*.json.gz"))
    for path in files:
        annos[_number(path)] = _read(path)
    for number in sorted(annos)[::every]:
        name = f"{folder.relative_to(root)}/{number:05d}"
        try:
            yield frame_sample(annos, number, step, name, folder, root, form)
        except BadSample as error:
            tally.add(name, error)


def frame_sample(
    annos: dict[int, dict | BadSample], number: int, step: int, name: str, folder: Path, root: Path, form: str
) -> Sample:
    """The plan from frame `number` on. Raises BadSample."""
    anno = _known(annos, number)
    last = number + PLAN_POINTS * step
    if max(annos) < last:
        raise BadSample("end of clip", f"4 s of future end with frame {last}, the clip with {max(annos)}")
    image = folder / "camera" / "rgb_front" / f"{number:05d}.jpg"
    if not image.is_file():
        raise BadSample("missing image", str(image))
    here = pose(anno)
    future = [_position(_known(annos, number + k * step)) for k in range(1, PLAN_POINTS + 1)]
    points = local(np.array(future), (here.x, here.y), here.yaw)
    _check_heading(points, anno)
    path = image.relative_to(root).as_posix()
    return plan_sample(f"{SOURCE}_{name}", SOURCE, path, ego_state(anno), instruction(anno, here), points, form)


def convert(root: Path, tally: Tally, form: str = "upstream", rate: int = 10, every: int = 5) -> Iterator[Sample]:
    """Samples of all clips below `root`. DataError when there is none."""
    clips = sorted({path.parent.parent for path in root.glob("**/anno/*.json.gz")})
    if not clips:
        raise DataError(f"{root}: expected clips with anno/*.json.gz below it, found none")
    for clip in clips:
        yield from clip_samples(clip, root, tally, form, rate, every)


def _position(anno: dict) -> tuple[float, float]:
    """x and y alone, right-handed: a future frame needs no heading."""
    x, y = numbers([anno.get("x"), anno.get("y")], 2, "no position")
    return x, -y


def _check_heading(points: np.ndarray, anno: dict) -> None:
    """A car that moves goes where its nose points: a wrong compass convention would fail on every frame."""
    x, y = points[0]
    if math.hypot(x, y) > MOVED_M and not anno.get("reverse") and abs(math.atan2(y, x)) > math.pi / 3:
        raise BadSample("heading against motion", f"next waypoint ({x:.2f}, {y:.2f}) m, theta {anno.get('theta')}")


def _step(rate: int) -> int:
    """Frames between two waypoints."""
    step = rate * PLAN_STEP_S
    if step < 1 or step != int(step):
        raise DataError(f"rate: expected a multiple of {1 / PLAN_STEP_S:.0f} frames a second, got {rate}")
    return int(step)


def _known(annos: dict[int, dict | BadSample], number: int) -> dict:
    anno = annos.get(number)
    if anno is None:
        raise BadSample("missing annotation", f"frame {number}")
    if isinstance(anno, BadSample):
        raise anno
    return anno


def _number(path: Path) -> int:
    digits = path.name.removesuffix(".json.gz")
    if not digits.isdecimal():
        raise DataError(f"{path}: expected a frame number as the name")
    return int(digits)


def _read(path: Path) -> dict | BadSample:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, EOFError, ValueError) as error:
        return BadSample("unreadable annotation", f"{path}: {type(error).__name__}")
    return value if isinstance(value, dict) else BadSample("unreadable annotation", f"{path}: no object")
