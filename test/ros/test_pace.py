"""A frame that is due in a moment is waited for; never one that is far off, late, or whose time is not known."""

from __future__ import annotations

import threading

import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

from wamdiff2_ros.frame_groups import Frame  # noqa: E402
from wamdiff2_ros.mailbox import FrameMailbox  # noqa: E402
from wamdiff2_ros.pace import Pace  # noqa: E402

PERIOD_S = 0.1


def regular(count: int) -> Pace:
    """Groups at 0, 0.1, 0.2 s and so on."""
    pace = Pace()
    for k in range(count):
        pace.add(50.0 + k * PERIOD_S, k * PERIOD_S)
    return pace


@pytest.mark.parametrize(
    "after_s, soon_s, wait_s",
    [
        (0.095, 0.01, 0.025),  # due in 5 ms, and it may be late by a fifth of the period
        (0.08, 0.01, 0.0),  # due in 20 ms: the frame at hand is used
        (0.08, 0.03, 0.04),
        (0.03, 10.0, 0.0),  # never for longer than half a period
        (0.06, 10.0, 0.06),
        (0.11, 0.01, 0.01),  # late, as frames are
        (0.13, 0.01, 0.0),  # it will not come
        (0.095, 0.0, 0.0),
    ],
)
def test_how_long_the_next_frame_is_waited_for(after_s: float, soon_s: float, wait_s: float) -> None:
    pace = regular(6)
    assert pace.wait_s(0.5 + after_s, soon_s) == pytest.approx(wait_s, abs=1e-9)


def test_nothing_is_waited_for_before_the_period_is_known_and_after_a_jump_of_time() -> None:
    assert regular(3).wait_s(0.299, 0.01) == 0.0
    pace = regular(6)
    pace.clear()
    pace.add(1.0, 0.5)
    assert pace.wait_s(0.595, 0.01) == 0.0


def test_one_lost_frame_does_not_change_the_period() -> None:
    pace = regular(5)
    pace.add(50.6, 0.6)  # the one at 0.5 s was lost
    assert pace.wait_s(0.695, 0.01) == pytest.approx(0.025)


def frame(number: int) -> Frame:
    """Frames an hour apart by their stamps: the next one is an hour away, which is "soon" for who has two hours."""
    return Frame("a", 3600.0 * number, 0.0, None)


def waiting() -> FrameMailbox:
    """A mailbox whose next frame is due in half an hour, as far as it can know."""
    mailbox = FrameMailbox(("a",))
    for number in range(1, 6):
        mailbox.put(frame(number))
    mailbox._pace.add(3600.0 * 6, mailbox._last_group_s - 1801.0)
    return mailbox


def test_the_mailbox_gives_the_frame_that_came_while_it_waited() -> None:
    mailbox = waiting()
    got: list[float] = []
    thread = threading.Thread(target=lambda: got.append(_stamp(mailbox, 7200.0)))
    thread.start()
    mailbox.put(frame(7))
    thread.join(30.0)
    assert got == [3600.0 * 7] and mailbox.dropped == 5


def _stamp(mailbox: FrameMailbox, soon_s: float) -> float:
    group = mailbox.take(timeout_s=0.0, soon_s=soon_s)
    return 0.0 if group is None else group.stamp_s


def test_a_closed_mailbox_waits_for_nothing() -> None:
    mailbox = waiting()
    thread = threading.Thread(target=lambda: mailbox.take(timeout_s=0.0, soon_s=7200.0))
    thread.start()
    mailbox.close()
    thread.join(30.0)
    assert not thread.is_alive()
