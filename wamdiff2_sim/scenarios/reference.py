"""The reference driver: the world's expert on the route."""

from __future__ import annotations

import numpy as np

from wamdiff2_core.scene import Plan
from wamdiff2_sim.scenarios.stage import Stage


class Reference:
    """Plans for a stage. `knows` False: the expert alone."""

    def __init__(self, stage: Stage, knows: bool = True) -> None:
        self._stage, self._knows = stage, knows

    def plan(self) -> Plan:
        """The next 4 s from now."""
        return Plan(np.asarray(self._stage.expert_plan()), np.ones(8))
