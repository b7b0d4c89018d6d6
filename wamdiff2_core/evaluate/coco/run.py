"""Detection on a COCO instances file: shared out to processes and GPUs, taken up again after an interruption."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from wamdiff2_core.decode.pick import Choice
from wamdiff2_core.errors import CheckpointError, ConfigError, DataError
from wamdiff2_core.evaluate.coco.data import CocoData, CocoImage, Problems, read_instances
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_core.evaluate.kernels_used import key_part, settled
from wamdiff2_core.evaluate.kernels_used import told as kernels_told
from wamdiff2_core.evaluate.machine import machine
from wamdiff2_core.evaluate.spread import spread
from wamdiff2_core.evaluate.summary import write_json
from wamdiff2_core.evaluate.text_answers import read_rows

RESULT, DETECTIONS, ROWS = "coco.json", "detections.json", "rows.jsonl"
OWN_SCORE = "mean probability of the tokens of its label and numbers"
Row = dict[str, Any]


@dataclass(frozen=True)
class CocoJob:
    """instances: the file; pictures: folder its file names start from; out: folder of results.

    checkpoint: who detects; None: `detections`, an official result file, is scored. categories: names to ask for
    (empty: all). names: a category's name -> the label that the checkpoint has for it. devices: for workers in turn.
    kernels: see `pick.WORDS`; auto is lean here, whose batch has 16 categories; an engine's has four.
    """

    instances: Path
    pictures: Path
    out: Path
    checkpoint: Path | None = None
    detections: Path | None = None
    categories: tuple[str, ...] = ()
    names: dict[str, str] = field(default_factory=dict)
    setting: Setting = field(default_factory=Setting)
    mode: str = "auto"
    devices: tuple[str, ...] = ("cpu",)
    dtype: str = "float32"
    workers: int = 1
    most: int = 0
    tell: Callable[[str], None] = lambda text: None
    kernels: str = "auto"

    def __post_init__(self) -> None:
        if (self.checkpoint is None) == (self.detections is None):
            raise ConfigError("coco: expected a checkpoint, or a file of detections, one of them")
        if self.checkpoint is not None and not (self.checkpoint / "config.json").is_file():
            raise CheckpointError(f"{self.checkpoint} is no checkpoint folder: it has no config.json")
        if self.workers < 1 or not self.devices or self.most < 0:
            raise ConfigError(
                f"coco: expected workers >= 1, a device and most >= 0, got {self.workers}, {self.devices}"
            )


def missing() -> list[str]:
    """What is not installed, a line each."""
    if importlib.util.find_spec("faster_coco_eval") is not None:
        return []
    return ["faster-coco-eval is not installed (pip install 'wamdiff2[evaluate]')"]


def evaluate(job: CocoJob) -> dict[str, Any]:
    """Detect what is not detected yet, score, write and return the result. DataError if nothing can be scored,
    ConfigError for unknown categories or without the library.
    """
    absent = missing()
    if absent:
        raise ConfigError(f"coco: {absent[0]}")
    from wamdiff2_core.evaluate.coco.score import read_results, score

    choice = _kernels(job)
    job = replace(job, kernels=choice.word)
    data = read_instances(job.instances, job.pictures)
    categories = _asked(job, data)
    images = list(data.images)[: job.most or None]
    job.out.mkdir(parents=True, exist_ok=True)
    problems, told = Problems(), {}
    if job.detections is not None:
        rows, problems = read_results(job.detections, data)
        scored = images
    else:
        answered = _rows(job, data, images, categories)
        scored = [row["image"] for row in answered if row["failure"] is None]
        rows = [one for row in answered for one in row["detections"]]
        told = _told(answered, problems)
        (job.out / DETECTIONS).write_text(json.dumps(rows), encoding="utf-8")
    if not scored:
        raise DataError(f"coco: none of {len(images)} pictures could be used: {problems.plain()}")
    report = {
        "what": "coco", "instances": str(job.instances), "fingerprint": _fingerprint(job.instances),
        "categories": [data.categories[key] for key in categories],
        **score(data, rows, categories, scored), "left_out": {**data.problems.plain(), **problems.plain()}, **told,
        "not_scored": len(images) - len(scored),
        "score_of_a_box": "as the file says" if job.detections else OWN_SCORE,
        "settings": {"checkpoint": str(job.checkpoint), **job.setting.values(), "mode": job.mode, "names": job.names,
                     **({} if job.checkpoint is None else kernels_told(choice))},
        "machine": machine("cpu" if job.checkpoint is None else job.devices[0]),
    }  # fmt: skip
    write_json(job.out / RESULT, report)
    return report


def _kernels(job: CocoJob) -> Choice:
    if job.checkpoint is None or job.kernels == "auto":
        return Choice("lean", "auto: many long answers in a batch")
    return settled(job.checkpoint, job.devices, job.dtype, job.kernels, (job.setting.block_size,))


def _fingerprint(instances: Path) -> str:
    return hashlib.sha256(instances.read_bytes()).hexdigest()[:12]


def _asked(job: CocoJob, data: CocoData) -> list[int]:
    by_name = {name: key for key, name in data.categories.items()}
    wanted = job.categories or tuple(by_name)
    unknown = [name for name in (*wanted, *job.names) if name not in by_name]
    if unknown:
        raise ConfigError(f"coco: categories that the file has not: {', '.join(unknown)}; it has {', '.join(by_name)}")
    return sorted(by_name[name] for name in set(wanted))


def _told(rows: Sequence[Row], problems: Problems) -> dict[str, Any]:
    """Failures and cost; pictures that could not be read or shown are in no figure."""
    failures: Counter[str] = Counter()
    for row in rows:
        failures.update(row["answers_failed"])
        if row["failure"]:
            problems.add(f"picture: {row['failure']}", row["message"])
    asked = [row for row in rows if row["failure"] is None]
    return {
        "answers_failed": dict(failures),
        "boxes_of_other_labels": sum(row["other"] for row in rows),
        "latency_ms": float(np.median([row["ms"] for row in asked])) if asked else None,
        "forwards": float(np.mean([row["forwards"] for row in asked])) if asked else None,
    }


def _rows(job: CocoJob, data: CocoData, images: Sequence[int], categories: Sequence[int]) -> list[Row]:
    labels = {key: job.names.get(data.categories[key], data.categories[key]) for key in categories}
    key = _key(job, labels)
    file = job.out / ROWS
    done = {row["image"]: row for row in read_rows(file) if row.get("key") == key and row["failure"] is None}
    todo = [data.images[number] for number in images if number not in done]
    with file.open("a", encoding="utf-8") as sink:
        told = (job.checkpoint, job.setting, job.mode, job.dtype, job.kernels, labels)
        for count, row in enumerate(spread(_work, told, todo, job.workers, job.devices), start=1):
            done[row["image"]] = row
            if row["failure"] is None:  # other pictures are tried again by the next call
                sink.write(json.dumps({"key": key, **row}, allow_nan=False) + "\n")
                sink.flush()
            if count % 50 == 0:
                job.tell(f"{count} of {len(todo)} pictures")
    return [done[number] for number in images]


def _key(job: CocoJob, labels: dict[int, str]) -> str:
    """What makes rows those of this run: weights by name, size and time, decoding, what was asked, which file."""
    assert job.checkpoint is not None
    weights = [[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in sorted(job.checkpoint.glob("*.safetensors"))]
    told = [str(job.checkpoint.resolve()), weights, asdict(job.setting), job.mode, job.dtype, list(labels.items())]
    told += key_part(job.kernels)
    seen = hashlib.sha256(json.dumps(told).encode() + job.instances.read_bytes())
    return seen.hexdigest()[:20]


_drivers: dict[tuple, Any] = {}


def _work(told: tuple, device: str, image: CocoImage) -> Row:
    import torch

    from wamdiff2_core.driver import Driver
    from wamdiff2_core.evaluate.coco.ask import find
    from wamdiff2_core.evaluate.frames import read_image
    from wamdiff2_core.scene import Scene

    checkpoint, setting, mode, dtype, kernels, labels = told
    key = (checkpoint, device, dtype, kernels, setting.block_size)
    if key not in _drivers:
        torch.set_num_threads(1)
        _drivers.clear()
        _drivers[key] = Driver.from_checkpoint(
            checkpoint, device, dtype, kernels=kernels, block_sizes=(setting.block_size,)
        )
    driver = _drivers[key]
    driver.decoding = setting.config()
    empty: Row = {"image": image.id, "detections": [], "answers_failed": {}, "other": 0, "forwards": 0, "ms": 0.0}
    try:
        pictures = {camera: read_image(path) for camera, path in image.files.items()}
    except DataError as error:
        return {**empty, "failure": "cannot be read", "message": str(error)}
    size = pictures["cam_front"].shape[1::-1]
    if size != (image.width, image.height):
        message = f"image {image.id}: {size[0]} x {size[1]}, the file says {image.width} x {image.height}"
        return {**empty, "failure": "of another size than the file says", "message": message}
    found = find(driver, Scene(pictures), list(dict.fromkeys(labels.values())), mode)
    if "input" in found.failures:
        return {**empty, "failure": "not one that the checkpoint can be shown", "message": f"image {image.id}"}
    keys: dict[str, list[int]] = {}
    for key, label in labels.items():
        keys.setdefault(label, []).append(key)
    detections = []
    for box in found.boxes:
        x1, y1, x2, y2 = box.pixels(image.width, image.height)
        xywh = [round(value, 2) for value in (x1, y1, x2 - x1, y2 - y1)]
        detections += [
            {"image_id": image.id, "category_id": key, "bbox": xywh, "score": round(box.confidence, 6)}
            for key in keys[box.label]
        ]
    return {
        **empty, "detections": detections, "answers_failed": found.failures, "other": found.other,
        "forwards": found.forwards, "ms": round(found.milliseconds, 3), "failure": None, "message": "",
    }  # fmt: skip
