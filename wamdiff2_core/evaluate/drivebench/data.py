"""DriveBench's files: a JSON list of questions with truth, with `pred` in it once answered; descriptions of objects."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import DataError

TEXTS = ("scene_token", "frame_token", "question_type", "question", "answer")
_OBJECT = re.compile(r"<(.*)>")


@dataclass(frozen=True)
class Sample:
    """One entry. number: its place in the file; pred: None where there is no answer; raw: the entry itself."""

    number: int
    scene: str
    frame: str
    kind: str
    question: str
    truth: str
    tags: tuple[int, ...]
    images: Mapping[str, str]
    pred: str | None
    raw: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str, str]:
        """What two entries of the same question have in common."""
        return self.scene, self.frame, self.question


def read_json(path: Path) -> Any:
    """DataError unless the file is JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected a JSON file: {error}") from error


def read_samples(path: Path) -> tuple[list[Sample], dict[str, int]]:
    """The usable entries, and how many are not, by reason. DataError if the file is no list or none is usable."""
    entries = read_json(path)
    if not isinstance(entries, list):
        raise DataError(f"{path}: expected a JSON list of questions, got {type(entries).__name__}")
    left_out: Counter[str] = Counter()
    samples = []
    for number, entry in enumerate(entries):
        problem = _problem(entry)
        if problem:
            left_out[problem] += 1
        else:
            samples.append(_sample(number, entry))
    if not samples:
        reasons = "; ".join(left_out) or "it is empty"
        raise DataError(f"{path}: none of its {len(entries)} entries can be used: {reasons}")
    return samples, dict(left_out)


def _problem(entry: object) -> str:
    if not isinstance(entry, dict):
        return "is no object"
    for name in TEXTS:
        if not isinstance(entry.get(name), str) or not entry[name].strip():
            return f"{name} is no text"
    tags = entry.get("tag")
    if not isinstance(tags, list) or not all(isinstance(tag, int) and not isinstance(tag, bool) for tag in tags):
        return "tag is no list of numbers"
    images = entry.get("image_path", {})
    if not isinstance(images, dict) or not all(isinstance(path, str) and path for path in images.values()):
        return "image_path is no object of paths by camera"
    return ""


def answers_of_no_text(samples: Sequence[Sample]) -> int:
    """Entries whose `pred` is a number, a list, ...: they have no answer. NaN is how pandas writes that."""
    given = [sample.raw.get("pred") for sample in samples]
    return sum(
        not (one is None or isinstance(one, str) or (isinstance(one, float) and math.isnan(one))) for one in given
    )


def _sample(number: int, entry: Mapping[str, Any]) -> Sample:
    pred = entry.get("pred")
    said = pred if isinstance(pred, str) and pred.strip() else None
    scene, frame, kind, question, truth = (entry[name] for name in TEXTS)
    return Sample(
        number, scene, frame, kind, question, truth, tuple(entry["tag"]), entry.get("image_path", {}), said, entry
    )


def answered(samples: Sequence[Sample], answers: Sequence[str | None]) -> list[dict[str, Any]]:
    """The entries with their new `pred`, as the official evaluation reads them; empty where there is no answer."""
    return [{**sample.raw, "pred": answer or ""} for sample, answer in zip(samples, answers, strict=True)]


def duplicates(samples: Sequence[Sample]) -> int:
    """Entries whose question about the same frame is there before them."""
    return len(samples) - len({sample.key for sample in samples})


OFFICIAL_DESCRIPTIONS = "4cf48342f2a32514"  # what the file in DriveBench's repository hashes to


class Descriptions:
    """What objects look like (`visual_description.json`), for the judge's prompts.

    official: it is DriveBench's own file.
    """

    def __init__(self, path: Path) -> None:
        """DataError if the file is none."""
        self._scenes = read_json(path)
        self.official = hashlib.sha256(path.read_bytes()).hexdigest().startswith(OFFICIAL_DESCRIPTIONS)
        if not isinstance(self._scenes, dict):
            raise DataError(f"{path}: expected an object by scene token, got {type(self._scenes).__name__}")

    def of(self, sample: Sample) -> str | None:
        """The description of the object that the question names, None if it names none. DataError if there is none."""
        named = _OBJECT.search(sample.question)
        if named is None:
            return None
        start = "<" + ",".join(named[1].split(",")[:2])
        try:
            objects = self._scenes[sample.scene]["key_frames"][sample.frame]["key_object_infos"]
            return next(value["Visual_description"].lower() for key, value in objects.items() if key.startswith(start))
        except (KeyError, TypeError, AttributeError, StopIteration) as error:
            raise DataError(f"entry {sample.number}: {start}> has no visual description") from error
