"""Messages that never arrived are counted by the senders' numbers."""

from __future__ import annotations

from wamdiff2_ros.recorder_gaps import Gaps


def numbered(number: int | None) -> dict:
    return {"publication_sequence_number": number}


def test_gaps_are_counted_by_topic_and_sender() -> None:
    gaps = Gaps()
    seen = [("/a", b"1", 7), ("/a", b"1", 8), ("/a", b"2", 3), ("/a", b"1", 12), ("/b", b"1", 20), ("/a", b"2", 4)]
    assert [gaps.before(topic, sender, numbered(number)) for topic, sender, number in seen] == [0, 0, 0, 3, 0, 0]
    assert gaps.known


def test_what_comes_twice_or_late_is_no_gap() -> None:
    gaps = Gaps()
    assert [gaps.before("/a", b"1", numbered(number)) for number in (5, 5, 4, 6)] == [0, 0, 0, 0]


def test_without_numbers_nothing_is_known() -> None:
    gaps = Gaps()
    assert gaps.before("/a", b"1", {}) == 0 and gaps.before("/a", b"1", numbered(None)) == 0 and not gaps.known
