"""Boxes of named categories out of a checkpoint: every category's question behind one pass over the picture.

Checkpoints that answer in Qwen3-VL's JSON are asked for one category at a time ("Detect every <name> ..."), all in one
batch. Ours know one question with fixed labels, "detect", which is asked once. A box's score is the mean probability of
the tokens of its label and its numbers (`Box.confidence`); separators do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from wamdiff2_core.decode.result import DecodeResult
from wamdiff2_core.driver import Driver
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.prompt import chat_prompt, human_text
from wamdiff2_core.readiness import FULL_ROWS
from wamdiff2_core.scene import Box, Cost, Detections, Failure, FailureKind, Scene
from wamdiff2_core.tasks.checks import scene_problem
from wamdiff2_core.tasks.reading import read_answer

MODES = ("auto", "one", "each")
BATCH = 16  # categories that are decoded together


@dataclass(frozen=True)
class Found:
    """Boxes of a picture, what failed (kind of failure: how many answers), passes of the text model, milliseconds.

    other: boxes with a label that was not asked for; they are left out.
    """

    boxes: tuple[Box, ...]
    failures: dict[str, int]
    forwards: int
    milliseconds: float
    other: int = 0


def category_prompt(name: str) -> str:
    """The human text for one category, behind the pictures."""
    return (
        f"Detect every {name} in the image. "
        f'Answer as JSON: [{{"bbox_2d": [x1, y1, x2, y2], "label": "{name}"}}]; answer [] if there is none.'
    )


def mode_of(driver: Driver, mode: str) -> str:
    """The mode "auto" stands for. ConfigError for an unknown one, or "each" where a checkpoint's labels are fixed."""
    if mode not in MODES:
        raise ConfigError(f"mode: expected one of {', '.join(MODES)}; got {mode!r}")
    fixed = driver.formats["detect"] == "fixed"
    if mode == "each" and fixed:
        raise ConfigError("mode each: this checkpoint names labels by itself; expected mode one")
    return ("one" if fixed else "each") if mode == "auto" else mode


def find(driver: Driver, scene: Scene, names: Sequence[str], mode: str = "auto") -> Found:
    """Boxes of the named categories in a scene's front camera."""
    problem = scene_problem(scene, "detect", driver.required(scene))
    if problem:
        return Found((), {FailureKind.INPUT.value: 1}, 0, 0.0)
    if mode_of(driver, mode) == "one":
        made = driver.detect(scene)
        if isinstance(made, Failure):
            return Found((), {made.kind.value: 1}, made.cost.forwards, made.cost.total_ms)
        return _kept(made.boxes, names, {}, made.cost.forwards, made.cost.total_ms)
    return _each(driver, scene, names)


def _each(driver: Driver, scene: Scene, names: Sequence[str]) -> Found:
    pixels, grid = driver.pixels(scene)
    counts = (grid.prod(dim=1) // driver.image_format.merge_size**2).tolist()
    prompts = [chat_prompt(driver.tokenizer, human_text(category_prompt(name), len(counts)), counts) for name in names]
    end, block = prompts[0].images_end, driver.decoding.block_size
    prefix = driver.decoder.prefill(torch.tensor(prompts[0].ids[:end]), pixels, grid, block)
    boxes: list[Box] = []
    failures: dict[str, int] = {}
    forwards, spent, other = prefix.forwards, prefix.vision_ms + prefix.prefill_ms, 0
    batch = BATCH if driver.block_sizes is None else FULL_ROWS  # an engine has room for so many answers of full length
    for low in range(0, len(names), batch):
        part = range(low, min(low + batch, len(names)))
        limit = driver.max_new_tokens["detect"]
        rests = [torch.tensor(prompts[k].ids[end:]) for k in part]
        made = driver.decoder.generate(rests, None, None, driver.decoding, None, prefix, [limit] * len(part))
        outputs = [made] if isinstance(made, DecodeResult) else list(made)
        forwards += max(one.forwards for one in outputs)
        spent += max(one.prefill_ms + one.decode_ms for one in outputs)
        for k, output in zip(part, outputs, strict=True):
            answer = driver.tokenizer.answer(output.tokens, output.confidences)
            read = read_answer(
                "detect", driver.formats["detect"], output.status.value, answer, scene, driver.limits, Cost()
            )
            if isinstance(read, Detections):
                mine = [replace(box, label=names[k]) for box in read.boxes if box.label.lower() == names[k].lower()]
                other += len(read.boxes) - len(mine)
                boxes += mine
            elif isinstance(read, Failure):
                failures[read.kind.value] = failures.get(read.kind.value, 0) + 1
    return Found(tuple(boxes), failures, forwards, spent, other)


def _kept(boxes: Sequence[Box], names: Sequence[str], failures: dict[str, int], forwards: int, spent: float) -> Found:
    kept = tuple(box for box in boxes if box.label in names)
    return Found(kept, failures, forwards, spent, len(boxes) - len(kept))
