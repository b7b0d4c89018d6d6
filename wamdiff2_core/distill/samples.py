"""Shards on disk (upstream's conversation format) to arrays ready for the accelerator. Runs in worker processes.

A frame is one set of images with the conversations about it. Whatever cannot be used is counted under a reason and
named.
"""

from __future__ import annotations

import io
import json
import os
import re
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from wamdiff2_core.distill.arrays import DataSpec, Frames, TaskArrays, Zeros
from wamdiff2_core.errors import DataError
from wamdiff2_core.model.images import ImageFormat
from wamdiff2_core.model.prompt import IMAGE, answer_ids, chat_prompt, human_text
from wamdiff2_core.model.tokenizer import TextTokenizer
from wamdiff2_core.model.tokens import mrope_positions
from wamdiff2_core.scene import Command, EgoState
from wamdiff2_core.tasks import TASKS, ask, detect, plan
from wamdiff2_core.tasks.navigation import parse_navigation

__all__ = ["DataSpec", "Encoder", "Frames", "TaskArrays", "read_shard"]

_EGO = re.compile(r"velocity (\S+) (\S+) acceleration (\S+) (\S+); (.*); plan", re.DOTALL)
_ALLOWED = {"plan": plan.allowed, "detect": detect.allowed, "ask": ask.allowed}
DRIVE_ON = "drive on"  # an instruction that leaves open which way
_AT_A_JUNCTION = (Command.LEFT, Command.RIGHT, Command.STRAIGHT)
_JPEG_END = b"\xff\xd9"


class _CachingTokenizer(TextTokenizer):
    """The same pieces of prompts come again and again."""

    def __init__(self, definition: dict) -> None:
        super().__init__(definition)
        self._seen: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        if text not in self._seen:
            if len(self._seen) > 20_000:
                self._seen.clear()
            self._seen[text] = super().encode(text)
        return self._seen[text]


