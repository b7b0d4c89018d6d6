"""Which frames belong together, and what is done without a camera; no ROS, no clock."""

from __future__ import annotations

import pytest

from wamdiff2_core.errors import ConfigError
from wamdiff2_ros.frame_groups import Frame, FrameGroup, GroupRules, apart
from wamdiff2_ros.mailbox import FrameMailbox

THREE = ("a", "b", "c")


def frames(name: str, *stamps: float) -> list[Frame]:
    return [Frame(name, stamp_s, 100.0 + stamp_s, None) for stamp_s in stamps]


def fed(rules: GroupRules, order: list[tuple[str, float]]) -> tuple[FrameMailbox, list[FrameGroup]]:
    """A mailbox that got these frames, and each group as it came."""
    mailbox, groups = FrameMailbox(THREE, rules), []
    for name, stamp_s in order:
        mailbox.put(frames(name, stamp_s)[0])
        group = mailbox.take(0.0)
        groups += [] if group is None else [group]
    return mailbox, groups


def without_c(until: int = 10, c_until: int = 3) -> list[tuple[str, float]]:
    """Three cameras at 10 Hz from 1.0 s; c sends its first `c_until` frames only."""
    return [(name, 1.0 + k / 10) for k in range(until) for name in THREE if name != "c" or k < c_until]


def test_stop_gives_no_group_without_every_camera() -> None:
    mailbox, groups = fed(GroupRules(missing="stop"), without_c())
    assert [group.stamp_s for group in groups] == pytest.approx([1.0, 1.1, 1.2])
    assert not groups[-1].held and list(mailbox.problems()) == ["c"]
    assert "0.70 s behind" in mailbox.problems()["c"]


def test_hold_uses_the_last_frame_while_it_is_young_and_says_so() -> None:
    _, groups = fed(GroupRules(missing="hold", late_s=0.25, hold_s=0.5), without_c())
    complete, held = groups[:3], groups[3:]
    assert all(not group.held and group.frames["c"].stamp_s == group.stamp_s for group in complete)
    # c's last frame is of 1.2 s: missing once another is of 1.5 s, too old after 1.7 s
    assert [group.stamp_s for group in held] == pytest.approx([1.4, 1.5, 1.6, 1.7])
    assert all(group.frames["c"].stamp_s == pytest.approx(1.2) for group in held)
    assert list(held[0].held) == ["c"] and "0.20 s older" in held[0].held["c"]
    assert all(list(group.frames) == list(THREE) for group in groups)


def test_drop_goes_on_without_a_camera_that_is_optional() -> None:
    _, groups = fed(GroupRules(missing="drop", late_s=0.25, optional=frozenset("c")), without_c())
    assert [group.stamp_s for group in groups] == pytest.approx([1.0, 1.1, 1.2, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9])
    assert list(groups[-1].frames) == ["a", "b"] and list(groups[-1].dropped) == ["c"]
    _, needed = fed(GroupRules(missing="drop", late_s=0.25, optional=frozenset("b")), without_c())
    assert len(needed) == 3


@pytest.mark.parametrize("missing", ["hold", "drop"])
def test_a_camera_that_never_came_is_waited_for_and_then_missing(missing: str) -> None:
    rules = GroupRules(missing=missing, late_s=0.25, optional=frozenset("c"))
    _, groups = fed(rules, without_c(c_until=0))
    if missing == "hold":
        assert not groups  # nothing to hold
    else:
        assert groups[0].stamp_s == pytest.approx(1.2) and list(groups[0].dropped) == ["c"]


@pytest.mark.parametrize("missing", ["stop", "hold", "drop"])
def test_a_camera_that_comes_back_is_waited_for_again(missing: str) -> None:
    rules = GroupRules(missing=missing, optional=frozenset("c"))
    order = [*without_c(), *((name, stamp_s) for stamp_s in (2.0, 2.1) for name in THREE)]
    _, groups = fed(rules, order)
    assert groups[-1].stamp_s == 2.1 and len(groups[-1].frames) == 3
    assert not groups[-1].held and not groups[-1].dropped


@pytest.mark.parametrize("missing", ["stop", "hold", "drop"])
def test_late_frames_of_a_missing_camera_bring_nothing_old_back(missing: str) -> None:
    rules = GroupRules(missing=missing, optional=frozenset("c"))
    _, groups = fed(rules, [*without_c(), *(("c", 1.3 + k / 10) for k in range(6))])
    stamps = [group.stamp_s for group in groups]
    assert stamps == sorted(set(stamps))
    for group in groups:
        of_now = [frame.stamp_s for name, frame in group.frames.items() if name not in group.held]
        assert max(of_now) - min(of_now) <= rules.tolerance_s


def test_the_odd_one_of_three_is_named_and_both_of_two() -> None:
    three = {name: frames(name, stamp_s) for name, stamp_s in (("a", 1.0), ("b", 1.01), ("c", 1.2))}
    assert list(apart(three, 0.05)) == ["c"] and "+0.19 s" in apart(three, 0.05)["c"]
    assert list(apart({name: three[name] for name in "bc"}, 0.05)) == ["b", "c"]
    assert not apart({name: three[name] for name in "ab"}, 0.05)
    assert not apart({**three, "b": []}, 0.05)


def test_a_group_knows_whether_all_was_forgotten_since() -> None:
    mailbox = FrameMailbox(("a",), GroupRules())
    mailbox.put(frames("a", 5.0)[0])
    before = mailbox.take(0.0)
    mailbox.put(frames("a", 1.0)[0])  # a bag loops
    after = mailbox.take(0.0)
    assert before is not None and after is not None
    assert (before.epoch, after.epoch, mailbox.resets) == (0, 1, 1)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="missing_camera"):
        GroupRules(missing="guess")
