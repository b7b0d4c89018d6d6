"""Made-up conversation files with pictures, and checkpoint folders of the other kinds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIZES = ((200, 120), (96, 64), (64, 160))


def picture(path: Path, size: tuple[int, int], seed: int = 0) -> str:
    """Noise of (width, height); returns the file's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng([seed, *size]).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path.name


def talk(*texts: str, image: Any = None, **more: Any) -> dict[str, Any]:
    """A conversation of human and gpt by turns."""
    said = [{"from": ("human", "gpt")[number % 2], "value": text} for number, text in enumerate(texts)]
    return {"datasource": "test", "conversations": said} | ({} if image is None else {"image": image}) | more


def write(path: Path, samples: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(samples))
    return path


def mixed_file(root: Path, count: int = 24) -> Path:
    """Samples about pictures of three sizes, with prompts and answers of many lengths; every fifth has no picture."""
    for number, size in enumerate(SIZES):
        picture(root / f"{number}.png", size, number)
    samples = []
    for number in range(count):
        words = " ".join(["left", "right", "car"][k % 3] for k in range(1 + 7 * number % 23))
        answer = ",".join(f"{0.5 * k:.2f}" for k in range(1 + 5 * number % 17))
        if number % 5 == 4:
            samples.append(talk(words, answer, id=f"text{number}"))
        else:
            samples.append(talk(f"Look: <image>\n{words}", answer, image=[f"{number % 3}.png"], id=f"seen{number}"))
    return write(root / "mixed.json", samples)


def as_kind(folder: Path, kind: str, target: Path) -> Path:
    """A copy of one of our checkpoint folders as "qwen3_vl" or "wam_diff2"."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    entry = config.pop("block_diffusion")
    if kind == "wam_diff2":
        config["model_type"], config["mask_token_id"] = "wam_diff2", entry["mask_token_id"]
        config["text_config"]["model_type"] = "wam_diff2_text"
    (target / "config.json").write_text(json.dumps(config))
    return target
