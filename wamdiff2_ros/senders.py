"""Was the sender of a topic started anew? A new one's messages do not go on where the old one's ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

REMEMBERED = 8  # senders of a topic: two at once alternate, and are no restart each time


class Senders:
    """Remembers who sent on each topic, by what the middleware says about a message."""

    def __init__(self) -> None:
        self._known: dict[str, deque[bytes]] = {}
        self._numbers: dict[str, int] = {}

    def is_new(self, topic: str, info: Mapping[str, Any]) -> bool:
        """True for the first message of a sender that is not the first one of its topic.

        By the sender's id; where the middleware gives none (Jazzy), by a publication number that does not go on.
        """
        gid = info.get("publisher_gid")
        if gid is not None:
            return self._is_new_id(topic, bytes(gid["data"]))
        number = info.get("publication_sequence_number")
        if number is None:
            return False
        last, self._numbers[topic] = self._numbers.get(topic), number
        return last is not None and number <= last

    def _is_new_id(self, topic: str, gid: bytes) -> bool:
        known = self._known.setdefault(topic, deque(maxlen=REMEMBERED))
        if gid in known:
            return False
        known.append(gid)
        return len(known) > 1
