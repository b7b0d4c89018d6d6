"""COCO's twelve numbers of a result file, through faster-coco-eval, and AP of each category."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.coco.data import CocoData, Problems, is_box, is_id, is_number, read_json

STATS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


def read_results(path: Path, data: CocoData) -> tuple[list[dict[str, Any]], Problems]:
    """Rows of an official result file, [{image_id, category_id, bbox, score}]; bad ones are counted and left out."""
    content = read_json(path)
    if not isinstance(content, list):
        raise DataError(f"{path}: expected a list of detections, got {type(content).__name__}")
    problems, rows = Problems(), []
    for number, one in enumerate(content):
        if not isinstance(one, dict) or not is_box(one.get("bbox")) or not is_number(one.get("score")):
            problems.add(
                "detection: expected image_id, category_id, a box with a size, a finite score", f"row {number}"
            )
        elif not is_id(one.get("image_id")) or one["image_id"] not in data.images:
            problems.add("detection: of no usable image", f"row {number}: image {one.get('image_id')!r}")
        elif not is_id(one.get("category_id")) or one["category_id"] not in data.categories:
            problems.add("detection: of no category", f"row {number}: category {one.get('category_id')!r}")
        else:
            rows.append({key: one[key] for key in ("image_id", "category_id", "bbox", "score")})
    return rows, problems


def score(
    data: CocoData, rows: Sequence[dict[str, Any]], categories: Sequence[int], images: Sequence[int]
) -> dict[str, Any]:
    """Over these categories and images: `stats` (the twelve, None where COCO has none), `per_category` AP and AP50."""
    which, asked = set(images), set(categories)

    def of(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [one for one in records if one["image_id"] in which and one["category_id"] in asked]

    truths, kept = of(data.annotations), of(rows)
    counts = {"images": len(images), "truths": len(truths), "detections": len(kept)}
    names = {key: data.categories[key] for key in categories}
    if not truths:
        raise DataError(f"coco: none of {len(images)} images has a true box of {', '.join(names.values())}")
    if not kept:  # every true box is missed, which COCO's tools cannot be asked
        none = {name: {"AP": 0.0, "AP50": 0.0} for name in _with_truth(truths, names)}
        return {**counts, "stats": dict.fromkeys(STATS, 0.0), "per_category": none}
    ground = {
        "info": {},
        "images": [{"id": key, "width": data.images[key].width, "height": data.images[key].height} for key in images],
        "categories": [{"id": key, "name": name} for key, name in names.items()],
        "annotations": truths,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(ground)
        evaluation = COCOeval_faster(truth, truth.loadRes(kept), "bbox", print_function=lambda *_: None)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    precision = evaluation.eval["precision"][:, :, :, 0, -1]  # (IoU, recall, category)
    per = {
        data.categories[key]: {"AP": _mean(precision[:, :, k]), "AP50": _mean(precision[0, :, k])}
        for k, key in enumerate(evaluation.params.catIds)
    }
    stats = {name: None if value < 0 else float(value) for name, value in zip(STATS, evaluation.stats[:12].tolist())}
    return {**counts, "stats": stats, "per_category": per}


def _mean(values: np.ndarray) -> float | None:
    known = values[values > -1]
    return float(known.mean()) if known.size else None


def _with_truth(truths: Sequence[dict[str, Any]], names: dict[int, str]) -> list[str]:
    present = {one["category_id"] for one in truths}
    return [name for key, name in names.items() if key in present]
