"""Looks after the age of the plan, in a thread of its own: it works while the worker hangs and callbacks wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.impl.implementation_singleton import rclpy_implementation

from wamdiff2_core.scene import EgoState
from wamdiff2_ros.parameters import Settings
from wamdiff2_ros.worker import Inputs

PERIOD_S = 0.1
ACTIONS = {"stop": "a stop trajectory is published", "silence": "no trajectory is published"}


class Watchdog:
    """Calls `on_stale(age_s)` every PERIOD_S while no plan is younger than `limit_s()`; limit None: none is expected.

    A plan is as old as the newest picture it was made from. Times are on the steady clock. Before the first plan, age
    counts from the making of this object.
    """

    def __init__(self, limit_s: Callable[[], float | None], on_stale: Callable[[float], None]) -> None:
        self._limit_s = limit_s
        self._on_stale = on_stale
        self._captured_s = time.monotonic()
        self._planned = False
        self._stale = False
        self._lock = threading.Lock()
        self._publishing = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plan watchdog", daemon=True)
        self.error: BaseException | None = None
        self.times = 0  # how often plans went stale

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Nothing is published once this returns."""
        with self._publishing:
            self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(10.0 * PERIOD_S)

    def planned(self, captured_s: float) -> None:
        """A valid plan went out, made from pictures taken then. One older than the last changes nothing."""
        with self._lock:
            self._planned = True
            self._captured_s = max(self._captured_s, captured_s)

    def age_s(self, now_s: float) -> float:
        """Seconds since the pictures of the newest plan were taken, or since the start."""
        with self._lock:
            return now_s - self._captured_s

    def turn(self, now_s: float) -> bool:
        """One look at `now_s`: whether plans are stale. Calls `on_stale` if so."""
        limit_s, age_s = self._limit_s(), self.age_s(now_s)
        stale = limit_s is not None and age_s > limit_s
        self.times += stale and not self._stale
        self._stale = stale
        if stale:
            self._on_stale(age_s)
        return stale

    def status(self, name: str, now_s: float, action: str) -> DiagnosticStatus:
        """For /diagnostics. `action`: what is done while plans are stale."""
        limit_s, age_s = self._limit_s(), self.age_s(now_s)
        level, text = DiagnosticStatus.OK, "young enough"
        if self.error is not None:
            level, text = DiagnosticStatus.ERROR, f"the watchdog has ended: {self.error}"
        elif limit_s is None:
            text = "no plans are asked for"
        elif age_s > limit_s:
            what = "no plan yet" if not self._planned else f"the last plan is {age_s:.1f} s old"
            level, text = DiagnosticStatus.ERROR, f"{what}, at most {limit_s:.1f} s: {action}"
        values = {"age of the plan (s)": f"{age_s:.2f}", "times stale": str(self.times)}
        pairs = [KeyValue(key=key, value=value) for key, value in values.items()]
        return DiagnosticStatus(
            level=level, name=f"{name}: plan age", message=text, hardware_id="wamdiff2", values=pairs
        )

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.wait(PERIOD_S):
                with self._publishing:
                    if not self._stop.is_set():
                        self.turn(time.monotonic())
        except Exception as error:
            self.error = error  # told by `status`, and raised by whoever looks after this thread
            raise


class PlanWatch:
    """The watchdog of a driver node: without a young plan, a stop trajectory or silence, as the settings say."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        outputs: Any,
        inputs: Inputs,
        now_s: Callable[[], float],
        running: Callable[[], bool],
    ) -> None:
        """`outputs`: driver_outputs.Outputs. `now_s`: the node's clock. `running`: false while the process ends."""
        self._settings, self._outputs, self._inputs = settings, outputs, inputs
        self._now_s, self._running = now_s, running
        self.dog = Watchdog(self._limit_s, self._stale)
        outputs.planned, outputs.times_stale = self.dog.planned, lambda: self.dog.times

    def status(self, name: str) -> DiagnosticStatus:
        return self.dog.status(name, time.monotonic(), ACTIONS[self._settings().on_stale_plan])

    def _limit_s(self) -> float | None:
        settings = self._settings()
        return settings.max_plan_age_s if "plan" in settings.tasks else None

    def _stale(self, age_s: float) -> None:
        settings, stamp_s = self._settings(), self._now_s()
        if settings.on_stale_plan != "stop" or stamp_s <= 0.0:  # no clock yet: nobody could tell when to brake
            return
        why = f"no plan from pictures younger than {settings.max_plan_age_s} s; the newest are {age_s:.1f} s old"
        try:
            self._outputs.publish_stop(why, stamp_s, self._inputs.instruction, self._motion(settings), settings)
        except rclpy_implementation.RCLError:
            if self._running():  # otherwise: interrupted in the middle of publishing
                raise

    def _motion(self, settings: Settings) -> EgoState:
        """How the car moves now; no motion where odometry is missing or late."""
        newest, received_s = self._inputs.odometry.newest(), self._inputs.odometry_received_s
        if newest is None or received_s is None or time.monotonic() - received_s > settings.odometry_max_age_s:
            return EgoState()
        return EgoState(velocity=newest.velocity, yaw_rate=newest.yaw_rate)
