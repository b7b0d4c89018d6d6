"""A sample as tokens, positions and pictures: the very tokens that the driver puts before the same checkpoint."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from wamdiff2_core.distill.stream.conversations import BadSample, Sample, Turn
from wamdiff2_core.driver import UPSTREAM_FORMATS
from wamdiff2_core.errors import DataError
from wamdiff2_core.model.checkpoint import block_diffusion_of, kind_of, prompts_of, read_json
from wamdiff2_core.model.images import ImageFormat, Size, fit
from wamdiff2_core.model.prompt import IMAGE, chat_prompt
from wamdiff2_core.model.tokenizer import END, TextTokenizer
from wamdiff2_core.model.tokens import Grid, mrope_positions
from wamdiff2_core.tasks import TASKS, ask, detect, plan

_MODULES: dict[str, ModuleType] = {"plan": plan, "detect": detect, "ask": ask}
NO_TASK = -1


@dataclass(frozen=True)
class Encoded:
    """One sample. prompt (P,) ids; positions (3, P) rotary; next_position: of the first answer token; is_image (P,).

    answer (A,) ids with the end token, unless the scaffold writes that one; given: scaffold places counted from the
    answer's start, of any length; task: number in TASKS or NO_TASK; images: uint8 (H, W, 3), as large as the model
    sees them; keys: which of them are the same picture; grids: their patches.
    """

    name: str
    prompt: Tensor
    positions: Tensor
    next_position: int
    is_image: Tensor
    answer: Tensor
    given: Tensor
    task: int
    images: tuple[np.ndarray, ...]
    keys: tuple[str, ...]
    grids: tuple[Grid, ...]

    def room(self, fill: int) -> int:
        """Places for the answer, filled up to whole blocks of `fill`."""
        return -(-len(self.answer) // fill) * fill

    def tokens(self, fill: int, copies: int) -> int:
        """Places in a stream: prompt and `copies` of the answer."""
        return len(self.prompt) + copies * self.room(fill)


class Encoder:
    """Tokenizer, image rule and answer formats of one checkpoint folder. Safe to use from several threads."""

    def __init__(self, checkpoint: Path | str, max_tokens: int, fill: int = 1, copies: int = 2) -> None:
        """max_tokens: room of a stream; fill: largest block size; copies: 2 for [clean, noisy], 1 for clean alone."""
        folder = Path(checkpoint)
        raw = read_json(folder / "config.json")
        kind = kind_of(raw, folder)
        entry = block_diffusion_of(raw, kind, folder)
        self.max_tokens, self.fill, self.copies = max_tokens, fill, copies
        self.tokenizer = TextTokenizer.from_folder(folder)
        self.form = ImageFormat.from_folder(folder)
        self.image_id = self.tokenizer.control("<|image_pad|>")
        ours = prompts_of(kind, entry, folder) == "wamdiff2-1"
        self.sizes, self.exact = _image_sizes(entry) if ours else (None, False)
        self.limits: dict[str, int] = dict(entry.get("max_new_tokens", {}))
        self.allowed = answer_scaffolds(self.tokenizer, entry)

    def __call__(self, sample: Sample) -> Encoded:
        """Raises BadSample."""
        answer, given = self._answer(sample)
        sizes = self._sizes(len(sample.images))
        pictures = [load_picture(path) for path in sample.images]
        try:
            pictures = fit(pictures, sizes, self.form)
        except DataError as error:
            raise BadSample("unusable image", str(error)) from error
        patch = self.form.patch_size
        grids = tuple((1, picture.shape[0] // patch, picture.shape[1] // patch) for picture in pictures)
        counts = [self.form.tokens((picture.shape[1], picture.shape[0])) for picture in pictures]
        prompt = torch.tensor(conversation_ids(self.tokenizer, sample.turns, counts))
        positions, start = mrope_positions(prompt, grids, self.image_id, self.form.merge_size)
        encoded = Encoded(
            name=sample.name,
            prompt=prompt,
            positions=positions,
            next_position=start,
            is_image=prompt == self.image_id,
            answer=answer,
            given=given,
            task=NO_TASK if sample.task is None else TASKS.index(sample.task),
            images=tuple(pictures),
            keys=tuple(f"{path} {picture.shape}" for path, picture in zip(sample.images, pictures, strict=True)),
            grids=grids,
        )
        needed = encoded.tokens(self.fill, self.copies)
        if needed > self.max_tokens:
            raise BadSample("too long", f"{needed} tokens, room for {self.max_tokens}")
        return encoded

    def _answer(self, sample: Sample) -> tuple[Tensor, Tensor]:
        """Answer ids and scaffold places; an answer of a fixed format must fit its scaffold."""
        ids = [*self.tokenizer.encode(sample.answer), self.tokenizer.eos_id]
        allowed = self.allowed[sample.task] if sample.task else None
        if allowed is None and len(ids) == 1:
            raise BadSample("empty answer")
        limit = self.limits.get(sample.task or "", len(ids))
        if len(ids) > limit:
            raise BadSample("answer too long", f"{len(ids)} tokens, the checkpoint's limit is {limit}")
        allowed = allowed or ()
        wrong = [place for place, (token, may) in enumerate(zip(ids, allowed)) if may is not None and token not in may]
        if wrong or (allowed and len(ids) > len(allowed)):
            where = wrong[0] if wrong else len(allowed)
            raise BadSample("answer not in the fixed format", f"token {where} of {sample.answer[:60]!r}")
        given = torch.tensor([may is not None and len(may) == 1 for may in allowed], dtype=torch.bool)
        if len(given) >= len(ids) and given[len(ids) - 1]:  # an end token that the scaffold writes is not learnt
            ids = ids[:-1]
        return torch.tensor(ids), given

    def _sizes(self, count: int) -> list[Size] | None:
        if self.sizes is None or not count:
            return None
        if count != len(self.sizes) if self.exact else count > len(self.sizes):
            raise BadSample("number of images", f"the checkpoint takes {len(self.sizes)}, the sample has {count}")
        return self.sizes[:count]


def conversation_ids(tokenizer: TextTokenizer, turns: Sequence[Turn], image_tokens: Sequence[int]) -> list[int]:
    """Ids of turns in Qwen's chat, up to where the answer to the last one begins; control words in texts stay text.

    A single human turn is exactly `chat_prompt`, which the driver uses.
    """
    ids: list[int] = []
    left = list(image_tokens)
    for turn in turns:
        if turn.speaker == "human":
            here = turn.text.count(IMAGE)
            ids += chat_prompt(tokenizer, turn.text, left[:here]).ids
            left = left[here:]
        elif turn.speaker == "gpt":
            ids += [*tokenizer.encode(turn.text), tokenizer.control(END), *tokenizer.encode("\n")]
        else:
            said = [*tokenizer.encode("system\n"), *tokenizer.encode(turn.text.strip())]
            ids += [tokenizer.control("<|im_start|>"), *said, tokenizer.control(END), *tokenizer.encode("\n")]
    return ids


def answer_scaffolds(tokenizer: TextTokenizer, entry: dict) -> dict[str, tuple[tuple[int, ...] | None, ...] | None]:
    """Allowed ids at each place of each task's answer, None where a format is free; entry: block_diffusion."""
    formats = {**UPSTREAM_FORMATS, **entry.get("answer_formats", {})}
    return {task: _MODULES[task].allowed(tokenizer, formats[task]) for task in TASKS}


def load_picture(path: Path) -> np.ndarray:
    """(H, W, 3) uint8 RGB of an image file. Raises BadSample."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait for ever
            raise BadSample("unreadable image", f"{path}: no regular file")
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            return np.asarray(image.convert("RGB"))
    except FileNotFoundError as error:
        raise BadSample("missing image", str(path)) from error
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError, SyntaxError) as error:
        raise BadSample("unreadable image", f"{path}: {type(error).__name__}") from error


def _image_sizes(entry: dict) -> tuple[list[Size] | None, bool]:
    """Sizes of a wamdiff2 checkpoint's images in prompt order, and whether a sample must have all of them.

    As in the driver: the cameras it names are required; without such names it is the first ones of its table.
    """
    table = {name: (int(w), int(h)) for name, (w, h) in entry.get("image_sizes", {}).items()}
    if not table:
        return None, False
    if "cameras" in entry:
        return [size for name, size in table.items() if name in entry["cameras"]], True
    return list(table.values()), False
