"""The watchdog: by its own clock in a test, and in the node while the worker hangs in an answer."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

from diagnostic_msgs.msg import DiagnosticStatus  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402

from wamdiff2.msg import Trajectory  # noqa: E402
from wamdiff2_core.scene import Failure, FailureKind  # noqa: E402
from wamdiff2_ros.conversions import stamp_seconds  # noqa: E402
from wamdiff2_ros.watchdog import Watchdog  # noqa: E402


def test_age_counts_from_the_pictures_of_the_newest_plan() -> None:
    ages: list[float] = []
    dog = Watchdog(lambda: 1.0, ages.append)
    start_s = time.monotonic()
    assert not dog.turn(start_s + 0.5) and dog.turn(start_s + 1.5)  # none came since the start
    dog.planned(start_s + 2.0)
    assert not dog.turn(start_s + 2.9)
    dog.planned(start_s + 1.0)  # an older one does not make it older
    assert not dog.turn(start_s + 2.9) and dog.turn(start_s + 3.1) and dog.turn(start_s + 3.2)
    assert len(ages) == 3 and ages[1] == pytest.approx(1.1) and dog.times == 2
    assert dog.status("x", start_s + 3.2, "it brakes").level == DiagnosticStatus.ERROR
    assert "it brakes" in dog.status("x", start_s + 3.2, "it brakes").message
    assert dog.status("x", start_s + 2.2, "").level == DiagnosticStatus.OK


def test_where_no_plan_is_asked_for_none_is_missed() -> None:
    dog = Watchdog(lambda: None, lambda age_s: pytest.fail("called"))
    assert not dog.turn(time.monotonic() + 1e6)
    assert dog.status("x", time.monotonic() + 1e6, "").level == DiagnosticStatus.OK


def test_an_error_ends_it_and_is_told() -> None:
    def fail(age_s: float) -> None:
        raise OSError("no more room")

    dog = Watchdog(lambda: -1.0, fail)
    heard: list[Any] = []
    before, threading.excepthook = threading.excepthook, heard.append
    try:
        dog.start()
        dog._thread.join(120.0)
    finally:
        threading.excepthook = before
    assert not dog.alive and heard and "no more room" in dog.status("x", 0.0, "").message


class Hanging:
    """From now on an answer waits until the gate is opened. `stamps_s`: of the scenes that had to wait."""

    def __init__(self, harness: Any) -> None:
        self.gate = threading.Event()
        self.stamps_s: list[float] = []
        answer = harness.driver.answer

        def waiting(scene: Any, tasks: Any) -> Any:
            if not self.gate.is_set():
                self.stamps_s.append(scene.stamp_s)
                self.gate.wait(200.0)
            return answer(scene, tasks)

        harness.driver.answer = waiting
        harness.spin_until(lambda: self.stamps_s, "an answer that hangs", harness.send_all)


def stops(h: Any) -> list[Trajectory]:
    return [m for m in h.outputs["trajectory"] if m.status == Trajectory.STATUS_STOP]


def test_a_hanging_answer_ends_in_a_stop_trajectory_and_an_error(make_harness: Any) -> None:
    h = make_harness(tasks=["plan"], max_plan_age_s=0.4, stop_deceleration_mps2=3.0)
    h.wait_connected()
    h.spin_until(h.valid_plans, "a plan", h.send_all)
    hanging = Hanging(h)
    try:
        before = len(stops(h))
        h.spin_until(lambda: len(stops(h)) > before + 2, "stop trajectories", h.send_all)
        h.spin_until(lambda: "stop trajectory" in h.diagnosis(": plan age"), "the diagnosis", h.send_all)
        stop = stops(h)[-1]
        assert not stop.raw_x_m and "younger than 0.4 s" in stop.text and stop.images_stamp.sec == 0
        speeds = [point.speed_mps for point in stop.points]
        assert speeds[0] == pytest.approx(5.0) and speeds[-1] == 0.0 and speeds == sorted(speeds, reverse=True)
        assert min(point.acceleration_mps2 for point in stop.points) == pytest.approx(-3.0, abs=0.3)
        stale = len(h.valid_plans())
    finally:
        hanging.gate.set()
    h.spin_until(lambda: len(h.valid_plans()) > stale + 2, "recovery", h.send_all)
    h.spin_until(lambda: h.diagnosis(": plan age") == "young enough", "the end of the error", h.send_all)
    assert h.outputs["stats"][-1].stale >= 1
    late = [m for m in h.outputs["trajectory"] if "came too late" in m.text]  # the answer that hung, at least
    assert all(m.status == Trajectory.STATUS_INPUT and not m.points for m in late)
    (hung_s,) = hanging.stamps_s
    assert [stamp_seconds(m.header.stamp) for m in late].count(hung_s) == 1
    assert hung_s not in [stamp_seconds(m.header.stamp) for m in h.valid_plans()]


def test_silence_where_asked_for_is_silence_but_an_error_all_the_same(make_harness: Any) -> None:
    h = make_harness(tasks=["plan"], max_plan_age_s=0.3, on_stale_plan="silence")
    h.wait_connected()
    h.spin_until(h.valid_plans, "a plan", h.send_all)
    hanging = Hanging(h)
    try:
        seen = len(h.outputs["diagnostics"])
        h.spin_until(lambda: len(h.outputs["diagnostics"]) > seen, "what was on its way", h.send_all)
        h.spin_until(lambda: "no trajectory is published" in h.diagnosis(": plan age"), "the diagnosis", h.send_all)
        count = len(h.outputs["trajectory"])
        seen = len(h.outputs["diagnostics"])
        h.spin_until(lambda: len(h.outputs["diagnostics"]) > seen, "a second more", h.send_all)
        assert len(h.outputs["trajectory"]) == count and not stops(h)
        assert h.node.set_parameters([Parameter("on_stale_plan", value="stop")])[0].successful
        h.spin_until(lambda: stops(h), "stop trajectories from now on", h.send_all)
    finally:
        hanging.gate.set()


def test_without_odometry_the_stop_trajectory_stands(make_harness: Any) -> None:
    h = make_harness(max_plan_age_s=0.2)
    h.wait_connected()
    h.spin_until(lambda: stops(h), "a stop trajectory", h.send_frames)
    assert len(stops(h)[-1].points) == 41 and not any(point.speed_mps for point in stops(h)[-1].points)


def test_answers_that_are_no_plans_do_not_make_it_younger(make_harness: Any) -> None:
    h = make_harness(max_plan_age_s=0.3)
    h.wait_connected()
    h.driver.results = {"plan": Failure(FailureKind.PARSE, "no numbers")}
    h.spin_until(lambda: stops(h), "a stop trajectory", h.send_all)
    h.driver.results = {}
    h.spin_until(h.valid_plans, "recovery", h.send_all)


def test_nothing_while_inactive(make_harness: Any) -> None:
    h = make_harness(max_plan_age_s=0.2)
    h.wait_connected()
    h.spin_until(lambda: stops(h), "a stop trajectory")
    h.node.trigger_deactivate()
    assert not [thread for thread in threading.enumerate() if thread.name == "plan watchdog"]
