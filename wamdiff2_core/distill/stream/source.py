"""A reader of conversations as the trainer's source of batches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch

from wamdiff2_core.distill.recipe import Recipe
from wamdiff2_core.distill.stream.packing import StreamBatch
from wamdiff2_core.distill.stream.reader import Reader, StreamSpec
from wamdiff2_core.errors import ConfigError


@dataclass
class StreamSource:
    """Packed batches on the device, one `draw` after the other; the place in the data is saved with the run."""

    reader: Reader
    device: torch.device
    seen: int = 0  # samples drawn

    @classmethod
    def start(cls, recipe: Recipe, rank: int = 0, world: int = 1, streams: int = 1) -> StreamSource:
        """streams: packed sequences a batch, on each of `world` ranks."""
        if not recipe.files:
            raise ConfigError(f"recipe {recipe.name}: files must be set")
        spec = StreamSpec(
            checkpoint=recipe.init,
            files=recipe.files,
            image_root=recipe.image_root,
            max_tokens=recipe.max_tokens,
            streams=streams,
            workers=recipe.workers,
            rank=rank,
            world=world,
            attention=recipe.attention,
        )
        return cls(Reader(_of_stage(spec, recipe)), torch.device(recipe.device))

    @property
    def image_tokens(self) -> int:
        """0: pictures are of any size; each batch knows its own."""
        return 0

    @property
    def filled(self) -> int:
        return len(self.reader.conversations)

    @property
    def bad(self) -> Counter[str]:
        return self.reader.tally.bad

    @property
    def bad_names(self) -> list[str]:
        return self.reader.tally.bad_names

    @property
    def generators(self) -> list[torch.Generator]:
        """None: the order of samples is the reader's own."""
        return []

    def begin(self, recipe: Recipe) -> None:
        """Another stage reads the same files from the start, in its own order and with room for its own blocks."""
        spec = _of_stage(replace(self.reader.spec, checkpoint=recipe.init), recipe)
        self.close()
        self.reader, self.seen = Reader(spec), 0

    def fill(self) -> None:
        """Nothing to wait for."""

    def poll(self) -> None:
        """Nothing arrives by itself."""

    def draw(self) -> StreamBatch:
        batch = self.reader.batch()
        self.seen += len(batch.names)
        return batch.to(self.device)

    def state(self) -> dict[str, Any]:
        return {**self.reader.state(), "seen": self.seen}

    def restore(self, state: dict[str, Any]) -> None:
        self.reader.restore(state)
        self.seen = state["seen"]

    def close(self) -> None:
        self.reader.close()


def _of_stage(spec: StreamSpec, recipe: Recipe) -> StreamSpec:
    """What depends on a stage: room for noisy answers, filled up to the largest block, and the order."""
    sizes = [size for phase in recipe.phases for size in phase.blocks]
    return replace(spec, noisy=bool(sizes), fill=max(sizes, default=1), seed=recipe.seed)
