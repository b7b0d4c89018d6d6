"""Fixtures of the node tests."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # harness.py


@pytest.fixture
def make_harness() -> Iterator[Any]:
    """A function that makes a Harness; all are closed at the end."""
    if importlib.util.find_spec("rclpy") is None:
        pytest.skip("rclpy is not here")
    from harness import Harness

    made = []

    def make(**parameters: Any) -> Harness:
        made.append(Harness(**parameters))
        return made[-1]

    yield make
    for harness in made:
        harness.close()
