"""Small made-up shards: coloured pictures whose answers can be told from the colour."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from wamdiff2_core.model.prompt import human_text
from wamdiff2_core.scene import Box, EgoState
from wamdiff2_core.tasks import ask, detect, plan

SIZES = ((64, 64), (32, 32), (32, 32))


def write_shard(
    root: Path, number: int, frames: int, seed: int = 0, sizes: tuple[tuple[int, int], ...] = SIZES
) -> Path:
    """shard_NNNNN with one plan, one detect and two ask samples a frame."""
    rng = np.random.default_rng([seed, number])
    folder = root / f"shard_{number:05d}"
    (folder / "images").mkdir(parents=True)
    samples = []
    for index in range(frames):
        names = []
        for camera, (width, height) in enumerate(sizes):
            names.append(f"images/{index:04d}_{camera}.jpg")
            colour = rng.integers(0, 256, 3, dtype=np.uint8)
            Image.fromarray(np.broadcast_to(colour, (height, width, 3)).copy()).save(folder / names[-1], quality=92)
        speed = float(rng.uniform(0, 15))
        points = np.stack([speed * 0.5 * np.arange(1, 9), rng.uniform(-3, 3) * np.arange(1, 9) / 8], 1)
        boxes = [Box("car", (10 + 50 * k, 100, 60 + 70 * k, 400)) for k in range(1, 1 + int(rng.integers(0, 4)))]
        texts = [
            ("plan", plan.prompt_text(EgoState((speed, 0.0)), "follow the road"), plan.serialise(points)),
            ("detect", detect.prompt(), detect.serialise(boxes)),
            ("ask", ask.prompt_text("how many cars are there?"), str(len(boxes))),
            ("ask", ask.prompt_text("is it day or night?"), "day" if speed > 7 else "it is night."),
        ]
        samples += [
            {
                "id": f"{number}_{index}_{k}",
                "datasource": "test",
                "image": names,
                "task": task,
                "meta": {},
                "conversations": [
                    {"from": "human", "value": human_text(text, len(sizes))},
                    {"from": "gpt", "value": answer},
                ],
            }
            for k, (task, text, answer) in enumerate(texts)
        ]
    (folder / "samples.json").write_text(json.dumps(samples))
    return folder
