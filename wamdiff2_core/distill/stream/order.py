"""Which sample comes next: a seeded permutation for each epoch, dealt out to the ranks; a position to resume at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wamdiff2_core.errors import ConfigError, DataError


@dataclass(frozen=True)
class Place:
    """The `index`-th sample of a rank in an epoch."""

    epoch: int
    index: int


class Order:
    """Endless: epoch after epoch, each sample once an epoch over all ranks together."""

    def __init__(self, samples: int, seed: int = 0, rank: int = 0, world: int = 1) -> None:
        if not 0 <= rank < world:
            raise ConfigError(f"rank: expected 0 <= rank < {world}, got {rank}")
        if samples < world:
            raise DataError(f"expected at least one sample for each of {world} ranks, got {samples}")
        self.samples, self.seed, self.rank, self.world = samples, seed, rank, world
        self.place = Place(0, 0)
        self._epoch, self._numbers = -1, np.zeros(0, np.int64)

    def number(self, place: Place) -> int:
        """The sample at a place."""
        if place.epoch != self._epoch:
            shuffled = np.random.default_rng([self.seed, place.epoch]).permutation(self.samples)
            self._epoch, self._numbers = place.epoch, shuffled[self.rank :: self.world]
        return int(self._numbers[place.index])

    def share(self) -> int:
        """Samples of this rank in an epoch."""
        return len(range(self.rank, self.samples, self.world))

    def take(self) -> Place:
        """The next place; the position moves on."""
        here = self.place
        self.place = self.after(here)
        return here

    def after(self, place: Place) -> Place:
        """The place behind this one."""
        last = place.index + 1 >= self.share()
        return Place(place.epoch + 1, 0) if last else Place(place.epoch, place.index + 1)
