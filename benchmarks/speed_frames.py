"""The rows of engine_speed with images: whole frames of random weights, and the trained checkpoint's own answers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed_setup import PLAN, Grid, Setup, fixed, median, quantile
from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.scene import Scene

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "demo.jpg"


@torch.inference_mode()
def frames(setup: Setup) -> dict[str, Any]:
    """Patches in host memory to the last token of a plan, B = 32 with 8 steps a block."""
    each = setup.seconds / len(setup.sizes.frames)
    return {"frames": {name: _frame(setup, grids, each) for name, grids in setup.sizes.frames.items()}}


def _frame(setup: Setup, grids: tuple[Grid, ...], seconds: float) -> dict[str, Any]:
    """Stages: vision alone, waited for; prefill is what lies between it and the end of the first pass."""
    decoder, ids, (pixels, grid) = setup.engine, setup.frame_ids(grids), setup.images(grids)
    config = fixed(32, 8, min(PLAN, setup.sizes.tokens))
    outs: list[Any] = []

    def whole() -> float:
        return setup.wall_ms(lambda: outs.append(decoder.generate(ids, pixels, grid, config)))

    def see() -> object:
        with decoder.engine.turn():
            return decoder.engine.encode(setup.loaded, pixels, grid)

    vision = setup.repeat(partial(setup.wall_ms, see), seconds / 4, 20 if setup.cuda else 2, 100)
    total = setup.repeat(whole, seconds * 3 / 4, 100 if setup.cuda else 3, 200)
    outs = outs[-len(total) :]
    seen = median(vision)
    parts = {
        "vision": vision,
        "prefill": [max(0.0, out.vision_ms + out.prefill_ms - seen) for out in outs],
        "decode": [out.decode_ms for out in outs],
        "total": total,
    }
    told = {name: {"p50": median(values), "p99": quantile(values, 0.99)} for name, values in parts.items()}
    visual = sum(t * h * w for t, h, w in grids) // 4
    return {"ms": told, "prompt": len(ids), "visual_tokens": visual, "runs": len(total), "tokens": len(outs[-1].tokens)}


def trained(setup: Setup) -> dict[str, Any]:
    """Plans of the checkpoint on the picture of the docs, by block size and rule: tokens a forward and a second."""
    from wamdiff2_core.driver import Driver  # here, since machines that measure need not have what pictures need

    driver = Driver.from_checkpoint(setup.checkpoint, str(setup.device), "bfloat16" if setup.cuda else "float32")
    driver.decoder = decoder = EngineDecoder(driver.loaded, setup.trained_config, setup.kernels)
    pixels, grid = driver.pixels(_scene(driver.cameras))
    prompt = driver.prompt(_scene(driver.cameras), "plan", grid)
    limit = driver.max_new_tokens["plan"]
    scaffold = driver.scaffold("plan")
    settings = {"static 8": (8, "static", 0.9), "dynamic 0.9": (96, "dynamic", 0.9), "ordered 0.6": (3, "ordered", 0.6)}
    found: dict[str, Any] = {}
    for size in (4, 8, 16, 32):
        for name, (steps, rule, threshold) in settings.items():
            config = DecodingConfig(size, min(steps, size), rule, threshold, max_new_tokens=limit)
            ask = partial(decoder.generate, torch.tensor(prompt.ids), pixels, grid, config, scaffold)
            outs = setup.repeat(ask, setup.seconds / 12, 3, 60)
            passes, tokens = outs[0].forwards, len(outs[0].tokens)
            ms = median([out.decode_ms for out in outs])
            found.setdefault(str(size), {})[name] = {
                "tokens": tokens, "forwards": passes, "tokens_per_forward": tokens / passes,
                "tps": tokens * (passes - 1) / passes / ms * 1e3, "decode_ms": ms,
            }  # fmt: skip
    open_places = sum(token < 0 for token in scaffold.given) if scaffold else limit
    return {"block_sizes": found, "open_places": open_places, "checkpoint": setup.checkpoint.name}


def _scene(cameras: tuple[str, ...]) -> Scene:
    """The demo's picture, cut into as many parts as there are cameras."""
    import cv2

    picture = cv2.cvtColor(cv2.imread(str(PICTURE)), cv2.COLOR_BGR2RGB)
    width = picture.shape[1] // len(cameras)
    parts = {name: picture[:, k * width : (k + 1) * width].copy() for k, name in enumerate(cameras)}
    return Scene(parts)
