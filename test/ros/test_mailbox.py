"""The newest-only mailbox, without any ROS."""

from __future__ import annotations

import threading

import pytest

from wamdiff2_ros.frame_groups import Frame, GroupRules
from wamdiff2_ros.mailbox import FrameMailbox

CAMERAS = ("a", "b")


def frame(camera: str, stamp_s: float, age_s: float = 0.0) -> Frame:
    return Frame(camera, stamp_s, received_s=100.0 + stamp_s, message=f"{camera}{stamp_s}", age_at_receipt_s=age_s)


def put(mailbox: FrameMailbox, *frames: tuple[str, float]) -> None:
    for camera, stamp_s in frames:
        mailbox.put(frame(camera, stamp_s))


def stamps(mailbox: FrameMailbox) -> dict[str, float] | None:
    group = mailbox.take(timeout_s=0.0)
    return None if group is None else {name: f.stamp_s for name, f in group.frames.items()}


def test_a_group_needs_every_camera() -> None:
    mailbox = FrameMailbox(CAMERAS, GroupRules(0.05))
    put(mailbox, ("a", 1.0))
    assert stamps(mailbox) is None
    put(mailbox, ("b", 1.02))
    assert stamps(mailbox) == {"a": 1.0, "b": 1.02}
    assert stamps(mailbox) is None  # given once


def test_only_the_newest_group_is_kept_and_the_others_are_counted() -> None:
    mailbox = FrameMailbox(CAMERAS, GroupRules(0.05))
    for k in range(5):
        put(mailbox, ("a", 1.0 + k), ("b", 1.0 + k))
    assert stamps(mailbox) == {"a": 5.0, "b": 5.0}
    assert mailbox.dropped == 4


@pytest.mark.parametrize("gap_s, together", [(0.0, True), (0.05, True), (0.06, False), (0.5, False)])
def test_stamps_must_agree_within_the_tolerance(gap_s: float, together: bool) -> None:
    mailbox = FrameMailbox(CAMERAS, GroupRules(0.0501))
    put(mailbox, ("a", 1.0), ("b", 1.0 + gap_s))
    assert (stamps(mailbox) is not None) == together


def test_a_camera_one_frame_ahead_is_matched_with_its_frame_before() -> None:
    mailbox = FrameMailbox(CAMERAS, GroupRules(0.01))
    put(mailbox, ("a", 1.0), ("a", 1.1), ("b", 1.0))
    assert stamps(mailbox) == {"a": 1.0, "b": 1.0}
    put(mailbox, ("b", 1.1))
    assert stamps(mailbox) == {"a": 1.1, "b": 1.1}


def test_a_silent_camera_stops_the_groups() -> None:
    mailbox = FrameMailbox(CAMERAS, GroupRules(0.05))
    put(mailbox, ("a", 1.0), ("b", 1.0))
    assert stamps(mailbox)
    for k in range(10):
        put(mailbox, ("a", 1.1 + 0.1 * k))
    assert stamps(mailbox) is None


def test_time_going_back_forgets_everything() -> None:
    mailbox = FrameMailbox(CAMERAS, GroupRules(0.05))
    put(mailbox, ("a", 50.0), ("b", 50.0), ("a", 1.0))
    assert stamps(mailbox) is None  # the group of the other time is gone
    put(mailbox, ("b", 1.0))
    assert stamps(mailbox) == {"a": 1.0, "b": 1.0}
    assert mailbox.resets == 1


def test_age_is_that_of_the_oldest_frame() -> None:
    mailbox = FrameMailbox(CAMERAS, GroupRules(0.05))
    mailbox.put(frame("a", 1.0, age_s=0.2))
    mailbox.put(frame("b", 1.0))
    group = mailbox.take(0.0)
    assert group is not None and group.age_s(101.5) == pytest.approx(0.7)


def test_close_wakes_a_waiting_worker() -> None:
    mailbox = FrameMailbox(CAMERAS, GroupRules(0.05))
    got: list[object] = ["nothing yet"]
    thread = threading.Thread(target=lambda: got.append(mailbox.take(timeout_s=60.0)))
    thread.start()
    mailbox.close()
    thread.join(timeout=30.0)
    assert got[-1] is None and not thread.is_alive()
