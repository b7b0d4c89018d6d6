"""The row `dial` of engine_speed: what a call costs more because its block size is not that of the call before."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.speed_setup import Setup, fixed, median
from wamdiff2_core.errors import DataError

SIZES = (1, 4, 8, 16, 32)
PAIRS = ((32, 1), (1, 32), (8, 32), (32, 8), (4, 16), (16, 4))  # block size of the call before, of the call
LEAST, MOST = 5, 200  # changes of each pair


def dial(setup: Setup) -> dict[str, Any]:
    """Answers of two blocks of up to two steps behind a shared prefix, after one answer of each block size.

    The warm-up is all that happens before: the first change of every pair counts. Raises DataError where a change
    captured a pass.
    """
    decoder, prefix_length = setup.engine, setup.sizes.prefixes[0]
    prefix = decoder.prefill(setup.ids(prefix_length))
    rest = setup.ids(setup.sizes.text // 2, seed=1)
    graphs = decoder.engine.graphs

    def answer_ms(size: int) -> float:
        config = fixed(size, 2, min(2 * size, setup.sizes.tokens))
        outs: list[Any] = []
        ms = setup.wall_ms(lambda: outs.append(decoder.generate(rest, config=config, prefix=prefix)))
        if len(outs[0].tokens) != config.max_new_tokens:
            raise DataError(f"expected answers of {config.max_new_tokens} tokens, got {len(outs[0].tokens)}")
        return ms

    for size in SIZES:
        answer_ms(size)
    before = len(graphs)
    pairs = changes(answer_ms, PAIRS, setup.seconds)
    after = len(graphs)
    if after != before:
        raise DataError(f"expected no captures after warm-up, got {before} passes before the changes, {after} behind")
    return {"prefix": prefix_length, "captures_before": before, "captures_after": after, "pairs": pairs}


def changes(answer_ms: Callable[[int], float], pairs: Sequence[tuple[int, int]], seconds: float) -> list[dict]:
    """Of every pair of block sizes: milliseconds behind a call of the other size, and behind one of the same.

    answer_ms: milliseconds of a call. All pairs take turns, so what else changes meanwhile meets all of them alike.
    """
    changed: list[list[float]] = [[] for _ in pairs]
    same: list[list[float]] = [[] for _ in pairs]
    began, rounds = time.perf_counter(), 0
    while rounds < LEAST or (rounds < MOST and time.perf_counter() - began < seconds):
        for at, (old, new) in enumerate(pairs):
            answer_ms(old)
            changed[at].append(answer_ms(new))
            same[at].append(answer_ms(new))
        rounds += 1
    found = []
    for (old, new), others, alike in zip(pairs, changed, same, strict=True):
        more = [a - b for a, b in zip(others, alike, strict=True)]
        found.append(
            {"from": old, "to": new, "changed_ms": median(others), "same_ms": median(alike)}
            | {"difference_ms": median(more), "largest_ms": max(more), "changes": rounds}
        )
    return found
