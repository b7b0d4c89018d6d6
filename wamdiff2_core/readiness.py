"""What an engine under a driver must hold, and the calls that it gets ready for before the first scene comes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from wamdiff2_core.decode.engine.config import CallShape, EngineConfig
from wamdiff2_core.decode.engine.prompt import BUCKETS
from wamdiff2_core.expected import Expected
from wamdiff2_core.scene import Scene

if TYPE_CHECKING:
    from wamdiff2_core.driver import Driver

BLOCK_SIZES = (1, 4, 8, 16, 32)
ROWS = (1, 4, 16, 64)  # one task; all tasks; candidates, of which there are at most 64
FULL_ROWS = 4  # as many may be as long as a row can be; the others of a batch stand behind a shared prefix
WORDS_BEHIND = 128  # tokens of a row's own prompt behind such a prefix
LENGTH_STEP = 256
USUAL_TEXT = 40  # characters of an instruction or a question
GREY = (160, 96)  # (width, height) of pictures whose size nobody knows yet
_INSTRUCTION, _QUESTION = "turn left in 40 m, then follow the road ", "what is the car ahead of us about to do "


def engine_config(
    prompt: int, answers: Mapping[str, int], block_sizes: Iterable[int] = (), prefixes: int = 2
) -> EngineConfig:
    """Sizes for a driver. prompt: tokens of the longest; answers: most tokens by task; block_sizes: beside BLOCK_SIZES

    Batches larger than FULL_ROWS are candidates: each holds a plan, or a shorter answer, behind a shared prefix.
    """
    sizes = tuple(sorted({*BLOCK_SIZES, *block_sizes}))
    longest = max(answers.values())
    length = _rounded(prompt + _rounded(longest, sizes[-1]), LENGTH_STEP)
    buckets = BUCKETS if length <= BUCKETS[-1] else (*BUCKETS, length)
    alone = EngineConfig(max_length=length, rows=(FULL_ROWS,), prefixes=prefixes)
    own = WORDS_BEHIND + _rounded(answers["plan"], sizes[-1]) + alone.page_size
    pages = alone.all_pages + (ROWS[-1] - FULL_ROWS) * -(-own // alone.page_size)
    return EngineConfig(
        rows=ROWS,
        block_sizes=sizes,
        max_length=length,
        max_answer=longest,
        prefixes=prefixes,
        pages=pages,
        buckets=buckets,
    )


def longest_texts(instruction: int, question: int) -> Scene:
    """A scene without pictures whose texts have so many characters."""
    return Scene({}, _said(_INSTRUCTION, instruction), question=_said(_QUESTION, question))


def call_shapes(driver: Driver, expected: Expected, config: EngineConfig) -> list[CallShape]:
    """Every call that `expected` leads to. Pictures have the checkpoint's sizes; where it has none, those of GREY."""
    names = driver.cameras if driver.ours else driver.cameras[:1]
    gone = [name for name in expected.may_lack if name in driver.optional_cameras]
    lacking = [tuple(name for name in names if name != one) for one in gone]
    shapes: list[CallShape] = []
    for number, present in enumerate([names, *lacking]):
        sizes = {name: driver.image_sizes.get(name, GREY) for name in present}
        images = {name: np.full((high, wide, 3), 128, np.uint8) for name, (wide, high) in sizes.items()}
        grid = driver.pixels(Scene(images))[1]
        if number:  # fewer pictures, shorter prompts: the passes are there, but for the pictures' own
            shapes += [replace(shape, grids=_grids(grid)) for shape in shapes[:1]]
            continue
        for size in expected.block_sizes or config.block_sizes:
            if driver.loaded.mask_token_id is not None or size == 1:
                shapes += dict.fromkeys(_of_size(driver, expected, images, grid, size, config.max_length))
    return shapes


def _of_size(
    driver: Driver, expected: Expected, images: dict[str, np.ndarray], grid: torch.Tensor, size: int, most: int
) -> Iterator[CallShape]:
    """Calls with short texts, and with the longest: a token for each character. most: tokens that fit the engine."""
    grids = _grids(grid)
    scene = replace(longest_texts(USUAL_TEXT, USUAL_TEXT), images=images)
    prompts = {task: driver.prompt(scene, task, grid) for task in expected.tasks}
    longest = {"plan": expected.instruction, "ask": expected.question}
    for further in (0, 1):
        lengths = {
            task: min(len(prompt.ids) + further * max(longest.get(task, 0) - USUAL_TEXT, 0), most)
            for task, prompt in prompts.items()
        }
        for length in lengths.values():
            yield CallShape(1, size, length, images=True, grids=grids)
        shared = {prompt.ids[: prompt.images_end] for prompt in prompts.values()}
        if expected.together and len(prompts) > 1 and len(shared) == 1:
            end = len(shared.pop())
            yield _behind(driver, len(prompts), size, max(lengths.values()) - end, end, False, grids)
        if "plan" in prompts and (expected.candidates or expected.scored):
            rows = expected.candidates + expected.scored
            yield _behind(driver, rows, size, 1, lengths["plan"] - 1, expected.candidates > 0, grids)


def _behind(
    driver: Driver, rows: int, size: int, rest: int, shared: int, drawn: bool, grids: tuple[tuple[int, int, int], ...]
) -> CallShape:
    """Rows behind a shared prefix; of block-causal context its unfinished block is run again with each row."""
    tail = shared % size if driver.loaded.context == "block_causal" else 0
    return CallShape(rows, size, rest + tail, images=tail > 0, drawn=drawn, prefix=shared - tail, grids=grids)


def _grids(grid: torch.Tensor) -> tuple[tuple[int, int, int], ...]:
    return tuple((int(t), int(h), int(w)) for t, h, w in grid.tolist())


def _said(words: str, characters: int) -> str:
    return (words * (characters // len(words) + 1))[:characters].strip()


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step


def longest_prompt(counts: Sequence[int], texts: Iterable[int]) -> int:
    """Tokens of the longest prompt: images of so many tokens, with what marks each, and the longest of the texts."""
    return sum(counts) + 3 * len(counts) + max(texts)
