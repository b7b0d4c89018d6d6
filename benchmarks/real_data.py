"""A small fixed set of made-up conversations of real size: one picture, a prompt, a plan as upstream writes it.

The same samples come in two forms: packed into flat streams, or as padded rows. Pictures and prompts are random, so a
model can only learn the plans by heart; what is measured does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.real_shapes import Ids
from wamdiff2_core.distill.batch import TrainBatch
from wamdiff2_core.distill.forward import Visual
from wamdiff2_core.distill.layout import Rows
from wamdiff2_core.distill.stream.encode import NO_TASK, Encoded
from wamdiff2_core.distill.stream.packing import collate
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.images import ImageFormat, Size, patchify
from wamdiff2_core.model.tokens import mrope_positions

FORM = ImageFormat()
FIRST_CHARACTER = 33  # Qwen's vocabulary begins with the printable characters from "!" on
PLAIN_TOKENS = 94  # of which there are so many
MOST_ANSWER = 96  # answers of 65 to 96 tokens fill three blocks of 32, so all shapes are fixed
FRAME = 5  # control tokens of a prompt
FORMS = ("stream", "rows")


@dataclass(frozen=True)
class DataSize:
    """image: (width, height) as the model sees it; prompt_tokens: of text, on average; block: of the student."""

    image: Size = (960, 640)
    prompt_tokens: int = 100
    max_tokens: int = 8192
    block: int = 32

    def __post_init__(self) -> None:
        if min(self.image) < FORM.unit or any(side % FORM.unit for side in self.image):
            raise ConfigError(f"image: expected sides that are multiples of {FORM.unit}, got {self.image}")
        if self.samples_per_stream < 1:
            raise ConfigError(f"max_tokens: {self.max_tokens} hold not even one sample of {self.longest} tokens")

    @property
    def image_tokens(self) -> int:
        return FORM.tokens(self.image)

    @property
    def longest(self) -> int:
        """Places that a sample takes at most: prompt, clean and noisy answer."""
        room = -(-MOST_ANSWER // self.block) * self.block
        return FRAME + self.image_tokens + self.prompt_tokens + self.prompt_tokens // 10 + 2 * room

    @property
    def samples_per_stream(self) -> int:
        return self.max_tokens // self.longest


@dataclass(frozen=True)
class RowsBatch:
    """Padded rows with one picture each: patches (R, n, values)."""

    rows: Rows
    patches: Tensor
    grid: tuple[int, int, int]

    @property
    def parts(self) -> dict[str, Rows]:
        return {"answers": self.rows}

    @property
    def pictures(self) -> int:
        return len(self.patches)

    def encoded(self, visual: nn.Module, encode: Callable[..., Tensor]) -> Visual:
        return Visual.of(encode(visual, self.patches, self.grid).flatten(1, 2))


def plan_text(rng: np.random.Generator) -> str:
    """Eight points at 2 Hz, x and y in metres with two decimals, as upstream writes them."""
    speed, turn = rng.uniform(2.0, 12.0), rng.uniform(-0.25, 0.25)
    time = 0.5 * np.arange(1, 9)
    points = np.stack([speed * time * np.cos(turn * time), speed * time * np.sin(turn * time)], 1)
    return ",".join(f"{value:.2f}" for value in points.flatten())


def sample(number: int, size: DataSize, ids: Ids, seed: int) -> Encoded:
    """Sample `number` of the set `seed`; its answer has 65 to 96 tokens with the end token."""
    rng = np.random.default_rng((seed, number))
    while not 65 <= len(text := plan_text(rng)) + 1 <= MOST_ANSWER:
        pass
    around = size.prompt_tokens // 10
    words = rng.integers(0, PLAIN_TOKENS, size.prompt_tokens + int(rng.integers(-around, around + 1)))
    picture = [ids.image_begin, *[ids.image] * size.image_tokens, ids.image_end]
    prompt = torch.tensor([ids.turn, *picture, *words.tolist(), ids.end, ids.turn])
    width, height = size.image
    grid = (1, height // FORM.patch_size, width // FORM.patch_size)
    positions, start = mrope_positions(prompt, [grid], ids.image, FORM.merge_size)
    return Encoded(
        name=f"made up {number}",
        prompt=prompt,
        positions=positions,
        next_position=start,
        is_image=prompt == ids.image,
        answer=torch.tensor([*(ord(letter) - FIRST_CHARACTER for letter in text), ids.end]),
        given=torch.zeros(0, dtype=torch.bool),
        task=NO_TASK,
        images=(rng.integers(0, 256, (height, width, 3), dtype=np.uint8),),
        keys=(f"picture {number}",),
        grids=(grid,),
    )


def batches(
    form: str, size: DataSize, ids: Ids, samples: int, streams: int, attention: str, device: torch.device, seed: int = 0
) -> list[TrainBatch]:
    """At least `samples` samples in batches of `streams` full streams (or as many rows), on the device.

    All batches have the same shapes. attention: of streams, "dense" | "flex".
    """
    if form not in FORMS:
        raise ConfigError(f"data: expected one of {', '.join(FORMS)}; got {form!r}")
    if form == "rows" and attention != "dense":
        raise ConfigError("padded rows have dense masks only")
    each = size.samples_per_stream * streams
    made = [sample(number, size, ids, seed) for number in range(-(-samples // each) * each)]
    groups = [made[begin : begin + each] for begin in range(0, len(made), each)]
    if form == "rows":
        return [rows_batch(group, size, ids, device) for group in groups]
    encoder = SimpleNamespace(form=FORM, tokenizer=SimpleNamespace(eos_id=ids.end))
    found: list[TrainBatch] = []
    for group in groups:
        split = [group[begin::streams] for begin in range(streams)]
        found.append(collate(split, size.max_tokens, size.block, 2, encoder, attention).to(device))  # type: ignore[arg-type]
    return found


def rows_batch(samples: Sequence[Encoded], size: DataSize, ids: Ids, device: torch.device) -> RowsBatch:
    """Prompts padded on the left, answers filled with end tokens."""
    room = samples[0].room(size.block)
    widest = size.longest - 2 * room
    prompt = torch.full((len(samples), widest), ids.end)
    positions = torch.zeros(3, len(samples), widest, dtype=torch.int64)
    answer = torch.full((len(samples), room), ids.end)
    for row, one in enumerate(samples):
        prompt[row, widest - len(one.prompt) :] = one.prompt
        positions[:, row, widest - len(one.prompt) :] = one.positions
        answer[row, : len(one.answer)] = one.answer
    rows = Rows(
        prompt=prompt.to(device),
        prompt_length=torch.tensor([len(one.prompt) for one in samples], device=device),
        prompt_positions=positions.to(device),
        answer=answer.to(device),
        answer_length=torch.tensor([len(one.answer) for one in samples], device=device),
        given=torch.zeros(answer.shape, dtype=torch.bool, device=device),
        frame=torch.arange(len(samples), device=device),
        task=torch.zeros(len(samples), dtype=torch.int64, device=device),
    )
    pictures = torch.from_numpy(np.stack([one.images[0] for one in samples])).to(device)
    return RowsBatch(rows, patchify(pictures, FORM), samples[0].grids[0])
