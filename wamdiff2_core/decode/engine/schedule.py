"""Which pass the host launches next, where that can be known without asking the device."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import repeat

from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.scaffold import Scaffold

WIDE, NARROW = "wide", "narrow"


def schedule(
    config: DecodingConfig,
    scaffolds: Sequence[Scaffold | None],
    limits: Sequence[int],
    ends: Collection[int],
    lookahead: int,
) -> Iterator[str | None]:
    """Names of the passes behind the first one, without end; None: ask the flags whether a row waits to go on.

    static and sequential rules take steps that can be counted beforehand: a wide pass where a block ends, narrow ones
    between. With other rules, launching ahead, every pass is wide: it does the right thing for rows that wait and for
    rows that do not, and costs less than a narrow one that turns out needless.
    """
    if config.rule in ("static", "sequential"):
        counts = [_steps(config, scaffold, limit, ends) for scaffold, limit in zip(scaffolds, limits, strict=True)]
        yield from _counted(counts)
    yield from repeat(WIDE if lookahead else None)


def _counted(rows: list[list[int]]) -> Iterator[str]:
    """rows: steps of each block of each row."""
    left = [list(counts) for counts in rows]
    for counts in left:
        counts[0] -= counts[0] > 0  # the first pass is a step too
    while any(len(counts) > 1 or counts[0] for counts in left):
        rolls = [len(counts) > 1 and counts[0] == 0 for counts in left]
        for counts, rolled in zip(left, rolls, strict=True):
            if rolled:
                counts.pop(0)
            counts[0] -= counts[0] > 0
        yield WIDE if any(rolls) else NARROW


def _steps(config: DecodingConfig, scaffold: Scaffold | None, limit: int, ends: Collection[int]) -> list[int]:
    """Steps of each block of an answer that does not end before its scaffold ends it."""
    size, given = config.block_size, () if scaffold is None else scaffold.given[:limit]
    free = [token < 0 for token in given] + [True] * (limit - len(given))
    end = next((place for place, token in enumerate(given) if token in ends), limit)
    counts = []
    for start in range(0, min(end + 1, limit), size):
        left = sum(free[start : min(start + size, end)])
        share = -(-left // config.steps)
        counts.append(-(-left // share) if left else 0)
    return counts
