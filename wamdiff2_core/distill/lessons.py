"""A teacher answers the frames of a ring, as they come, before the student trains on them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from wamdiff2_core.distill.answers import Answerer, load_answerer
from wamdiff2_core.distill.batch import RingBatch
from wamdiff2_core.distill.data import Ring, Taught
from wamdiff2_core.distill.forward import Pass
from wamdiff2_core.distill.teacher import check_folders

if TYPE_CHECKING:
    from wamdiff2_core.distill.recipe import Recipe

FRAMES = {"cpu": 32, "cuda": 1024}  # asked at a time
Key = tuple[str, tuple[str, ...]]


@dataclass
class Lessons:
    """The teacher and what it has answered. counts: answers used and refused, by task."""

    key: Key
    answerer: Answerer
    taught: Taught
    counts: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def key_of(recipe: Recipe) -> Key:
        return (recipe.answers, recipe.answer_tasks)

    @classmethod
    def of(cls, recipe: Recipe, ring: Ring, image_tokens: int) -> Lessons:
        cast = torch.bfloat16 if recipe.bf16 else torch.float32
        dtype = "bfloat16" if recipe.bf16 else "float32"
        check_folders(Path(recipe.answers), Path(recipe.init), "answers")
        answerer = load_answerer(recipe.answers, Pass(cast), dtype, image_tokens, str(ring.device))
        return cls(cls.key_of(recipe), answerer, Taught(ring, recipe.answer_tasks))

    @torch.no_grad()
    def go_on(self, ring: Ring, follow: bool) -> None:
        """Answer what is new. follow: only whole batches, since more will come."""
        frames = self.taught.open_frames(ring.filled)
        size = FRAMES.get(ring.device.type, 32)
        if follow and 0 < len(frames) < size and bool(self.counts):
            return
        began = time.monotonic()
        for start in range(0, len(frames), size):
            some = frames[start : start + size]
            self._answer(ring, some)
            self.taught.asked[some] = True
        if len(frames):
            said = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
            seconds = time.monotonic() - began
            print(f"answers of {self.key[0]}: {len(frames)} frames in {seconds:.1f} s; so far {said}", flush=True)

    def _answer(self, ring: Ring, frames: torch.Tensor) -> None:
        """The first row of each task: what its prompt says about the car's motion is exact."""
        before, ring.taught = ring.taught, None
        try:
            batch = RingBatch(ring.batch(frames), ring.spec.order())
            visual = self.answerer.look(batch)
            for task in self.taught.answers:
                answer, length, usable = self.answerer.answers(task, batch, visual)
                self.taught.put(task, frames, answer, length, usable)
                used = int(usable.sum())
                self.counts.update({f"{task} used": used, f"{task} refused": len(frames) - used})
        finally:
            ring.taught = before
