"""The driver node as a process, with a driver that goes straight on; run by the tests with `python -m`."""

from __future__ import annotations

import sys

from harness import FakeDriver

from wamdiff2_ros.driver_node import DriverNode
from wamdiff2_ros.process import run_node

if __name__ == "__main__":
    sys.exit(run_node(lambda: DriverNode(lambda settings: FakeDriver())))
