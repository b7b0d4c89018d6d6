"""Lifecycle node `wamdiff2`: camera images, odometry and an instruction in; trajectory, boxes and answers out.

configure: check the settings, load and warm up the model, subscribe. activate: start the worker and the watchdog.
Callbacks only store the newest message; the worker thread does the rest.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock, ClockType
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from wamdiff2_core.errors import Wamdiff2Error
from wamdiff2_ros import settings_report, twins
from wamdiff2_ros.connections import outputs_connection
from wamdiff2_ros.deadline_mode import DeadlineMode
from wamdiff2_ros.driver_outputs import Outputs
from wamdiff2_ros.health import Health, deadline_status, diagnostics
from wamdiff2_ros.listening import Listener
from wamdiff2_ros.live_parameters import LiveParameters
from wamdiff2_ros.loading import (
    Interrupted,
    answer_grey,
    dial_problem,
    first_camera,
    free_memory,
    get_ready,
    in_background,
    load_driver,
    optional_cameras,
    warm_up,
)
from wamdiff2_ros.parameters import Settings
from wamdiff2_ros.process import NodeFailed, run_node, said_aloud
from wamdiff2_ros.qos import OUTPUT
from wamdiff2_ros.watchdog import PlanWatch
from wamdiff2_ros.worker import Outcome, Worker

WATCHDOG_S = 0.25
DIAGNOSTICS_S = 1.0
ANSWER_S = 2.0  # how long a transition waits for the answer that is being computed; nothing is published meanwhile
END_S = 1.0  # the same where the process ends
FAREWELL_S = 0.5  # from the shutdown transition to the end of the process: time for the caller to hear of it
SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE


class DriverNode(LifecycleNode):
    """`make_driver` builds the Driver from the settings; tests put another one in."""

    def __init__(self, make_driver: Callable[[Settings], Any] = load_driver, **node_options: Any) -> None:
        super().__init__("wamdiff2", **node_options)
        self._make_driver = make_driver
        self.finished = threading.Event()  # set after the shutdown transition: the process ends
        self.interrupted = threading.Event()  # set by a signal (process.py)
        self._left_behind: list[Callable[[], bool]] = []  # true for threads that could not be ended and still run
        self._driver: Any = None
        self._deadline = DeadlineMode()
        self._worker: Worker | None = None
        self._plan_watch: PlanWatch | None = None
        self._listener: Listener | None = None
        self._outputs: Outputs | None = None
        self._diagnostics: Any = None
        self._health = Health()
        self._timers_made: list[Any] = []
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._parameters_live = LiveParameters(self, self._settings_changed, self._dial_problem)
        self._parameters_live.warn_of_unknown()
        # Seen by the executor's next turn, so that the node answers discovery before it loads for seconds.
        self._autostart_timer = self.create_timer(0.05, self._start_by_itself, clock=self._steady)

    @property
    def settings(self) -> Settings:
        """The settings in force, one value."""
        return self._parameters_live.settings

    @property
    def busy(self) -> bool:
        """True while a thread that could not be ended still runs."""
        return any(runs() for runs in self._left_behind)

    def _settings_changed(self, before: Settings) -> None:
        if self._listener is not None:
            self._listener.settings_changed(before)

    def _dial_problem(self, settings: Settings) -> str | None:
        return None if self._driver is None else dial_problem(self._driver, settings)

    # -- lifecycle ------------------------------------------------------------------------------------------------

    def _start_by_itself(self) -> None:
        self._autostart_timer.cancel()
        if not self._parameters_live.autostart:
            return
        started = self.trigger_configure() == SUCCESS and self.trigger_activate() == SUCCESS
        if not started and not self._ending():
            raise NodeFailed("autostart failed; the reason is in the line above")

    @said_aloud
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        settings = self.settings
        started_s = time.monotonic()
        self._parameters_live.publish("configure")
        self.get_logger().info(f"parameters: {settings_report.one_line(self._parameters_live.in_force())}")
        try:
            camera = first_camera(settings)
            twins.packages(settings)
            self._driver = in_background(partial(self._load, settings), self._ending)
        except Wamdiff2Error as error:
            self.get_logger().error(f"configure: {'; '.join(str(error).splitlines())}")
            self._release()
            return FAILURE
        except Interrupted as left:
            self._left_behind.append(left.thread.is_alive)
            return FAILURE
        self._outputs = Outputs(self, self._health, camera, self._about(settings), settings, self._now_s)
        self._diagnostics = self.create_lifecycle_publisher(DiagnosticArray, "/diagnostics", OUTPUT)
        self._listener = Listener(
            self, lambda: self.settings, optional_cameras(self._driver, settings), self._asked_anew
        )
        self._parameters_live.configured = True
        took_s = time.monotonic() - started_s
        self.get_logger().info(f"configured in {took_s:.1f} s: {settings.checkpoint} on {settings.device}")
        return SUCCESS

    def _load(self, settings: Settings) -> Any:
        driver = self._make_driver(settings)
        optional_cameras(driver, settings)
        warm_up(driver, settings)
        self.get_logger().info(get_ready(driver, settings))
        self._deadline = DeadlineMode()
        if settings.deadline_ms:
            lines = self._deadline.calibrate(settings, partial(answer_grey, driver))
            self.get_logger().info(f"deadline {settings.deadline_ms:.0f} ms, measured: {'; '.join(lines)}")
        return driver

    @said_aloud
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        assert self._listener is not None and self._outputs is not None
        if not self._answer_ended("activate"):
            return FAILURE
        listener, self._health = self._listener, Health()
        self._outputs.health = self._health
        listener.restart()
        self._worker = Worker(
            self._driver,
            listener.mailbox,
            listener.inputs,
            listener.topics,
            lambda: self.settings,
            self._publish,
            self._deadline,
        )
        self._outputs.odometry, listener.ahead = listener.inputs.odometry, self._worker.ahead.arrived
        self._outputs.inputs_refused = listener.log.refused_total
        self._plan_watch = PlanWatch(
            lambda: self.settings, self._outputs, listener.inputs, self._now_s, self.context.ok
        )
        result = super().on_activate(state)
        self._worker.start()
        self._plan_watch.dog.start()
        self._timers_made = [
            self.create_timer(WATCHDOG_S, self._watch, clock=self._steady),
            self.create_timer(DIAGNOSTICS_S, self._publish_diagnostics, clock=self._steady),
        ]
        return result

    @said_aloud
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        if not self._stop_working(ANSWER_S):
            self.get_logger().warning("deactivated; an answer is still being computed and will not be published")
        return super().on_deactivate(state)

    @said_aloud
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        if not self._answer_ended("cleanup"):
            return FAILURE
        self._release()
        return SUCCESS

    @said_aloud
    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._stop_working(END_S)
        self._release()
        self.create_timer(FAREWELL_S, self.finished.set, clock=self._steady)
        return SUCCESS

    @said_aloud
    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """After an exception in a transition: back to unconfigured, from where configure can be tried again."""
        self._stop_working(ANSWER_S)
        self._release()
        return SUCCESS

    def close(self) -> None:
        """Stop the worker before the context goes away."""
        self._stop_working(END_S)

    def _ending(self) -> bool:
        return self.interrupted.is_set() or not self.context.ok()

    def _stop_working(self, limit_s: float) -> bool:
        """Nothing is published by the worker from here on. False if it is still at an answer after `limit_s`."""
        for timer in self._timers_made:
            self.destroy_timer(timer)
        self._timers_made = []
        if self._plan_watch is not None:
            self._plan_watch.dog.stop()
            self._plan_watch = None
        worker, self._worker = self._worker, None
        if worker is None or worker.stop(limit_s):
            return True
        self._left_behind.append(lambda: worker.alive)
        return False

    def _answer_ended(self, transition: str) -> bool:
        """Wait for an answer left behind by deactivate; False, logged, if it goes on: the model is not free then."""
        until_s = time.monotonic() + ANSWER_S
        while self.busy and time.monotonic() < until_s and not self._ending():
            time.sleep(0.02)
        if self.busy:
            self.get_logger().error(f"{transition}: an answer from before is still being computed; try again")
            return False
        self._left_behind = []
        return True

    def _release(self) -> None:
        if self._listener is not None:
            self._listener.close()
        publishers = [] if self._outputs is None else self._outputs.all()
        for publisher in [*publishers, *([] if self._diagnostics is None else [self._diagnostics])]:
            self.destroy_lifecycle_publisher(publisher)
        self._driver = self._listener = self._outputs = self._diagnostics = None
        self._parameters_live.configured = False
        free_memory()

    # -- outputs --------------------------------------------------------------------------------------------------

    def _publish(self, outcome: Outcome) -> None:
        """Called by the worker thread."""
        assert self._outputs is not None and self._listener is not None
        self._health.count(outcome)
        try:
            self._outputs.publish(outcome, self._listener.mailbox.dropped)
        except rclpy_implementation.RCLError:
            if self.context.ok():  # otherwise: interrupted while the scene was being answered
                raise

    def _watch(self) -> None:
        """No scene for too long: count it, say which topics are the reason, and withdraw the last plan."""
        if self._worker is not None and not self._worker.alive:
            raise NodeFailed("the worker thread has ended; its error is above")
        if self._plan_watch is not None and not self._plan_watch.dog.alive:
            raise NodeFailed(f"the watchdog's thread has ended: {self._plan_watch.dog.error}")
        if self._listener is None or self._outputs is None:
            return
        errors = self._listener.missing(time.monotonic())
        stamp_s = self._now_s()
        if errors and stamp_s > 0.0:  # before the first /clock there was no plan to withdraw; diagnostics say it
            self._health.count_missing(errors)
            text = "; ".join(f"{topic}: {problem}" for topic, problem in errors.items())
            self._outputs.publish_no_plan(text, stamp_s, self._listener.inputs.instruction)

    def _publish_diagnostics(self) -> None:
        if self._listener is None or self._outputs is None or self._worker is None:
            return
        values = {
            "frames dropped": self._listener.mailbox.dropped,
            "resets": self._listener.mailbox.resets,
            "answers out of date": self._worker.out_of_date,
        }
        inputs = self._listener.states(time.monotonic())
        outputs = outputs_connection(self, self._outputs.all(), OUTPUT)
        name, stamp_s = self.get_name(), max(self._now_s(), 0.0)
        array = diagnostics(self._health, stamp_s, name, inputs, outputs, values)
        deadline = self._deadline.status(self.settings)
        array.status = [*array.status, *([deadline_status(name, deadline)] if deadline else [])]
        if self._plan_watch is not None:
            array.status = [*array.status, self._plan_watch.status(name)]
        self._diagnostics.publish(array)

    def _now_s(self) -> float:
        return self.get_clock().now().nanoseconds * 1e-9

    def _asked_anew(self) -> None:
        if self._worker is not None:
            self._worker.schedule.forget("ask")

    def _about(self, settings: Settings) -> dict[str, str]:
        return {"kernels": self._driver.kernels, "device": settings.device, "checkpoint": settings.checkpoint}


def main(args: list[str] | None = None) -> int:
    return run_node(DriverNode, args)


if __name__ == "__main__":
    sys.exit(main())
