"""Labelled frames with their pictures as tensors: read and resized once, for any number of checkpoints and settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.evaluate.frames import Frame, read_frames, read_image
from wamdiff2_core.model.images import ImageFormat, Size, fit, patchify


@dataclass(frozen=True)
class FrameTable:
    """N frames. pictures: camera -> (N, H, W, 3) uint8 of the size the model sees, in the order of its cameras."""

    frames: tuple[Frame, ...]
    pictures: dict[str, Tensor]

    @property
    def sizes(self) -> dict[str, Size]:
        return {camera: (images.shape[2], images.shape[1]) for camera, images in self.pictures.items()}

    @property
    def digest(self) -> str:
        """What tells these frames from others: their names, truths and questions."""
        seen = hashlib.sha256()
        for frame in self.frames:
            seen.update(repr((frame.name, frame.points.tolist(), frame.boxes, frame.questions)).encode())
        return seen.hexdigest()[:16]

    def to(self, device: torch.device) -> FrameTable:
        return FrameTable(self.frames, {camera: images.to(device) for camera, images in self.pictures.items()})

    def require(self, sizes: Mapping[str, Size]) -> None:
        """ConfigError if a model of these cameras and sizes cannot read the pictures."""
        if list(self.sizes.items()) != list(sizes.items()):
            raise ConfigError(f"frames were read for {self.sizes}, the checkpoint sees {dict(sizes)}")

    def patches(self, part: slice, form: ImageFormat) -> tuple[Tensor, Tensor]:
        """Frames of `part` for the vision tower: pixel_values (patches, C * T * P * P), grid_thw (images, 3), frame by
        frame, each in the order of the cameras.
        """
        cut = [patchify(images[part], form) for images in self.pictures.values()]
        unit = form.patch_size
        grids = [(1, images.shape[1] // unit, images.shape[2] // unit) for images in self.pictures.values()]
        return torch.cat(cut, 1).flatten(0, 1), torch.tensor(grids * len(cut[0]))


def load_table(data: Path, sizes: Mapping[str, Size], most: int = 0, holdout: int = 0, workers: int = 8) -> FrameTable:
    """At most `most` frames (0: all) of a folder of shards, with one picture for each camera of `sizes`.

    holdout: see `frames.read_frames`.
    """
    return table_of(read_frames(data, most, holdout), sizes, workers)


def table_of(frames: Sequence[Frame], sizes: Mapping[str, Size], workers: int = 8) -> FrameTable:
    """The table of these frames. DataError for a frame with too few images, or images that cannot be read."""
    form = ImageFormat()  # only a resize by exact sizes: patches are cut later
    for frame in frames:
        if len(frame.images) < len(sizes):
            raise DataError(f"frame {frame.name} has {len(frame.images)} images, the checkpoint sees {list(sizes)}")

    def read(frame: Frame) -> list[np.ndarray]:
        images = [read_image(path) for path in frame.images[: len(sizes)]]
        return fit(images, list(sizes.values()), form)

    pictures = {camera: torch.empty(len(frames), high, wide, 3, dtype=torch.uint8)
                for camera, (wide, high) in sizes.items()}  # fmt: skip
    with ThreadPoolExecutor(workers) as pool:  # decoding and resizing leave Python's lock
        for number, images in enumerate(pool.map(read, frames)):
            for camera, image in zip(sizes, images, strict=True):
                pictures[camera][number] = torch.from_numpy(image)
    return FrameTable(tuple(frames), pictures)
