"""Labelled frames of evaluation shards (`shard_*/samples.json` with images), and what a checkpoint makes of one.

The truth of a frame is its entries' answers; the scene is read back from their human text, so that the driver asks
what the shard's writer meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from wamdiff2_core.driver import Driver
from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import Answer, Box, Cost, Detections, EgoState, Failure, Plan, Scene
from wamdiff2_core.tasks import detect, plan
from wamdiff2_core.tasks.reading import Result

SAMPLES = "samples.json"
_PLAN_PROMPT = re.compile(
    r"velocity (?P<vx>\S+) (?P<vy>\S+) acceleration (?P<ax>\S+) (?P<ay>\S+); (?P<instruction>.+); plan", re.ASCII
)
_ASK_END = "; answer"


@dataclass(frozen=True)
class Frame:
    """One labelled moment: image files in the order of `cameras`, what to do, and the truth of all tasks."""

    name: str
    images: tuple[Path, ...]
    ego: EgoState
    instruction: str
    points: np.ndarray
    boxes: tuple[Box, ...]
    questions: tuple[tuple[str, str], ...]
    meta: dict[str, object] = field(default_factory=dict)

    def scene(self, cameras: Sequence[str], question: str | None = None) -> Scene:
        """The frame as a scene, its first images named by `cameras`. DataError for an image that cannot be read."""
        if len(cameras) > len(self.images):
            seen = ", ".join(cameras)
            raise DataError(f"frame {self.name} has {len(self.images)} images, the checkpoint sees {seen}")
        images = {camera: read_image(path) for camera, path in zip(cameras, self.images)}
        return Scene(images, self.instruction, self.ego, question)


def read_image(path: Path) -> np.ndarray:
    """An image file as (H, W, 3) uint8 RGB. DataError if it is none."""
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise DataError(f"{path}: expected an image file that OpenCV reads (JPEG, PNG, ...)")
    return np.ascontiguousarray(image[..., ::-1])


def read_frames(data: Path, most: int, holdout: int = 0) -> list[Frame]:
    """At most `most` frames (0: all), spread evenly over all shards of a folder. DataError if there are none.

    holdout: only shards whose number it divides, those that a recipe with this `holdout` does not train on.
    """
    files = sorted(data.glob(f"shard_*/{SAMPLES}")) or sorted(data.glob(SAMPLES))
    if holdout:
        files = [file for file in files if _number(file.parent) % holdout == 0]
    if not files:
        raise DataError(
            f"{data} holds no shard_*/{SAMPLES}. Make some: "
            f"wamdiff2 dataset --out {data} --frames 500 --maps Town01,Town02 --natural"
        )
    frames = [frame for file in files for frame in _shard_frames(file)]
    if not frames:
        raise DataError(f"{data}: {len(files)} shards without a frame that has a plan")
    if most and len(frames) > most:
        at = np.linspace(0, len(frames) - 1, most).round().astype(int)
        frames = [frames[k] for k in at]
    return frames


def _number(folder: Path) -> int:
    """Of shard_NNNNN."""
    digits = folder.name.rpartition("_")[2]
    if not digits.isdecimal():
        raise DataError(f"{folder}: expected a folder shard_NNNNN to know which are held out")
    return int(digits)


def _shard_frames(file: Path) -> Iterator[Frame]:
    """Frames of one shard: entries that show the same images belong together."""
    groups: dict[tuple[str, ...], list[dict]] = {}
    try:
        for entry in json.loads(file.read_text(encoding="utf-8")):
            groups.setdefault(tuple(entry["image"]), []).append(entry)
        for images, entries in groups.items():
            frame = _frame(file.parent, images, entries)
            if frame is not None:
                yield frame
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"{file}: expected conversation entries, got {type(error).__name__}: {error}") from error


def _frame(folder: Path, images: tuple[str, ...], entries: Sequence[dict]) -> Frame | None:
    said: dict[str, list[tuple[str, str]]] = {"plan": [], "detect": [], "ask": []}
    for entry in entries:
        human, answer = (turn["value"] for turn in entry["conversations"][:2])
        said[entry["task"]].append((human.replace("<image>\n", ""), answer))
    if not said["plan"]:
        return None
    text, answer = said["plan"][0]
    ego, instruction = read_prompt(text)
    points = plan.parse(answer)
    boxes = detect.parse(said["detect"][0][1]) if said["detect"] else Detections(())
    if isinstance(points, Failure) or isinstance(boxes, Failure):
        raise DataError(f"{folder}: the truth of {images[0]} cannot be read: {answer!r}")
    meta: dict[str, Any] = next((entry["meta"] for entry in entries if entry["task"] == "plan"), {})
    questions = tuple((human.removesuffix(_ASK_END), answer) for human, answer in said["ask"])
    paths = tuple(folder / image for image in images)
    return Frame(f"{folder.name}/{paths[0].stem}", paths, ego, instruction, points.points, boxes.boxes, questions, meta)


def read_prompt(text: str) -> tuple[EgoState, str]:
    """Motion and instruction out of a plan's human text (`tasks.plan.prompt_text`). DataError if it is not one."""
    found = _PLAN_PROMPT.fullmatch(text.strip())
    if found is None:
        raise DataError(f"expected the human text of a plan, got {text!r}")
    vx, vy, ax, ay = (float(found[name]) for name in ("vx", "vy", "ax", "ay"))
    return EgoState((vx, vy), (ax, ay)), found["instruction"]


