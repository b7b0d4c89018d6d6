"""EPDMS in two stages: original scenes, and synthetic ones that start where a plan may lead to, weighted by nearness.

Source: Cao et al., pseudo-simulation (2025), in the form of the official code's tag v2.2. A group holds a first-stage
scene, the one a moment before it, and pairs (now, before) of second-stage scenes. For the scenes "now":

    weight of a second-stage scene  w = exp(-d^2 / (2 * 0.1)), d from the plan's end to its start, normalised to sum 1
    score  = EPDMS of the first scene * sum of w EPDMS over the second-stage scenes

and likewise for those "before"; a group scores the mean of both, all groups the mean over groups. Extended comfort is
between the two plans of a pair and counts for both scenes. If no second-stage scene is near, all weigh the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.navsim import vehicle as car
from wamdiff2_core.evaluate.navsim.comfort import changes, extended_comfort
from wamdiff2_core.evaluate.navsim.fields import distinct, field, listed, steps_between, text
from wamdiff2_core.evaluate.navsim.scoring import V2_FACTORS, V2_WEIGHTS

SIGMA_SQUARED_M2 = 0.1
NONE_NEAR = 1e-8  # sum of weights below which all scenes weigh the same
SUB_SCORES = ("nc", "dac", "ddc", "tlc", "ep", "ttc", "lk", "hc", "ec", "score")
NAME = "two_stage.json"


@dataclass(frozen=True)
class Member:
    """What aggregation needs of a scored scene: sub-scores of v2, start and planned end (2,) on the map, and the plan's
    simulated magnitude of acceleration and heading (41,).
    """

    parts: Mapping[str, float | None]
    start: np.ndarray
    end: np.ndarray
    acceleration: np.ndarray
    heading: np.ndarray


@dataclass(frozen=True)
class Group:
    """Ids of the scenes of a group; `steps` of 0.1 s between the two scenes of each pair."""

    now: str
    before: str
    second: tuple[tuple[str, str], ...]
    steps: int

    def tokens(self) -> Iterator[str]:
        yield from (self.now, self.before)
        for pair in self.second:
            yield from pair


def read_groups(record: object, where: str = NAME) -> list[Group]:
    """Groups out of their plain form, see docs/navsim.md. DataError on missing keys, empty stages, equal ids."""
    groups = []
    for index, one in enumerate(listed(record, "groups", where)):
        at = f"{where}.groups[{index}]"
        pairs = listed(one, "second_stage", at)
        if not pairs:
            raise DataError(f"{at}.second_stage: expected a pair of scenes or more")
        second = tuple((text(pair, "now", at), text(pair, "before", at)) for pair in pairs)
        groups.append(
            Group(text(one, "now", at), text(one, "before", at), second, steps_between(one, "interval_s", at))
        )
    distinct((token for group in groups for token in group.tokens()), where)
    if not groups:
        raise DataError(f"{where}: expected a group or more")
    return groups


def aggregate(groups: Sequence[Group], members: Mapping[str, Member]) -> dict[str, object]:
    """The official summary: `combined` score, `stage_one` and `stage_two` means of every sub-score.

    DataError if a scene of a group was not scored.
    """
    missing = [token for group in groups for token in group.tokens() if token not in members]
    if missing:
        raise DataError(f"two stages: {len(missing)} scenes were not scored, the first is {missing[0]!r}")
    first, second, combined = [], [], []
    for group in groups:
        sides = [_side(group, members, side) for side in (0, 1)]
        first += [one for one, _ in sides]
        second += [two for _, two in sides]
        combined.append(np.mean([one["score"] * two["score"] for one, two in sides]))
    return {
        "combined": float(np.mean(combined)),
        "stage_one": _mean(first),
        "stage_two": _mean(second),
        "groups": len(groups),
        "scenes": sum(2 + 2 * len(group.second) for group in groups),
    }


def weights(end: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Weights (S,) of second-stage scenes that start at (S, 2), for a plan that ends at (2,)."""
    near = np.exp(-((starts - end) ** 2).sum(axis=1) / (2 * SIGMA_SQUARED_M2))
    total = near.sum()
    return np.full(len(near), 1.0 / len(near)) if total <= NONE_NEAR else near / total


def _side(group: Group, members: Mapping[str, Member], side: int) -> tuple[dict[str, float], dict[str, float]]:
    """Sub-scores of the first stage and weighted ones of the second, of the scenes now (0) or before (1)."""
    first = members[(group.now, group.before)[side]]
    own = _with_comfort(first, members[group.now], members[group.before], group.steps)
    rows = [
        _with_comfort(members[pair[side]], members[pair[0]], members[pair[1]], group.steps) for pair in group.second
    ]
    share = weights(first.end, np.stack([members[pair[side]].start for pair in group.second]))
    return own, {name: float(sum(w * row[name] for w, row in zip(share, rows))) for name in SUB_SCORES}


def _with_comfort(member: Member, now: Member, before: Member, steps: int) -> dict[str, float]:
    """Sub-scores and score of a scene with the extended comfort of its pair."""
    parts = {name: value for name, value in member.parts.items() if value is not None}
    parts["ec"] = float(extended_comfort(changes(_states(now)[None], _states(before), steps))[0])
    weighted = sum(weight * parts[name] for name, weight in V2_WEIGHTS.items()) / sum(V2_WEIGHTS.values())
    score = float(np.prod([parts[name] for name in V2_FACTORS])) * weighted
    return {**{name: parts[name] for name in SUB_SCORES if name != "score"}, "score": score}


def _states(member: Member) -> np.ndarray:
    states = np.zeros((car.POSES, len(car.COLUMNS)))
    states[:, car.ACCEL_X], states[:, car.HEADING] = member.acceleration, member.heading
    return states


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in SUB_SCORES}


def groups_file(folder: Path) -> Path | None:
    """The file of groups in a folder of scenes, if there is one."""
    path = folder / NAME
    return path if path.is_file() else None


def member_of(row: Mapping[str, object]) -> Member:
    """A member out of a row of an evaluation (`rows.score_record`)."""
    stage = field(row, "stage", "row")
    arrays = [np.array(field(stage, key, "row")) for key in ("start", "end", "acceleration", "heading")]
    scores = field(row, "scores", "row")
    return Member(scores.get("v2_human_filtered", scores["v2"]), *arrays)
