"""A quick look at a checkpoint on held-out shards: `python -m training.quick_eval CHECKPOINT DATA [--holdout N] ...`.

Answers are decoded as on the road, for several block sizes: displacement error of plans, boxes found, right answers,
failures,
forwards per answer.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from wamdiff2_core import BlockDecoder, DecodingConfig, load_model
from wamdiff2_core.decode.result import Status
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.distill.data import find_shards
from wamdiff2_core.errors import DataError
from wamdiff2_core.model.images import ImageFormat, preprocess
from wamdiff2_core.model.prompt import chat_prompt
from wamdiff2_core.model.tokenizer import TextTokenizer
from wamdiff2_core.scene import Box, Detections, Plan
from wamdiff2_core.tasks import TASKS, detect, plan

BATCH = 64


class Evaluation:
    """One checkpoint on one device."""

    def __init__(self, checkpoint: Path, device: str, dtype: str) -> None:
        self.loaded = load_model(checkpoint, device=device, dtype=dtype)
        self.decoder = BlockDecoder(self.loaded)
        self.tokenizer, self.form = TextTokenizer.from_folder(checkpoint), ImageFormat.from_folder(checkpoint)
        entry = self.loaded.block_diffusion
        self.sizes = [tuple(entry["image_sizes"][camera]) for camera in entry["cameras"]]
        self.limits = entry["max_new_tokens"]
        allowed = {"plan": plan.allowed(self.tokenizer), "detect": detect.allowed(self.tokenizer), "ask": None}
        self.scaffolds = {task: Scaffold(ids) if ids else None for task, ids in allowed.items()}

    def decode(self, task: str, samples: Sequence[tuple[Path, dict]], config: DecodingConfig) -> list:
        """Results of samples of one task, in batches."""
        results: list = []
        for start in range(0, len(samples), BATCH):
            part = samples[start : start + BATCH]
            images = [np.array(Image.open(folder / name)) for folder, sample in part for name in sample["image"]]
            pixels, grid = preprocess(images, self.sizes * len(part), self.form)
            tokens = [self.form.tokens(size) for size in self.sizes]
            ids = [
                torch.tensor(
                    chat_prompt(self.tokenizer, sample["conversations"][0]["value"], tokens).ids,
                    device=self.loaded.device,
                )
                for _, sample in part
            ]
            pixels = pixels.to(self.loaded.device, self.loaded.model.dtype)
            out = self.decoder.generate(
                ids, pixels, grid, config, self.scaffolds[task], max_new_tokens=[self.limits[task]] * len(part)
            )
            results += list(out) if len(part) > 1 else [out]
        return results

    def task(
        self, task: str, samples: Sequence[tuple[Path, dict]], block_size: int, steps: int, threshold: float
    ) -> dict:
        """Figures of one task at one block size."""
        config = DecodingConfig(
            block_size=block_size, steps=steps, threshold=threshold, max_new_tokens=self.limits[task]
        )
        began = time.perf_counter()
        results = self.decode(task, samples, config)
        figures = {
            "samples": len(samples),
            "seconds": round(time.perf_counter() - began, 2),
            "forwards": round(float(np.mean([result.forwards for result in results])), 2),
        }
        texts = [self.tokenizer.decode(result.tokens) for result in results]
        truths = [sample["conversations"][1]["value"] for _, sample in samples]
        broken = [result.status in (Status.INVALID, Status.TRUNCATED) for result in results]
        return figures | {"plan": plan_figures, "detect": detect_figures, "ask": ask_figures}[task](
            texts, truths, broken
        )


def plan_figures(texts: Sequence[str], truths: Sequence[str], broken: Sequence[bool]) -> dict:
    """Displacement errors in metres over the plans that parse."""
    errors, failed = [], 0
    for text, truth, bad in zip(texts, truths, broken, strict=True):
        mine, true = plan.parse(text), plan.parse(truth)
        if bad or not isinstance(mine, Plan) or not isinstance(true, Plan):
            failed += 1
            continue
        errors.append(np.linalg.norm(mine.points - true.points, axis=1))
    each = np.mean(errors, axis=0) if errors else np.full(8, np.nan)
    return {
        "ade_m": round(float(each.mean()), 4),
        "per_waypoint_m": [round(float(e), 3) for e in each],
        "failed": failed,
        "median_ade_m": round(float(np.median([e.mean() for e in errors])), 4) if errors else None,
    }


def detect_figures(texts: Sequence[str], truths: Sequence[str], broken: Sequence[bool]) -> dict:
    """Precision and recall at IoU 0.5 with equal labels."""
    hits = found = true = failed = 0
    for text, truth, bad in zip(texts, truths, broken, strict=True):
        mine, real = detect.parse(text), detect.parse(truth)
        if not isinstance(real, Detections):
            continue
        true += len(real.boxes)
        if bad or not isinstance(mine, Detections):
            failed += 1
            continue
        found += len(mine.boxes)
        left = list(real.boxes)
        for box in mine.boxes:
            match = next((other for other in left if other.label == box.label and iou(box, other) >= 0.5), None)
            if match is not None:
                left.remove(match)
                hits += 1
    return {"precision": round(hits / max(found, 1), 4), "recall": round(hits / max(true, 1), 4), "failed": failed}


def ask_figures(texts: Sequence[str], truths: Sequence[str], broken: Sequence[bool]) -> dict:
    right = sum(text == truth and not bad for text, truth, bad in zip(texts, truths, broken, strict=True))
    return {"right": round(right / max(len(texts), 1), 4), "failed": sum(broken)}


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes in the same units."""
    wide = min(a.xyxy[2], b.xyxy[2]) - max(a.xyxy[0], b.xyxy[0])
    high = min(a.xyxy[3], b.xyxy[3]) - max(a.xyxy[1], b.xyxy[1])
    both = max(0, wide) * max(0, high)
    areas = [(box.xyxy[2] - box.xyxy[0]) * (box.xyxy[3] - box.xyxy[1]) for box in (a, b)]
    return both / max(1, sum(areas) - both)


def load_samples(data: Path, holdout: int, most: int) -> dict[str, list[tuple[Path, dict]]]:
    """Held-out samples by task, at most `most` frames."""
    samples: dict[str, list[tuple[Path, dict]]] = {task: [] for task in TASKS}
    for folder in find_shards([data], holdout, held_out=bool(holdout)):
        for sample in json.loads((folder / "samples.json").read_text(encoding="utf-8")):
            if len(samples[sample["task"]]) < most:
                samples[sample["task"]].append((folder, sample))
    if not samples["plan"]:
        raise DataError(f"{data}: no held-out shards")
    return samples


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--holdout", type=int, default=0)
    parser.add_argument("--frames", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--blocks", default="1,4,8,16,32")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threshold", type=float, default=0.9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    evaluation = Evaluation(options.checkpoint, options.device, options.dtype)
    samples = load_samples(options.data, options.holdout, options.frames)
    figures: dict[str, dict] = {}
    for block_size in (int(part) for part in options.blocks.split(",")):
        figures[str(block_size)] = {
            task: evaluation.task(task, samples[task], block_size, options.steps, options.threshold)
            for task in TASKS
            if samples[task]
        }
        print(f"B={block_size}: {json.dumps(figures[str(block_size)])}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
