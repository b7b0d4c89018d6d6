"""Shards on disk: `shard_00000/{samples.json, statistics.json, images/*.jpg}`, complete or not there at all."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import cv2

from wamdiff2_core.errors import DataError
from wamdiff2_sim.data.entries import Frame, entries

JPEG_QUALITY = 92
SAMPLES, STATISTICS = "samples.json", "statistics.json"


def shard_path(folder: Path, index: int) -> Path:
    return folder / f"shard_{index:05d}"


class ShardWriter:
    """Collects frames in a hidden folder and renames it when it is full, so that readers only ever see whole
    shards.
    """

    def __init__(self, folder: Path, index: int) -> None:
        self.target = shard_path(folder, index)
        self._temporary = folder / f".{self.target.name}.{os.getpid()}"
        shutil.rmtree(self._temporary, ignore_errors=True)
        (self._temporary / "images").mkdir(parents=True)
        self._entries: list[dict[str, object]] = []
        self._statistics: dict[str, Counter[str]] = {}
        self.frames = 0

    def add(self, frame: Frame) -> None:
        """Store the images of a frame and keep its conversations."""
        paths = []
        for camera, image in frame.images.items():
            path = f"images/{frame.name}_{camera}.jpg"
            _write_jpeg(self._temporary / path, image)
            paths.append(path)
        self._entries += entries(frame, paths)
        self.frames += 1
        self._count(frame)

    def attach(self, name: str, content: bytes) -> None:
        """A further file of the shard."""
        (self._temporary / name).write_bytes(content)

    def close(self) -> Path:
        """Make the shard visible under its name."""
        (self._temporary / SAMPLES).write_text(json.dumps(self._entries), encoding="utf-8")
        (self._temporary / STATISTICS).write_text(json.dumps(self.statistics(), indent=1), encoding="utf-8")
        if self.target.exists():
            raise DataError(f"shard {self.target} exists already: expected a free name")
        os.rename(self._temporary, self.target)
        return self.target

    def statistics(self) -> dict[str, object]:
        """Shares of situations, and counts of answers."""
        shares = {name: {key: round(n / max(self.frames, 1), 4) for key, n in counter.most_common()}
                  for name, counter in self._statistics.items() if name != "answers"}  # fmt: skip
        return {
            "frames": self.frames,
            **shares,
            "answers": dict(self._statistics.get("answers", Counter()).most_common()),
        }

    def _count(self, frame: Frame) -> None:
        for name in ("reason", "manoeuvre", "motion", "perturbed", "map", "weather"):
            self._statistics.setdefault(name, Counter())[str(frame.meta.get(name))] += 1
        self._statistics.setdefault("boxes", Counter())[str(len(frame.boxes))] += 1
        self._statistics.setdefault("answers", Counter()).update(answer for _, answer in frame.questions)


def _write_jpeg(path: Path, image) -> None:
    if not cv2.imwrite(str(path), image[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]):
        raise DataError(f"{path}: the image could not be written")
