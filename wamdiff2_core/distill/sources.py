"""Where batches come from: a ring of equal frames on the device, or a stream of packed conversations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from wamdiff2_core.distill.batch import RingBatch
from wamdiff2_core.distill.data import Feeder, Ring, wait_for
from wamdiff2_core.distill.lessons import Lessons
from wamdiff2_core.distill.parallel import Team, branch, rank_seed
from wamdiff2_core.distill.recipe import Recipe
from wamdiff2_core.distill.samples import DataSpec
from wamdiff2_core.distill.stream.packing import StreamBatch
from wamdiff2_core.distill.stream.source import StreamSource
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.images import ImageFormat


class Source(Protocol):
    """image_tokens: of one frame where all have equally many, else 0. state / restore: the place in the data.

    filled, seen: samples or frames at hand and taken in so far; bad, bad_names: what could not be used (by one
    rank, where several meet the same).
    """

    @property
    def image_tokens(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def filled(self) -> int: ...

    @property
    def seen(self) -> int: ...

    @property
    def bad(self) -> Counter[str]: ...

    @property
    def bad_names(self) -> list[str]: ...

    @property
    def generators(self) -> list[torch.Generator]: ...

    def begin(self, recipe: Recipe) -> None:
        """Another stage goes on with this data."""

    def fill(self) -> None:
        """Wait until training can start."""

    def poll(self) -> None:
        """Take in what has arrived."""

    def draw(self) -> RingBatch | StreamBatch: ...

    def state(self) -> dict: ...

    def restore(self, state: dict) -> None: ...

    def close(self) -> None: ...


def start_source(recipe: Recipe, entry: dict, team: Team) -> Source:
    """The recipe's data for this rank. entry: the checkpoint's block_diffusion."""
    if recipe.source == "stream":
        return StreamSource.start(recipe, team.rank, team.world)
    return RingSource.start(recipe, entry, team)


def data_spec(recipe: Recipe, entry: dict) -> DataSpec:
    """What to read, from the checkpoint's block_diffusion entry and the recipe's cameras."""
    sizes = entry.get("image_sizes", {})
    missing = [camera for camera in recipe.cameras if camera not in sizes]
    if missing:
        raise ConfigError(f"recipe {recipe.name}: the checkpoint names no image size for {', '.join(missing)}")
    return DataSpec(
        recipe.init,
        tuple((sizes[c][0], sizes[c][1]) for c in recipe.cameras),
        prompt_room=dict(recipe.prompt_room),
        seed=recipe.seed,
    )


@dataclass
class RingSource:
    """Frames on the device and what feeds them; outlives a stage when the next one trains on the same data.

    Each rank draws frames of its own, from shards of its own. A run that was cut off draws the same frames again,
    unless it follows: what had arrived when is not kept.
    """

    ring: Ring
    feeder: Feeder
    recipe: Recipe
    rank: int = 0
    lessons: Lessons | None = None

    @classmethod
    def start(cls, recipe: Recipe, entry: dict, team: Team | None = None) -> RingSource:
        if not recipe.data:
            raise ConfigError(f"recipe {recipe.name}: data must be set")
        if recipe.attention != "dense":
            raise ConfigError(
                f"recipe {recipe.name}: attention {recipe.attention} is for packed streams: source=stream"
            )
        spec, folders = data_spec(recipe, entry), [Path(folder) for folder in recipe.data]
        rank, world = (0, 1) if team is None else (team.rank, team.world)
        ring = Ring(spec, recipe.ring_frames, torch.device(recipe.device), rank_seed(recipe.seed, rank))
        feeder = Feeder(
            folders,
            spec,
            workers=recipe.workers,
            follow=recipe.follow,
            holdout=recipe.holdout,
            share=(rank, world),
        )
        self = cls(ring, feeder.start(), recipe, rank)
        self._learn()
        return self

    def _learn(self) -> None:
        """Take the recipe's teacher for answers; the one of the recipe before stays where it is the same."""
        if not self.recipe.answers:
            self.ring.taught = None
        elif self.lessons is None or self.lessons.key != Lessons.key_of(self.recipe):
            self.lessons = Lessons.of(self.recipe, self.ring, self.image_tokens)
        if self.recipe.answers and self.lessons is not None:
            self.ring.taught = self.lessons.taught

    @property
    def image_tokens(self) -> int:
        form = ImageFormat.from_folder(self.ring.spec.checkpoint)
        return sum(form.tokens(size) for size in self.ring.spec.sizes)

    @property
    def device(self) -> torch.device:
        return self.ring.device

    @property
    def filled(self) -> int:
        return self.ring.filled

    @property
    def seen(self) -> int:
        return self.ring.seen

    @property
    def bad(self) -> Counter[str]:
        return Counter() if self._told_by_another else self.ring.bad

    @property
    def bad_names(self) -> list[str]:
        return [] if self._told_by_another else self.ring.bad_names

    @property
    def _told_by_another(self) -> bool:
        return self.feeder.alike and self.rank > 0

    @property
    def generators(self) -> list[torch.Generator]:
        return [self.ring.generator]

    def begin(self, recipe: Recipe) -> None:
        """Another recipe trains on these frames: its own random numbers, batch size and augmentation."""
        self.recipe = recipe
        self.ring.generator.manual_seed(rank_seed(recipe.seed, self.rank))
        self._learn()

    def fill(self) -> None:
        enough = self.recipe.min_frames if self.recipe.follow else self.recipe.ring_frames
        wait_for(self.ring, self.feeder, enough, self.recipe.wait_s)
        if self.recipe.answers and self.lessons is not None:
            self.lessons.go_on(self.ring, self.recipe.follow)

    def poll(self) -> None:
        came = False
        for frames in self.feeder.poll():
            self.ring.write(frames)
            came = True
        if came and self.recipe.answers and self.lessons is not None:
            self.lessons.go_on(self.ring, follow=True)

    def draw(self) -> RingBatch:
        batch = self.ring.draw(self.recipe.frames_per_step, self.recipe.augment, self.recipe.free_share)
        return RingBatch(batch, self.ring.spec.order())

    def state(self) -> dict:
        return {"generator": self.ring.generator.get_state(), "rank": self.rank}

    def restore(self, state: dict) -> None:
        if state["rank"] == self.rank:
            self.ring.generator.set_state(state["generator"])
        else:
            branch(self.ring.generator, state["generator"], self.rank)

    def close(self) -> None:
        self.feeder.close()
