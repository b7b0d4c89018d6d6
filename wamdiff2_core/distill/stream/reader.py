"""An endless, resumable sequence of packed batches: samples in order, encoded ahead by threads, fitted into streams.

The order of everything follows from the seed alone: threads work ahead, but their results are taken in order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from wamdiff2_core.distill.stream.conversations import BadSample, Conversations, Tally
from wamdiff2_core.distill.stream.encode import Encoded, Encoder
from wamdiff2_core.distill.stream.order import Order, Place
from wamdiff2_core.distill.stream.packing import StreamBatch, collate
from wamdiff2_core.errors import ConfigError, DataError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamSpec:
    """What a run reads. streams: packed sequences of max_tokens a batch; fill: largest block size of the run;

    noisy: room for the noisy copy of answers (not in an autoregressive stage); lookahead: samples to choose from when
    a stream is filled; attention: "dense" | "flex".
    """

    checkpoint: str
    files: tuple[str, ...]
    image_root: str = ""
    max_tokens: int = 8192
    streams: int = 1
    fill: int = 32
    noisy: bool = True
    lookahead: int = 16
    workers: int = 2
    seed: int = 0
    rank: int = 0
    world: int = 1
    attention: str = "dense"

    def __post_init__(self) -> None:
        least = min(self.max_tokens, self.streams, self.fill, self.lookahead)
        if least < 1 or self.workers < 0 or not self.files or self.attention not in ("dense", "flex"):
            raise ConfigError(f"stream: expected files, positive sizes and attention dense or flex, got {self}")

    @property
    def copies(self) -> int:
        return 2 if self.noisy else 1


@dataclass(frozen=True)
class Unusable:
    """A sample that cannot be trained on, and why."""

    name: str
    error: BadSample


class Reader:
    """Batches by `batch()`; `state()` and `restore()` between them."""

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec
        self.conversations = Conversations(spec.files, spec.image_root)
        # What is wrong with the files themselves every rank sees; rank 0 tells it.
        self.tally = self.conversations.tally if spec.rank == 0 else Tally()
        self.encoder = Encoder(spec.checkpoint, spec.max_tokens, spec.fill, spec.copies)
        self.order = Order(len(self.conversations), spec.seed, spec.rank, spec.world)
        self._threads = ThreadPoolExecutor(spec.workers, "encode") if spec.workers else None
        self._ahead: deque[tuple[Place, Future[Encoded | Unusable]]] = deque()
        self._pool: list[tuple[Place, Encoded]] = []
        self._next = self.order.place

    def batch(self) -> StreamBatch:
        """The next batch. DataError when a whole epoch holds nothing usable."""
        spec = self.spec
        filled = [self._stream() for _ in range(spec.streams)]
        return collate(filled, spec.max_tokens, spec.fill, spec.copies, self.encoder, spec.attention)

    def _stream(self) -> list[Encoded]:
        """Samples of one stream: the one that waited longest first, then the largest that fits, again and again."""
        room = self.spec.max_tokens
        chosen: list[Encoded] = []
        while True:
            while len(self._pool) < self.spec.lookahead:
                self._pool.append(self._encoded())
            sizes = [sample.tokens(self.spec.fill, self.spec.copies) for _, sample in self._pool]
            pick = choice(sizes, room, first=not chosen)
            if pick is None:
                return chosen
            chosen.append(self._pool.pop(pick)[1])
            room -= sizes[pick]

    def _encoded(self) -> tuple[Place, Encoded]:
        """The next usable sample; unusable ones are counted."""
        for _ in range(self.order.share() + 1):
            place, found = self._take()
            self._next = self.order.after(place)
            if isinstance(found, Encoded):
                return place, found
            self.tally.add(found.name, found.error)
        raise DataError(f"no usable sample in a whole epoch: {self.tally.summary()}")

    def _take(self) -> tuple[Place, Encoded | Unusable]:
        if self._threads is None:
            place = self.order.take()
            return place, self._encode(self.order.number(place))
        while len(self._ahead) < 2 * self.spec.workers + self.spec.lookahead:
            place = self.order.take()
            self._ahead.append((place, self._threads.submit(self._encode, self.order.number(place))))
        place, future = self._ahead.popleft()
        return place, future.result()

    def _encode(self, number: int) -> Encoded | Unusable:
        sample = self.conversations[number]
        try:
            return self.encoder(sample)
        except BadSample as error:
            return Unusable(sample.name, error)

    def state(self) -> dict[str, Any]:
        """Small and plain: the position, and the samples that were read but wait for a stream with room for them."""
        carried = [[place.epoch, place.index] for place, _ in self._pool]
        spec, here = self.spec, {"epoch": self._next.epoch, "index": self._next.index, "carried": carried}
        return {**here, "seed": spec.seed, "samples": self.order.samples, "rank": spec.rank, "world": spec.world}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken: with the same ranks exactly, with another number of them from about there.

        Raises ConfigError when seed or data are not those of the state.
        """
        for name, mine in (("seed", self.spec.seed), ("samples", self.order.samples)):
            if state[name] != mine:
                raise ConfigError(f"data position: expected {name} {mine}, the saved one has {state[name]}")
        self.discard()
        same = (state["rank"], state["world"]) == (self.spec.rank, self.spec.world)
        if same:
            carried = [Place(epoch, index) for epoch, index in state["carried"]]
            self._next = Place(state["epoch"], state["index"])
        else:
            log.warning(
                "data position of rank %d of %d used for rank %d of %d: some samples come twice or not at all now",
                *(state["rank"], state["world"], self.spec.rank, self.spec.world),
            )
            carried = []
            index = state["index"] * state["world"] // self.spec.world
            self._next = Place(state["epoch"], min(index, self.order.share() - 1))
        self.order.place = self._next
        for place in carried:
            found = self._encode(self.order.number(place))
            if isinstance(found, Encoded):
                self._pool.append((place, found))
            else:
                self.tally.add(found.name, found.error)

    def discard(self) -> None:
        """Forget what was read ahead."""
        for _, future in self._ahead:
            future.cancel()
        self._ahead.clear()
        self._pool.clear()

    def close(self) -> None:
        self.discard()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)


def choice(sizes: Sequence[int], room: int, first: bool) -> int | None:
    """Which of the waiting samples goes into a stream with `room` left: the oldest opens it, then the largest fitting.

    None when none fits. Equal sizes: the older one.
    """
    if first:
        return 0
    fitting = [index for index, size in enumerate(sizes) if size <= room]
    return max(fitting, key=lambda index: sizes[index], default=None)
