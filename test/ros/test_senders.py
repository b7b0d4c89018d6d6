"""Restarted senders, by the id that the middleware gives, or by publication numbers where it gives none."""

from __future__ import annotations

from wamdiff2_ros.senders import Senders


def by_id(letter: bytes) -> dict[str, object]:
    return {"publisher_gid": {"data": letter * 16}, "publication_sequence_number": 1}


def by_number(number: int | None) -> dict[str, object]:
    return {"publication_sequence_number": number}


def test_the_first_sender_is_not_new_and_the_second_is_once() -> None:
    senders = Senders()
    assert [senders.is_new("t", by_id(letter)) for letter in (b"a", b"a", b"b", b"b")] == [False, False, True, False]
    assert not senders.is_new("other", by_id(b"c"))


def test_two_senders_that_alternate_are_no_restart_each_time() -> None:
    senders = Senders()
    assert sum(senders.is_new("t", by_id(letter)) for letter in (b"a", b"b") * 20) == 1


def test_numbers_that_do_not_go_on() -> None:
    senders = Senders()
    assert [senders.is_new("t", by_number(n)) for n in (5, 6, 9, 1, 2, 2)] == [False, False, False, True, False, True]
    assert not any(senders.is_new("u", by_number(None)) for _ in range(3))
