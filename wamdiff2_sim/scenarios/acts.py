"""What happens in a situation: an act prepares the stage, begins when the ego reaches its trigger, and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wamdiff2_sim.scenarios.directed import Directed

if TYPE_CHECKING:
    from wamdiff2_sim.scenarios.stage import Stage

TIMEOUT_S = 90.0


class Act:
    """Base: nothing happens. `ambulance`: the vehicle that has to be let by, if there is one."""

    timeout_s = TIMEOUT_S
    ends_after_s = 20.0
    uses_oncoming_lane = False

    def __init__(self) -> None:
        self.time = 0.0  # s since it began
        self.begun = self.done = False
        self.ambulance: Directed | None = None

    @property
    def too_late(self) -> bool:
        """Did it take longer than a driver may need?"""
        return self.begun and not self.done and self.time > self.timeout_s

    def prepare(self, stage: Stage) -> None:
        """Before the drive: what stands there from the start."""

    def begin(self, stage: Stage) -> None:
        """The ego has reached the trigger."""
        self.begun = True
        self.on_begin(stage)

    def step(self, stage: Stage, dt: float) -> None:
        """Called before every step of the world."""
        if self.begun and not self.done:
            self.time += dt
            self.on_step(stage, dt)
            if self.over(stage):
                self.finish(stage)

    def finish(self, stage: Stage) -> None:
        """It is over: lights run freely again."""
        self.done = True
        self.on_finish(stage)

    def on_begin(self, stage: Stage) -> None: ...

    def on_step(self, stage: Stage, dt: float) -> None: ...

    def on_finish(self, stage: Stage) -> None: ...

    def over(self, stage: Stage) -> bool:
        """Whether the act has ended by itself."""
        return self.time > self.ends_after_s
