"""The driver node as a process whose driver behaves as its checkpoint is named; run by the tests with `python -m`.

"one", "two": answers at once, as plans of that many metres a second, holding MEGABYTES of weights. "slow": an answer
takes LONG_S, except the one at configure. "loading": takes as long to load. "nowhere": does not exist. "bug": the
driver raises what nobody expects of it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from harness import FakeDriver

from wamdiff2_core.errors import CheckpointError
from wamdiff2_core.scene import EgoState, Scene
from wamdiff2_ros.driver_node import DriverNode
from wamdiff2_ros.parameters import Settings
from wamdiff2_ros.process import run_node

MEGABYTES = 200
LONG_S = 600.0  # far longer than a test waits for anything (remote.LIMIT_S)
SPEEDS = {"one": 1.0, "two": 2.0, "slow": 3.0}


class NamedDriver(FakeDriver):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.weights = np.ones(MEGABYTES * 2**20, np.uint8)

    def answer(self, scene: Scene, tasks: Sequence[str]) -> Mapping[str, Any]:
        if self.name == "slow" and self.scenes:
            print("answering", flush=True)
            time.sleep(LONG_S)
        return super().answer(replace(scene, ego=EgoState(velocity=(SPEEDS[self.name], 0.0))), tasks)


def make(settings: Settings) -> NamedDriver:
    if settings.checkpoint == "loading":
        print("loading", flush=True)
        time.sleep(LONG_S)
    if settings.checkpoint == "bug":
        raise KeyError("a mistake in the program")
    if settings.checkpoint not in SPEEDS:
        raise CheckpointError(f"{settings.checkpoint}: expected a checkpoint folder, got nothing")
    return NamedDriver(settings.checkpoint)


if __name__ == "__main__":
    sys.exit(run_node(lambda: DriverNode(make)))
