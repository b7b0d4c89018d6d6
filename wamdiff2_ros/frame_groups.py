"""Which frames belong together: one of each camera, their stamps within a tolerance; and what to do without one.

Pure functions of what each camera has sent: the same frames in the same order give the same groups.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wamdiff2_core.errors import ConfigError

MISSING_CAMERA = ("stop", "hold", "drop")


@dataclass(frozen=True)
class Frame:
    """A camera's message, not decoded yet. `stamp_s` capture time; `received_s` on the steady clock."""

    camera: str
    stamp_s: float
    received_s: float
    message: Any
    age_at_receipt_s: float = 0.0  # below zero: stamped in the future

    def age_s(self, now_s: float) -> float:
        """Age at steady time `now_s`: what it had at receipt, and what passed since."""
        return max(0.0, self.age_at_receipt_s) + now_s - self.received_s


@dataclass(frozen=True)
class FrameGroup:
    """One frame of each camera in the order of the camera list, their stamps within the tolerance.

    held: cameras whose frame is an earlier one than the others'. dropped: cameras without a frame; both name why.
    epoch: counts the times that all was forgotten; an answer to a group of an earlier one is out of date.
    """

    frames: dict[str, Frame]
    held: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    epoch: int = 0

    @property
    def newest(self) -> Frame:
        """The frame captured last."""
        return max(self.frames.values(), key=lambda frame: frame.stamp_s)

    @property
    def stamp_s(self) -> float:
        """Capture time of the newest frame: the moment that a plan made from this group starts at."""
        return self.newest.stamp_s

    def age_s(self, now_s: float) -> float:
        """Age of the oldest frame at steady time `now_s`."""
        return max(frame.age_s(now_s) for frame in self.frames.values())


@dataclass(frozen=True)
class GroupRules:
    """How frames are put together.

    tolerance_s: most seconds between the stamps of a group. late_s: a camera so far behind the newest stamp is missing.
    missing: then "stop" (no group), "hold" (its last frame, while not older than hold_s before the group), or "drop"
    (the group goes without, if it is one of `optional`; otherwise as with "stop").
    """

    tolerance_s: float = 0.05
    late_s: float = 0.25
    missing: str = "stop"
    hold_s: float = 0.5
    optional: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.missing not in MISSING_CAMERA:
            raise ConfigError(f"missing_camera: {self.missing!r} is not one of {', '.join(MISSING_CAMERA)}")


Histories = Mapping[str, Sequence[Frame]]  # of each camera, by arrival; empty: nothing came


def lags_s(histories: Histories, first_stamp_s: float) -> dict[str, float]:
    """How far each camera's newest stamp lies behind the newest of all; of one that sent nothing, the first of all."""
    last = {name: frames[-1].stamp_s if frames else first_stamp_s for name, frames in histories.items()}
    newest_s = max(last.values())
    return {name: newest_s - stamp_s for name, stamp_s in last.items()}


def newest_group(histories: Histories, rules: GroupRules, first_stamp_s: float) -> FrameGroup | None:
    """The newest group of these frames by the rules, None if there is none.

    It lies around the newest stamp that every camera has reached, those left aside that are missing.
    """
    lags = lags_s(histories, first_stamp_s)
    missing = {name: lag_s for name, lag_s in lags.items() if lag_s > rules.late_s} if rules.missing != "stop" else {}
    if rules.missing == "drop" and not missing.keys() <= rules.optional:
        return None
    present = {name: frames for name, frames in histories.items() if name not in missing}
    if any(not frames for frames in present.values()):
        return None
    chosen = _nearest(present)
    if _spread_s(chosen) > rules.tolerance_s:
        return None
    if rules.missing != "hold":
        dropped = {name: f"{lag_s:.2f} s behind the others" for name, lag_s in missing.items()}
        return FrameGroup(_in_order(histories, chosen), dropped=dropped)
    return _with_held(histories, chosen, missing, rules)


def apart(histories: Histories, tolerance_s: float) -> dict[str, str]:
    """The cameras that keep frames from being a group, and how; empty if a camera has none, or they agree.

    With two cameras both are named, as nobody can say which is wrong; with more, those far from the middle.
    """
    if any(not frames for frames in histories.values()):
        return {}
    chosen = _nearest(histories)
    if _spread_s(chosen) <= tolerance_s:
        return {}
    middle_s = statistics.median(frame.stamp_s for frame in chosen.values())
    off = {name: frame.stamp_s - middle_s for name, frame in chosen.items()}
    odd = {name: away_s for name, away_s in off.items() if len(off) > 2 and abs(away_s) > tolerance_s}
    return {
        name: f"stamps differ by more than {tolerance_s} s between cameras (this one's by {away_s:+.2f} s)"
        for name, away_s in (odd or off).items()
    }


def _with_held(
    histories: Histories, chosen: dict[str, Frame], missing: Mapping[str, float], rules: GroupRules
) -> FrameGroup | None:
    newest_s = max(frame.stamp_s for frame in chosen.values())
    held = {}
    for name in missing:
        if not histories[name] or newest_s - histories[name][-1].stamp_s > rules.hold_s:
            return None
        chosen[name] = histories[name][-1]
        held[name] = f"its last frame is used, {newest_s - chosen[name].stamp_s:.2f} s older than the others'"
    return FrameGroup(_in_order(histories, chosen), held=held)


def _nearest(histories: Histories) -> dict[str, Frame]:
    """Of each camera the frame nearest to the newest stamp that all have reached."""
    reached_s = min(frames[-1].stamp_s for frames in histories.values())
    return {name: min(frames, key=lambda frame: abs(frame.stamp_s - reached_s)) for name, frames in histories.items()}


def _spread_s(frames: Mapping[str, Frame]) -> float:
    stamps = [frame.stamp_s for frame in frames.values()]
    return max(stamps) - min(stamps)


def _in_order(histories: Histories, chosen: Mapping[str, Frame]) -> dict[str, Frame]:
    return {name: chosen[name] for name in histories if name in chosen}
