"""What never reached a subscriber, by the numbers that senders give their messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Gaps:
    """Remembers the last number of each sender of each topic. Where the middleware gives no numbers, finds nothing."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, bytes], int] = {}

    def before(self, topic: str, publisher: bytes, info: Mapping[str, Any]) -> int:
        """How many messages of this sender are missing between its last one and this one; 0 for its first."""
        number = info.get("publication_sequence_number")
        if number is None:
            return 0
        last = self._last.get((topic, publisher))
        self._last[topic, publisher] = max(number, last or 0)
        return max(0, number - last - 1) if last is not None else 0

    @property
    def known(self) -> bool:
        """Whether the middleware numbers messages."""
        return bool(self._last)
