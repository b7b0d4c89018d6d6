"""mAP of boxes by COCO's definition, through faster-coco-eval.

A VLA emits no score of its own: a box's score is the mean probability of its answer tokens (`Box.confidence`).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass

from faster_coco_eval import COCO, COCOeval_faster

from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import Box

EXTENT = 1000  # boxes are in relative units 0-1000; COCO only needs them in one common unit


@dataclass(frozen=True)
class DetectionScore:
    """COCO AP over IoU 0.50:0.95 and at 0.50, with AP50 per label; labels without truth are left out."""

    map: float
    map50: float
    ap50: dict[str, float]
    images: int
    truths: int
    predictions: int


def detection_score(predicted: Sequence[Sequence[Box]], truth: Sequence[Sequence[Box]]) -> DetectionScore:
    """Score boxes of N images; `predicted[i]` and `truth[i]` belong to image i. DataError when the lengths differ."""
    if len(predicted) != len(truth):
        raise DataError(f"{len(predicted)} predicted images against {len(truth)} with truth")
    labels = sorted({box.label for boxes in truth for box in boxes})
    predictions = sum(len(boxes) for boxes in predicted)
    truths = sum(len(boxes) for boxes in truth)
    if truths == 0 or predictions == 0:
        value = 0.0 if truths else float("nan")
        return DetectionScore(value, value, dict.fromkeys(labels, value), len(truth), truths, predictions)
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = _run(predicted, truth, labels)
    ap50 = {label: float(evaluation.eval["precision"][0, :, k, 0, -1].mean()) for k, label in enumerate(labels)}
    stats = evaluation.stats
    return DetectionScore(float(stats[0]), float(stats[1]), ap50, len(truth), truths, predictions)


def _run(predicted: Sequence[Sequence[Box]], truth: Sequence[Sequence[Box]], labels: list[str]) -> COCOeval_faster:
    category = {label: k + 1 for k, label in enumerate(labels)}
    annotations = [
        {"image_id": i, "category_id": category[box.label], "bbox": _xywh(box), "area": _area(box), "iscrowd": 0}
        for i, boxes in enumerate(truth)
        for box in boxes
    ]
    for k, annotation in enumerate(annotations):
        annotation["id"] = k + 1
    ground = COCO(
        {
            "info": {},
            "images": [{"id": i, "width": EXTENT, "height": EXTENT} for i in range(len(truth))],
            "categories": [{"id": k, "name": label} for label, k in category.items()],
            "annotations": annotations,
        }
    )
    rows = [
        {"image_id": i, "category_id": category[box.label], "bbox": _xywh(box), "score": box.confidence}
        for i, boxes in enumerate(predicted)
        for box in boxes
        if box.label in category
    ]
    if not rows:  # only labels that no image holds: all of them are wrong, which COCO cannot be asked
        rows = [{"image_id": 0, "category_id": 1, "bbox": [0.0, 0.0, 0.0, 0.0], "score": 0.0}]
    evaluation = COCOeval_faster(ground, ground.loadRes(rows), "bbox", print_function=lambda *_: None)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return evaluation


def _xywh(box: Box) -> list[float]:
    x1, y1, x2, y2 = box.xyxy
    return [float(x1), float(y1), float(x2 - x1), float(y2 - y1)]


def _area(box: Box) -> float:
    x1, y1, x2, y2 = box.xyxy
    return float((x2 - x1) * (y2 - y1))
