"""Decoded frames as arrays, and what a training run reads into them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wamdiff2_core.errors import ConfigError

NAMES_KEPT = 1000

Zeros = Callable[[tuple[int, ...], Any], np.ndarray]  # shape, dtype


@dataclass(frozen=True)
class DataSpec:
    """What a training run reads: image sizes (width, height) in prompt order, and the room for each task.

    prompts: rows kept of a frame for a task; of a plan they differ by noise on the ego state (the first is exact),
    so that the model does not lean on its own last motion. prompt_room, answer_room: tokens, multiples of 16.
    fork_share: of the plans made at a junction, the share whose last row says "drive on" instead of where to: under
    that instruction every way that was driven is right. No effect with a single row a plan.
    """

    checkpoint: str
    sizes: tuple[tuple[int, int], ...] = ((320, 192), (160, 96), (160, 96))
    prompts: dict[str, int] = field(default_factory=lambda: {"plan": 3, "detect": 1, "ask": 3})
    prompt_room: dict[str, int] = field(default_factory=lambda: {"plan": 160, "detect": 112, "ask": 144})
    answer_room: dict[str, int] = field(default_factory=lambda: {"plan": 96, "detect": 96, "ask": 32})
    velocity_noise_mps: float = 0.3
    acceleration_noise_mps2: float = 0.3
    acceleration_drop: float = 0.3
    fork_share: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.fork_share <= 1.0:
            raise ConfigError(f"fork_share: expected a number from 0 to 1, got {self.fork_share!r}")

    def groups(self) -> list[tuple[int, int]]:
        """The distinct image sizes, in order of first use: cameras of one size are encoded together."""
        return list(dict.fromkeys(self.sizes))

    def order(self) -> tuple[tuple[int, int], ...]:
        """(group, place in the group) of each camera, in prompt order."""
        groups = self.groups()
        return tuple((groups.index(size), self.sizes[:camera].count(size)) for camera, size in enumerate(self.sizes))


@dataclass
class TaskArrays:
    """n frames, K rows each: prompt (n, K, P) left-padded, positions (n, K, 3, P), answer and given (n, K, C), their
    lengths (n, K), rows in use (n,).
    """

    prompt: np.ndarray
    positions: np.ndarray
    prompt_length: np.ndarray
    answer: np.ndarray
    answer_length: np.ndarray
    given: np.ndarray
    rows: np.ndarray

    @classmethod
    def empty(cls, frames: int, count: int, prompt: int, answer: int, zeros: Zeros = np.zeros) -> TaskArrays:
        def room(*shape: int, dtype: type = np.int16) -> np.ndarray:
            return zeros((frames, *shape), dtype)

        return cls(
            room(count, prompt),
            room(count, 3, prompt),
            room(count),
            room(count, answer),
            room(count),
            room(count, answer, dtype=np.bool_),
            room(),
        )


@dataclass
class Frames:
    """Decoded frames: images per size group (n, cameras, H, W, 3) uint8, rows per task, and what was not usable."""

    images: list[np.ndarray]
    tasks: dict[str, TaskArrays]
    bad: Counter[str] = field(default_factory=Counter)
    bad_names: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.images[0])

    def first(self, number: int) -> Frames:
        """These frames cut down to the first `number`."""
        self.images = [images[:number] for images in self.images]
        for arrays in self.tasks.values():
            for name in vars(arrays):
                setattr(arrays, name, getattr(arrays, name)[:number])
        return self

    def note(self, reason: str, name: str) -> None:
        """Count something unusable and keep the first few names."""
        self.bad[reason] += 1
        if len(self.bad_names) < NAMES_KEPT:
            self.bad_names.append(f"{name}: {reason}")
