"""NAVSIM-style scenes, exported to JSON, as plan conversations.

NAVSIM's own scenes are pickles that need its devkit. Export them once to a JSON list or JSON lines of
`{token, image, velocity: [x, y], acceleration: [x, y], command, future: [[x, y, ...] x 8]}`: metres and seconds in the
ego frame at the rear axle (x forward, y left), the first waypoint at +0.5 s. `command` is left, straight, right, or
NAVSIM's four numbers (left, straight, right, unknown). Scenes with `id`, `ego: {velocity, acceleration}` and `human`
are understood, too. `data` may stand inside {"scenes": [...]}.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from training.convert.common import Sample, numbers, plan_sample
from wamdiff2_core.distill.stream.conversations import BadSample, Tally
from wamdiff2_core.distill.stream.index import Scan, scan
from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import PLAN_POINTS, Command, EgoState
from wamdiff2_core.tasks.navigation import navigation_text

SOURCE = "navsim"
_ONE_HOT = (Command.LEFT, Command.STRAIGHT, Command.RIGHT)
_WORDS = {
    "left": Command.LEFT,
    "straight": Command.STRAIGHT,
    "forward": Command.STRAIGHT,
    "right": Command.RIGHT,
    "follow": Command.FOLLOW,
}


def scenes_of(path: Path, tally: Tally) -> Iterator[tuple[str, object]]:
    """(name, scene) of a file; broken places are counted. DataError when nothing can be read."""
    whole = _wrapped(path)
    if whole is not None:
        yield from ((f"{path.name}[{number}]", scene) for number, scene in enumerate(whole))
        return
    found = Scan()
    for entry in scan(path, found):
        yield f"{path.name}[{entry.number}]", entry.value
    for broken in found.broken:
        tally.add(f"{path.name}[{broken.number}] at {broken.start}", BadSample("broken JSON", broken.reason))


def _wrapped(path: Path) -> list | None:
    """The list in {"scenes": [...]}; None for other files."""
    try:
        with path.open(encoding="utf-8") as file:
            if file.read(1) != "{":
                return None
            file.seek(0)
            value = json.load(file)
    except (OSError, ValueError):
        return None  # `scan` says what is wrong
    return value["scenes"] if isinstance(value, dict) and isinstance(value.get("scenes"), list) else None


def convert(
    files: list[Path], tally: Tally, form: str = "upstream", command: str | None = None, images: str | None = None
) -> Iterator[Sample]:
    """Plan samples of all usable scenes.

    command: for scenes that name none (or "unknown"); images: path pattern with {id} for scenes that name no image.
    """
    if command is not None and command not in _WORDS:
        raise DataError(f"command: expected one of {', '.join(_WORDS)}, got {command!r}")
    for file in files:
        for name, scene in scenes_of(file, tally):
            try:
                yield scene_sample(scene, form, command, images)
            except BadSample as error:
                tally.add(name, error)


def scene_sample(
    scene: object, form: str = "upstream", command: str | None = None, images: str | None = None
) -> Sample:
    """One scene as a conversation. Raises BadSample."""
    if not isinstance(scene, dict):
        raise BadSample("no object", f"expected a scene, got {type(scene).__name__}")
    name = scene.get("token", scene.get("id"))
    if not isinstance(name, str) or not name:
        raise BadSample("no token", f"expected token or id, got {str(name)[:40]}")
    image = scene.get("image", images.format(id=name) if images else None)
    if not isinstance(image, str) or not image:
        raise BadSample("no image", f"expected a path, got {str(image)[:40]}")
    motion = scene.get("ego", scene)
    if not isinstance(motion, dict):
        raise BadSample("no ego state", f"expected velocity and acceleration, got {str(motion)[:40]}")
    vx, vy = numbers(motion.get("velocity"), 2, "no ego state")
    ax, ay = numbers(motion.get("acceleration"), 2, "no ego state")
    instruction = navigation_text(_command(scene.get("command"), command), 0.0)
    points = _future(scene.get("future", scene.get("human")))
    return plan_sample(f"{SOURCE}_{name}", SOURCE, image, EgoState((vx, vy), (ax, ay)), instruction, points, form)


def _command(value: object, instead: str | None) -> Command:
    if isinstance(value, list) and len(value) == 4 and sorted(value) == [0, 0, 0, 1]:
        value = None if value[3] else _ONE_HOT[value.index(1)].value
    if value is None or value == "unknown":
        value = instead
    if not isinstance(value, str) or value not in _WORDS:
        raise BadSample("no command", f"expected left, straight, right or four numbers, got {str(value)[:40]}")
    return _WORDS[value]


def _future(value: object) -> np.ndarray:
    """(8, 2) waypoints; more than eight are cut, headings dropped."""
    if not isinstance(value, list) or len(value) < PLAN_POINTS:
        raise BadSample("no future", f"expected {PLAN_POINTS} waypoints, got {str(value)[:40]}")
    return np.array([numbers(point, 2, "no future") for point in value[:PLAN_POINTS]])
