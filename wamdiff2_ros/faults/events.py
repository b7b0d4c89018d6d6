"""What every process of the fault test writes down: one JSON object a line, with the steady time it happened at.

Linux's steady clock is the same in all processes of a machine, so lines of different processes can be compared.
A line is one write to a file opened for appending: kill -9 cuts nothing but the last line.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class EventLog:
    """Appends lines to `path`."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, kind: str, **values: Any) -> None:
        """Write an event down. `at_s` among the values replaces the steady time of now."""
        line = json.dumps({"at_s": time.monotonic(), "kind": kind, **values}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Events of a file in the order of writing, without a last line that a kill cut; nothing if there is no file."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)
