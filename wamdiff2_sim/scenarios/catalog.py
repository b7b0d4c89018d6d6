"""The official scenario types and the acts that stand for them."""

from __future__ import annotations

from wamdiff2_sim.scenarios.acts import Act
from wamdiff2_sim.scenarios.stage import Stage
from wamdiff2_sim.types import Pose

TYPES: tuple[str, ...] = ("HardBreakRoute",)


def make_act(kind: str, stage: Stage, trigger: Pose, parameters: dict[str, str], seed: int) -> Act:
    """The act of an official type."""
    return Act()
