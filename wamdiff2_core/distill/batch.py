"""What a training step takes: images to encode once, and conversations about them, from whatever source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from wamdiff2_core.distill.data import Batch
from wamdiff2_core.distill.forward import Visual, encode_frames
from wamdiff2_core.distill.layout import Layout, Packed, Rows


class Conversations(Protocol):
    """R conversations: answers as (R, C) matrices for corruption and losses, and a way to lay them out for a model.

    answer (R, C) ids, end tokens behind the answer; answer_length (R,) up to and with the first end token;
    given (R, C) scaffold positions, never trained; ranks (R, C) order of decoding, -1 for none (None: no row has one).
    """

    @property
    def answer(self) -> Tensor: ...

    @property
    def answer_length(self) -> Tensor: ...

    @property
    def given(self) -> Tensor: ...

    @property
    def ranks(self) -> Tensor | None: ...

    def live_length(self, block: Tensor) -> Tensor: ...

    def packed(self, live: Tensor, block: Tensor, noisy: Tensor | None, how: Layout) -> Packed: ...


class TrainBatch(Protocol):
    """Images and the conversations about them, by task."""

    @property
    def parts(self) -> Mapping[str, Conversations]: ...

    @property
    def pictures(self) -> int: ...

    def encoded(self, visual: nn.Module, encode: Callable[..., Tensor]) -> Visual | None: ...


@dataclass(frozen=True)
class RingBatch:
    """A draw from the ring. order: (size group, place in it) of each camera in prompt order."""

    batch: Batch
    order: tuple[tuple[int, int], ...]

    @property
    def parts(self) -> dict[str, Rows]:
        return self.batch.rows

    @property
    def pictures(self) -> int:
        """How many images there are."""
        return sum(patches.shape[0] for patches, _, _ in self.batch.patches)

    def encoded(self, visual: nn.Module, encode: Callable[..., Tensor]) -> Visual:
        return encode_frames(visual, self.batch.patches, self.order, encode)
