"""What a `generate` call returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum


class Status(str, Enum):
    """complete: ended by its end token. truncated: a limit came first. empty: nothing before the end token.

    invalid: the model gave no usable numbers (NaN, or a mask token in an upstream answer): never use the tokens.
    """

    COMPLETE = "complete"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    INVALID = "invalid"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class DecodeResult:
    """One answer.

    tokens: without end token and padding. confidences: probability of each token when it was kept (1.0 for given ones;
    also of drawn tokens the model's own, without temperature).
    steps_per_block: denoising steps of each block. forwards: forward passes of the text model during this row's life,
    the pass over the prompt included; it carries the first denoising step too, and so does every commit of a block, so
    that forwards is about the sum of the steps. The pass that made a shared prefix is counted by the prefix.
    alone: the passes it would have taken without the other rows, which it waits for block by block.
    prefill_ms: the pass over the prompt; decode_ms: all later ones. Milliseconds are those of the whole batch.
    """

    tokens: list[int]
    status: Status
    confidences: list[float] = field(default_factory=list)
    steps_per_block: list[int] = field(default_factory=list)
    forwards: int = 0
    vision_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    alone: int = 0


class BatchResult(tuple[DecodeResult, ...]):
    """Answers of several rows: a tuple of results; the field names give lists over the rows."""

    __slots__ = ()

    def __new__(cls, results: Sequence[DecodeResult]) -> BatchResult:
        return super().__new__(cls, results)

    @property
    def tokens(self) -> list[list[int]]:
        return [one.tokens for one in self]

    @property
    def status(self) -> list[Status]:
        return [one.status for one in self]

    @property
    def confidences(self) -> list[list[float]]:
        return [one.confidences for one in self]

    @property
    def steps_per_block(self) -> list[list[int]]:
        return [one.steps_per_block for one in self]

    @property
    def forwards(self) -> int:
        """Forward passes of the whole batch."""
        return max((one.forwards for one in self), default=0)

    @property
    def vision_ms(self) -> float:
        return max((one.vision_ms for one in self), default=0.0)

    @property
    def prefill_ms(self) -> float:
        return max((one.prefill_ms for one in self), default=0.0)

    @property
    def decode_ms(self) -> float:
        return max((one.decode_ms for one in self), default=0.0)
