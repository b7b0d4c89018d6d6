"""Is this scene one that a checkpoint can answer for? Everything a caller can get wrong, said in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from wamdiff2_core.scene import EgoState, Scene
from wamdiff2_core.tasks import plan

MAX_INSTRUCTION = 200  # characters
MAX_QUESTION = 2000  # benchmarks write their options into the question
MAX_ASPECT = 200.0


def scene_problem(scene: Scene, task: str, cameras: Sequence[str]) -> str | None:
    """Why `scene` cannot be answered for; None when it can. `cameras`: those that must be there."""
    if not isinstance(scene.images, Mapping):
        return f"expected images by camera name, got {type(scene.images).__name__}"
    missing = [name for name in cameras if name not in scene.images]
    if missing or not scene.images:
        present = ", ".join(scene.images) or "no camera"
        return f"expected images of {', '.join(cameras)}; missing: {', '.join(missing)}; got {present}"
    for name in cameras:
        problem = image_problem(scene.images[name])
        if problem:
            return f"image of {name}: {problem}"
    if task == "plan":
        return _text_problem("instruction", scene.instruction, MAX_INSTRUCTION) or _ego_problem(scene)
    return _text_problem("question", scene.question, MAX_QUESTION) if task == "ask" else None


def image_problem(image: object) -> str | None:
    """Why something is not an (H, W, 3) uint8 image; None when it is one."""
    if not isinstance(image, np.ndarray):
        return f"expected a NumPy array (H, W, 3) uint8, got {type(image).__name__}"
    if image.ndim != 3 or image.shape[2] != 3 or min(image.shape) < 1 or image.dtype != np.uint8:
        return f"expected (H, W, 3) uint8, got {image.shape} {image.dtype}"
    height, width = image.shape[:2]
    if max(height, width) > MAX_ASPECT * min(height, width):
        return f"expected sides within a ratio of {MAX_ASPECT:.0f}, got {width} x {height}"
    return None


def _text_problem(what: str, text: object, most: int) -> str | None:
    if not isinstance(text, str) or not text.strip():
        return f"expected {what} in words, got {text!r}"
    if any("\ud800" <= char <= "\udfff" for char in text):
        return f"expected {what} in words, got half a character in {text[:most]!r}"
    return f"expected {what} of at most {most} characters, got {len(text)}" if len(text) > most else None


def _ego_problem(scene: Scene) -> str | None:
    if not isinstance(scene.ego, EgoState):
        return f"expected ego to be an EgoState, got {type(scene.ego).__name__}"
    for what, pair in (("velocity", scene.ego.velocity), ("acceleration", scene.ego.acceleration)):
        if not _is_pair(pair):
            return f"ego {what}: expected two finite numbers within +-{plan.MAX_EGO}, got {pair!r}"
    return None


def _is_pair(values: object) -> bool:
    """Two finite numbers that a prompt can say."""
    try:
        pair = [float(value) for value in values]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return False
    return len(pair) == 2 and all(math.isfinite(value) and abs(value) <= plan.MAX_EGO for value in pair)