def answer_frame(driver: Driver, frame: Frame) -> dict[str, object]:
    """All tasks on a frame, as plain values for a line of JSON.

    The plan is asked for alone, so that its milliseconds are those of a plan; boxes and all questions then share
    their image prefix and one batch.
    """
    scene = frame.scene(driver.cameras)
    made = driver.plan(scene)
    asked = [("ask", replace(scene, question=question)) for question, _ in frame.questions]
    found, *answers = driver.answer_each([("detect", scene), *asked])
    return {
        "frame": frame.name,
        "plan": plan_row(made, frame.points),
        "detect": boxes_row(found, frame.boxes),
        "ask": [answer_row(*pair, result) for pair, result in zip(frame.questions, answers, strict=True)],
    }


def truth_of(frame: Frame) -> dict[str, object]:
    """What rows of a frame have in common, as plain values: the parts of `answer_frame` that are no answer."""
    return {
        "frame": frame.name,
        "plan": np.round(frame.points, 3).tolist(),
        "boxes": [[box.label, list(box.xyxy)] for box in frame.boxes],
        "ask": [list(pair) for pair in frame.questions],
    }


def plan_row(made: Result, truth: np.ndarray) -> dict[str, object]:
    """The plan's part of a row."""
    return {
        "points": np.round(made.points, 3).tolist() if isinstance(made, Plan) else None,
        "truth": np.round(truth, 3).tolist(),
        "failure": _failure(made),
        **_cost(made.cost),
    }


def boxes_row(found: Result, truth: Sequence[Box]) -> dict[str, object]:
    """The boxes' part of a row."""
    boxes = found.boxes if isinstance(found, Detections) else ()
    return {
        "boxes": [[box.label, list(box.xyxy), round(box.confidence, 5)] for box in boxes],
        "truth": [[box.label, list(box.xyxy)] for box in truth],
        "failure": _failure(found),
        "forwards": found.cost.forwards,
    }


def answer_row(question: str, truth: str, result: Result) -> dict[str, object]:
    """A question's part of a row."""
    text = result.text if isinstance(result, Answer) else None
    row = {"question": question, "answer": text, "truth": truth, "failure": _failure(result)}
    return {**row, "forwards": result.cost.forwards}


def _failure(result: object) -> str | None:
    return result.kind.value if isinstance(result, Failure) else None


def _cost(cost: Cost) -> dict[str, object]:
    times = {name: round(getattr(cost, name), 3) for name in ("vision_ms", "prefill_ms", "decode_ms", "total_ms")}
    return {"forwards": cost.forwards, "tokens": cost.tokens, **times}
