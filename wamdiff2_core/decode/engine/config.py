"""Sizes of an engine, and the calls it gets ready for."""

from __future__ import annotations

from dataclasses import dataclass

from wamdiff2_core.decode.engine.prompt import BUCKETS
from wamdiff2_core.errors import ConfigError


@dataclass(frozen=True)
class EngineConfig:
    """Sizes that are fixed when an engine is made.

    rows: batch sizes that have passes of their own; a call takes the smallest that holds it. block_sizes: which are
    allowed. max_length: most tokens of a row, prompt and answer together. max_answer: most tokens of an answer.
    page_size: tokens a page. prefixes: rows of max_length that shared prefixes may hold beside the running call.
    pages: of all calls and prefixes together; None: enough for the largest batch of max_length each, and the prefixes.
    buckets: lengths that prompts are padded to. lookahead: launches that go out before the flags of the one before them
    are read, 0 or 1; None: 1 on a GPU, else 0. guess: most tokens of a wide pass that is launched without knowing
    whether a row waits; calls that would need more ask first. capture_images: images are encoded in passes with fixed
    buffers, one for each combination of sizes; None: on a GPU.
    """

    rows: tuple[int, ...] = (1, 4)
    block_sizes: tuple[int, ...] = (1, 4, 8, 16, 32)
    max_length: int = 4096
    max_answer: int = 512
    page_size: int = 16
    prefixes: int = 2
    pages: int | None = None
    buckets: tuple[int, ...] = BUCKETS
    lookahead: int | None = None
    guess: int = 128
    capture_images: bool | None = None

    def __post_init__(self) -> None:
        for name in ("rows", "block_sizes", "buckets"):
            values = getattr(self, name)
            if not values or min(values) < 1 or list(values) != sorted(set(values)):
                raise ConfigError(f"engine {name}: expected integers >= 1 in rising order, got {values}")
        for name in ("max_length", "max_answer", "page_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"engine {name}: expected an integer >= 1, got {getattr(self, name)}")
        for name in ("prefixes", "guess"):
            if getattr(self, name) < 0:
                raise ConfigError(f"engine {name}: expected an integer >= 0, got {getattr(self, name)}")
        if self.pages is not None and self.pages < self.row_pages:
            raise ConfigError(f"engine pages: expected at least the {self.row_pages} of one row, got {self.pages}")
        if self.lookahead not in (0, 1, None):
            raise ConfigError(f"engine lookahead: expected 0, 1 or None, got {self.lookahead}")

    @property
    def row_pages(self) -> int:
        """Pages of a row of max_length."""
        return -(-self.max_length // self.page_size)

    @property
    def all_pages(self) -> int:
        """Pages of the pool, without the one that nobody owns."""
        return self.pages or (self.rows[-1] + self.prefixes) * self.row_pages

    def too_long(self, prompt: int, answer: int, block_size: int) -> str | None:
        """Why a row of so many tokens, its answer in blocks of `block_size`, does not fit; None: it fits."""
        if prompt + -(-answer // block_size) * block_size <= self.max_length:
            return None
        return (
            f"max_length: the engine was made for {self.max_length} tokens a row, "
            f"got {prompt} of the prompt and {answer} of the answer in blocks of {block_size}"
        )


@dataclass(frozen=True)
class CallShape:
    """A kind of call to get ready for: rows, block size, tokens of the prompt behind its prefix, whether images stand

    among them, whether tokens are drawn. prefix: tokens of a shared prefix (0: none) with images if prefix_images.
    grids: (t, h, w) patches of the images, in order.
    """

    rows: int = 1
    block_size: int = 32
    prompt: int = 64
    images: bool = False
    drawn: bool = False
    prefix: int = 0
    prefix_images: bool = True
    grids: tuple[tuple[int, int, int], ...] = ()
