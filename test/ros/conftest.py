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


@pytest.fixture
def server() -> Any:
    """A stand-in for a CARLA server."""
    pytest.importorskip("carla", reason="the carla wheel is an extra (Python 3.12 and older)")
    from carla_stand_in import StandInServer

    return StandInServer()


@pytest.fixture
def make_bridge(server: Any, tmp_path: Path) -> Iterator[Any]:
    """A function that makes a CARLA bridge on `server`; all are closed at the end, with the server up again."""
    from carla_harness import Bridge

    made: list[Bridge] = []

    def bridge(**parameters: Any) -> Bridge:
        made.append(Bridge(server, tmp_path, **parameters))
        return made[-1]

    yield bridge
    server.down = False
    for one in made:
        one.close()
