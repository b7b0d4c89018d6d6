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
    guess: bool,
) -> Iterator[str | None]:
    """Names of the passes behind the first one, without end; None: ask the flags whether a row runs and one waits.

    Where steps can be counted beforehand (see `_steps`) a pass is wide where a block ends, and narrow between.
    Otherwise, if guessing, every pass is wide: it does the right thing for rows that wait and for rows that do not,
    and costs less than a narrow one that turns out needless.
    """
    counts = [_steps(config, scaffold, limit, ends) for scaffold, limit in zip(scaffolds, limits, strict=True)]
    known = [count for count in counts if count is not None]
    if len(known) == len(counts):
        yield from _counted(known)
        guess = False  # that was all, unless a predicted mask token is predicted again
    yield from repeat(WIDE if guess else None)


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


def _steps(config: DecodingConfig, scaffold: Scaffold | None, limit: int, ends: Collection[int]) -> list[int] | None:
    """Steps of each block of an answer that does not end before its scaffold ends it; None: they depend on the model.

    static and sequential take equal shares of a block, ordered takes a rank at a time where every place has one.
    """
    size, given = config.block_size, () if scaffold is None else scaffold.given[:limit]
    free = [token < 0 for token in given] + [True] * (limit - len(given))
    end = next((place for place, token in enumerate(given) if token in ends), limit)
    ranks = () if scaffold is None else scaffold.ranks
    if config.rule == "dynamic" or (config.rule == "ordered" and len(ranks) < end):
        return None
    counts = []
    for start in range(0, min(end + 1, limit), size):
        left = [place for place in range(start, min(start + size, end)) if free[place]]
        if config.rule == "ordered":
            counts.append(min(len({ranks[place] for place in left}), config.steps))
        else:
            share = -(-len(left) // config.steps)
            counts.append(-(-len(left) // share) if left else 0)
    return counts