class Encoder:
    """Turns the conversations of a frame into token rows with the tokenizer and image format of one checkpoint."""

    def __init__(self, spec: DataSpec) -> None:
        self.spec = spec
        self.tokenizer = _CachingTokenizer.from_folder(spec.checkpoint)
        form = ImageFormat.from_folder(spec.checkpoint)
        self.image_tokens = [form.tokens(size) for size in spec.sizes]
        self.grids = tuple((1, height // form.patch_size, width // form.patch_size) for width, height in spec.sizes)
        self.merge = form.merge_size
        self.image_id = self.tokenizer.control("<|image_pad|>")
        self.given: dict[str, np.ndarray] = {}
        self.allowed: dict[str, tuple[tuple[int, ...] | None, ...]] = {}
        for task in TASKS:
            self.allowed[task] = allowed = _ALLOWED[task](self.tokenizer) or ()
            room = np.zeros(spec.answer_room[task], np.bool_)
            for place, ids in enumerate(allowed[: len(room)]):
                room[place] = ids is not None and len(ids) == 1
            self.given[task] = room
        self.prefix = lru_cache(maxsize=16)(self._prefix_positions)

    def _prefix_positions(self, prefix: tuple[int, ...]) -> tuple[np.ndarray, int]:
        positions, start = mrope_positions(torch.tensor(prefix), self.grids, self.image_id, self.merge)
        return positions.numpy().astype(np.int16), start

    def row(self, arrays: TaskArrays, frame: int, task: str, human: str, answer: str) -> None:
        """Add a conversation to the frame. Raises DataError when it does not fit the room of its task."""
        prompt = chat_prompt(self.tokenizer, human, self.image_tokens)
        ids, reply = prompt.ids, answer_ids(self.tokenizer, answer)
        room, space = arrays.prompt.shape[2], arrays.answer.shape[2]
        given = self.given[task]
        if len(ids) > room:
            raise DataError(f"{task} prompt longer than {room} tokens")
        if len(reply) > space + (task == "detect"):  # the end token behind a full list of boxes is given, not learnt
            raise DataError(f"{task} answer longer than {space} tokens")
        for place, (token, may) in enumerate(zip(reply, self.allowed[task])):
            if may is not None and token not in may:
                raise DataError(f"{task} answer not in the fixed format: token {place} of {answer[:40]!r}")
        number = int(arrays.rows[frame])
        prefix, start = self.prefix(ids[: prompt.images_end])
        rest = np.arange(start, start + len(ids) - prompt.images_end, dtype=np.int16)
        arrays.prompt[frame, number, room - len(ids) :] = ids
        arrays.positions[frame, number, :, room - len(ids) : room - len(rest)] = prefix
        arrays.positions[frame, number, :, room - len(rest) :] = rest
        arrays.prompt_length[frame, number] = len(ids)
        arrays.answer[frame, number] = self.tokenizer.eos_id
        arrays.answer[frame, number, : len(reply)] = reply[:space]
        arrays.answer_length[frame, number] = min(len(reply), space)
        arrays.given[frame, number] = given
        arrays.rows[frame] += 1


def varied(text: str, spec: DataSpec, rng: np.random.Generator, last: bool) -> str:
    """The plan prompt with another draw of velocity and acceleration; texts of other prompts stay as they are.

    last: of the rows of its frame, the one that may say "drive on" (see DataSpec.fork_share).
    """
    match = _EGO.fullmatch(text)
    if match is None:
        return text
    vx, vy, ax, ay = (float(match[i]) for i in range(1, 5))
    vx = max(0.0, vx + rng.uniform(-1, 1) * spec.velocity_noise_mps) if abs(vx) > 0.05 else vx
    keep = rng.random() >= spec.acceleration_drop
    ax, ay = (value * keep + keep * rng.uniform(-1, 1) * spec.acceleration_noise_mps2 for value in (ax, ay))
    instruction = match[5]
    if last and parse_navigation(instruction) in _AT_A_JUNCTION and rng.random() < spec.fork_share:
        instruction = DRIVE_ON
    return plan.prompt_text(EgoState((vx, vy), (ax, ay)), instruction)


def read_shard(folder: Path, encoder: Encoder, zeros: Zeros = np.zeros) -> Frames:
    """All usable frames of one shard folder (samples.json and its images); an unreadable shard has none, and a note.

    zeros: makes the arrays.
    """
    spec = encoder.spec
    by_images: dict[tuple[str, ...], list[dict]] = {}
    frames = Frames([], {})
    try:
        samples = json.loads((folder / "samples.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        frames.note(f"unreadable samples.json ({type(error).__name__})", folder.name)
        samples = []
    for sample in samples if isinstance(samples, list) else []:
        try:
            paths = tuple(sample["image"])
            if not all(isinstance(path, str) for path in paths):
                raise TypeError("paths are texts")
            by_images.setdefault(paths, []).append(sample)
        except (KeyError, TypeError):
            frames.note("no image list", f"{folder.name}/{_name(sample)}")
    groups = spec.groups()
    cameras = [spec.sizes.count(size) for size in groups]
    total = len(by_images)
    frames.images = [zeros((total, n, h, w, 3), np.uint8) for (w, h), n in zip(groups, cameras, strict=True)]
    frames.tasks = {
        task: TaskArrays.empty(total, spec.prompts[task], spec.prompt_room[task], spec.answer_room[task], zeros)
        for task in TASKS
    }
    rng = np.random.default_rng([spec.seed, *folder.name.encode()])
    used = 0
    for paths, conversations in by_images.items():
        used += _read_frame(frames, used, folder, paths, conversations, encoder, rng)
    return frames.first(used)


def _read_frame(
    frames: Frames,
    at: int,
    folder: Path,
    paths: tuple[str, ...],
    conversations: list[dict],
    encoder: Encoder,
    rng: np.random.Generator,
) -> bool:
    """Write one frame at index `at`; False (and a note) when its images or all of its conversations are unusable."""
    try:
        if len(paths) != len(encoder.spec.sizes):
            raise DataError(f"{len(paths)} images, expected {len(encoder.spec.sizes)}")
        images = [_image(_inside(folder, path), size) for path, size in zip(paths, encoder.spec.sizes, strict=True)]
    except (DataError, ValueError) as error:
        frames.note(str(error)[:120], f"{folder.name}/{paths[0] if paths else ''}")
        return False
    for arrays in frames.tasks.values():
        arrays.rows[at] = 0
    for sample in conversations:
        try:
            _add(frames, at, sample, encoder, rng)
        except (DataError, KeyError, TypeError, ValueError, IndexError) as error:
            frames.note(f"{type(error).__name__}: {error}"[:120], f"{folder.name}/{_name(sample)}")
    if not any(arrays.rows[at] for arrays in frames.tasks.values()):
        return False
    for image, (group, camera) in zip(images, encoder.spec.order(), strict=True):
        frames.images[group][at, camera] = image
    return True


def _add(frames: Frames, at: int, sample: dict, encoder: Encoder, rng: np.random.Generator) -> None:
    task = sample["task"]
    arrays = frames.tasks[task]
    turns = {turn["from"]: turn["value"] for turn in sample["conversations"]}
    human, answer = turns["human"], turns["gpt"]
    try:
        (human + answer).encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError("text is not UTF-8") from error
    if arrays.rows[at] < arrays.prompt.shape[1]:
        encoder.row(arrays, at, task, human, answer)
    if task == "plan":
        text, rows = human.replace(IMAGE, "").strip(), arrays.prompt.shape[1]
        while arrays.rows[at] < rows:
            other = varied(text, encoder.spec, rng, last=int(arrays.rows[at]) == rows - 1)
            encoder.row(arrays, at, task, human_text(other, len(encoder.image_tokens)), answer)


def _inside(folder: Path, path: str) -> str:
    """The path of a shard's picture, which lies below its folder."""
    top = os.path.abspath(folder)
    full = os.path.abspath(os.path.join(top, path))
    if os.path.commonpath([top, full]) != top:
        raise DataError("image outside the shard")
    if os.path.exists(full) and not os.path.isfile(full):  # reading a pipe would wait for ever
        raise DataError("unreadable image (no regular file)")
    return full


def _image(path: str, size: tuple[int, int]) -> np.ndarray:
    """(H, W, 3) uint8 RGB of exactly this size (width, height)."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        # OpenCV takes half the time for the same pixels, but would fill up a JPEG that was cut off with grey.
        pixels = _opencv(data) if data.endswith(_JPEG_END) else _pillow(data)
    except (OSError, UnidentifiedImageError, cv2.error) as error:
        raise DataError(f"unreadable image ({type(error).__name__})") from error
    if pixels.shape != (size[1], size[0], 3):
        raise DataError(f"image of {pixels.shape[1]} x {pixels.shape[0]}, expected {size[0]} x {size[1]}")
    return pixels


def _opencv(data: bytes) -> np.ndarray:
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if pixels is None:
        raise UnidentifiedImageError("not an image")
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)


def _pillow(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def _name(sample: object) -> str:
    name = str(sample.get("id", "?")) if isinstance(sample, dict) else repr(sample)
    return name[:80].encode("utf-8", "backslashreplace").decode("utf-8")
