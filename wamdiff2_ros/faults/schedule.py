"""Which faults, in which order: random, but the same for the same seed; every kind as often as every other."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from wamdiff2_ros.faults.kinds import Kind


def rounds(kinds: Sequence[Kind], seed: int) -> Iterator[Kind]:
    """Kinds without end, round by round, each round in another order.

    What ends the driver's process comes in the first round only, at its beginning: after that its memory is watched
    over one long life.
    """
    rng = random.Random(seed)
    yield from [kind for kind in kinds if kind.ends_driver]
    others = [kind for kind in kinds if not kind.ends_driver]
    while others:
        yield from rng.sample(others, len(others))
