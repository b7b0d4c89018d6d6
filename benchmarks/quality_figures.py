"""The arithmetic of engine_quality: what one way to decode says of many frames, and where two ways part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TIE = 0.02


@dataclass(frozen=True)
class Answer:
    """A plan as it was decoded. tokens: all of the answer; points (8, 2) m, None where it failed, and why.

    pdms, epdms: 0 to 1, 0 of a failure. forwards: passes of the text model.
    """

    tokens: tuple[int, ...]
    points: np.ndarray | None
    failure: str = ""
    forwards: int = 0
    pdms: float = 0.0
    epdms: float = 0.0


@dataclass(frozen=True)
class Parting:
    """Where two answers part first in the order of decoding: in a block, at a rank of its scaffold, at positions of the
    answer. All that was decided before is the same in both.
    """

    block: int
    rank: int
    positions: tuple[int, ...]


def parting(one: Sequence[int], other: Sequence[int], ranks: Sequence[int], block_size: int) -> Parting | None:
    """None: the tokens are equal. ValueError for answers of other lengths than one another's, or longer than ranks."""
    if len(one) != len(other) or len(one) > len(ranks):
        raise ValueError(f"parting: expected answers of one length up to {len(ranks)}, got {len(one)} and {len(other)}")
    differ = [at for at, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]]
    if not differ:
        return None
    block, rank = min((at // block_size, ranks[at]) for at in differ)
    return Parting(block, rank, tuple(at for at in differ if (at // block_size, ranks[at]) == (block, rank)))


def mean_error(values: Sequence[float] | np.ndarray) -> dict[str, float | int | None]:
    """Mean over frames and its standard error, NaN left out; None where too few frames tell it."""
    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known)]
    count = len(known)
    error = float(known.std(ddof=1) / np.sqrt(count)) if count > 1 else None
    return {"mean": float(known.mean()) if count else None, "error": error, "frames": count}


def distance(points: np.ndarray | None, truth: np.ndarray | None) -> float:
    """Mean L2 over the eight waypoints in metres; NaN where one of the two is no plan."""
    if points is None or truth is None:
        return float("nan")
    return float(np.linalg.norm(points - truth, axis=1).mean())


def way_figures(answers: Sequence[Answer], truth: Sequence[np.ndarray]) -> dict[str, Any]:
    """One way to decode: PDMS and EPDMS in per cent, L2 to the recorded drive in m, failures, passes an answer."""
    l2 = [distance(one.points, drive) for one, drive in zip(answers, truth, strict=True)]
    return {
        "pdms": mean_error([100.0 * one.pdms for one in answers]),
        "epdms": mean_error([100.0 * one.epdms for one in answers]),
        "l2_m": mean_error(l2),
        "failures": dict(Counter(one.failure for one in answers if one.failure)),
        "forwards": float(np.mean([one.forwards for one in answers])),
    }


def pair_figures(
    reference: Sequence[Answer],
    other: Sequence[Answer],
    truth: Sequence[np.ndarray],
    margins: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Two ways on the same frames. Gains are other minus reference, paired by frame.

    margins: of each answer whose tokens part, how far apart the two tokens' probabilities are where they part first.
    """
    pairs = list(zip(reference, other, strict=True))
    moved = np.array([distance(b.points, a.points) for a, b in pairs])
    told: dict[str, Any] = {
        "frames": len(pairs),
        "equal_tokens": float(np.mean([a.tokens == b.tokens for a, b in pairs])),
        "equal_plans": float(np.mean([_same(a, b) for a, b in pairs])),
        "failures_of_one_alone": sum((a.points is None) != (b.points is None) for a, b in pairs),
        "l2_to_reference_m": {**mean_error(moved), "p95": _p95(moved), "most": _p95(moved, 100.0)},
        "pdms_gain": mean_error([100.0 * (b.pdms - a.pdms) for a, b in pairs]),
        "epdms_gain": mean_error([100.0 * (b.epdms - a.epdms) for a, b in pairs]),
        "l2_gain_m": mean_error(
            [distance(b.points, t) - distance(a.points, t) for (a, b), t in zip(pairs, truth, strict=True)]
        ),
        "forwards_gain": mean_error([b.forwards - a.forwards for a, b in pairs]),
    }
    return told if margins is None else told | {"partings": partings(margins)}


def partings(margins: Sequence[float]) -> dict[str, Any]:
    """How many of the partings are ties, and how wide the margins are."""
    known = np.asarray(margins, dtype=float)
    told: dict[str, Any] = {"count": len(known), "ties": int((known < TIE).sum()), "tie_below": TIE}
    if len(known):
        told |= {"median": float(np.median(known)), "p95": _p95(known), "most": float(known.max())}
    return told


def _same(one: Answer, other: Answer) -> bool:
    if one.points is None or other.points is None:
        return one.points is None and other.points is None and one.failure == other.failure
    return bool(np.array_equal(one.points, other.points))


def _p95(values: np.ndarray, percent: float = 95.0) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.percentile(known, percent)) if len(known) else None
