"""Commands of the fault test's controller to its sensor processes: JSON lines on their standard input.

A pipe and not a topic: what a fault does to DDS must not touch how the fault is steered.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import rclpy


def listen(obey: Callable[[Mapping[str, Any]], None]) -> threading.Thread:
    """Call `obey` with every line of standard input, in a thread; end the process when the pipe is closed."""

    def read() -> None:
        for line in sys.stdin:
            obey(json.loads(line))
        rclpy.try_shutdown()

    thread = threading.Thread(target=read, name="commands", daemon=True)
    thread.start()
    return thread
