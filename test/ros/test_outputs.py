"""What leaves the driver node: nothing that cannot be driven, flags, limits, candidates, markers, dry run, twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

from rclpy.lifecycle import TransitionCallbackReturn  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402
from std_msgs.msg import String  # noqa: E402
from visualization_msgs.msg import MarkerArray  # noqa: E402

from wamdiff2.msg import Candidates, Stats, Trajectory  # noqa: E402
from wamdiff2_core.scene import Answer, Box, Cost, Detections, Failure, FailureKind, Plan  # noqa: E402
from wamdiff2_ros import conversions as cv  # noqa: E402
from wamdiff2_ros.driver_outputs import KINDS  # noqa: E402
from wamdiff2_ros.stages import Stages, taken  # noqa: E402

TIMES = np.arange(1, 9) * 0.5
AHEAD = np.column_stack([5.0 * TIMES, 0.0 * TIMES])
TO_THE_RIGHT = np.column_stack([15.0 * np.sin(TIMES / 3), -15.0 * (1.0 - np.cos(TIMES / 3))])
FASTER = np.column_stack([5.0 * TIMES + TIMES**2, 0.0 * TIMES])


def plan(points: np.ndarray = AHEAD, confidence: float = 0.9, likelihood: float = 0.0) -> Plan:
    return Plan(points, np.full(8, confidence), "a plan", Cost(2, (2,), 96, 1.0, 2.0, 3.0), likelihood)


def with_value(value: float) -> np.ndarray:
    points = AHEAD.copy()
    points[2, 0] = value
    return points


def counted(h: Any, field: str) -> bool:
    return any(getattr(message, field) for message in h.outputs["stats"])


def failure(kind: FailureKind) -> Failure:
    return Failure(kind, "why")


BAD = {
    "nan": (plan(with_value(np.nan)), "invalid"),
    "infinite": (plan(with_value(np.inf)), "invalid"),
    "too few": (plan(AHEAD[:3]), "invalid"),
    "no points": (plan(np.zeros((0, 2))), "invalid"),
    "too fast": (plan(AHEAD * 40.0), "range"),
    "a leap": (plan(with_value(60.0)), "range"),
    "not a plan": ("go", "invalid"),
    "empty": (failure(FailureKind.EMPTY), "empty"),
    "truncated": (failure(FailureKind.TRUNCATED), "truncated"),
    "invalid": (failure(FailureKind.INVALID), "invalid"),
    "parse": (failure(FailureKind.PARSE), "parse"),
    "range": (failure(FailureKind.RANGE), "range"),
}


@pytest.mark.parametrize("name", BAD)
def test_nothing_driveable_from_a_bad_answer_and_recovery_with_the_next(make_harness: Any, name: str) -> None:
    bad, counter = BAD[name]
    h = make_harness(tasks=["plan"])
    h.wait_connected()
    h.spin_until(h.valid_plans, "a plan", h.send_all)
    h.driver.results = {"plan": bad}
    status = cv.PLAN_STATUS[FailureKind(counter)]
    h.spin_until(lambda: h.outputs["trajectory"][-1].status == status, "the refusal", h.send_all)
    refused = [m for m in h.outputs["trajectory"] if m.status != Trajectory.STATUS_VALID]
    assert not any(m.points or m.raw_x_m for m in refused)
    assert all(np.isfinite(point.x_m) for m in h.valid_plans() for point in m.points)
    h.spin_until(lambda: counted(h, f"failures_{counter}"), "the count", h.send_all)
    bad_scenes = len(h.driver.scenes)
    h.driver.results = {}
    count = len(h.valid_plans())
    h.spin_until(lambda: len(h.valid_plans()) > count, "recovery", h.send_all)
    first_good = h.valid_plans()[count].header.stamp
    stamps = [scene.stamp_s for scene in h.driver.scenes]
    assert stamps.index(cv.stamp_seconds(first_good)) <= bad_scenes + 1  # one may have been on its way


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), FloatingPointError("overflow"), IndexError("5")])
def test_an_error_of_the_driver_is_a_counted_failure(make_harness: Any, error: Exception) -> None:
    h = make_harness(tasks=["plan"])
    h.wait_connected()
    h.spin_until(h.valid_plans, "a plan", h.send_all)
    h.driver.error = error
    h.spin_until(lambda: counted(h, "failures_invalid"), "the count", h.send_all)
    assert type(error).__name__ in h.diagnosis(": plans") or type(error).__name__ in h.outputs["trajectory"][-1].text
    h.driver.error = None
    count = len(h.valid_plans())
    h.spin_until(lambda: len(h.valid_plans()) > count, "recovery", h.send_all)


def test_a_plan_against_the_instruction_is_flagged_and_withheld_if_asked(make_harness: Any) -> None:
    h = make_harness(tasks=["plan"])
    h.wait_connected()
    h.driver.results = {"plan": plan(TO_THE_RIGHT)}
    h.instruction.publish(String(data="turn left now"))
    h.spin_until(lambda: any(m.contradictions for m in h.valid_plans()), "a flagged plan", h.send_all)
    flagged = next(m for m in h.valid_plans() if m.contradictions)
    assert "leads to the right" in flagged.contradictions[0] and flagged.points
    h.spin_until(lambda: counted(h, "contradictions"), "the count", h.send_all)
    h.spin_until(lambda: _value(h, "contradictions") not in ("", "0"), "diagnostics", h.send_all)
    assert h.node.set_parameters([Parameter("withhold_contradictions", value=True)])[0].successful
    withheld = Trajectory.STATUS_CONTRADICTION
    h.spin_until(lambda: h.outputs["trajectory"][-1].status == withheld, "a withheld plan", h.send_all)
    last = h.outputs["trajectory"][-1]
    assert not last.points and not last.raw_x_m and last.contradictions
    h.spin_until(lambda: counted(h, "failures_contradiction"), "its count", h.send_all)
    h.instruction.publish(String(data="turn right now"))
    h.spin_until(lambda: h.outputs["trajectory"][-1].status == Trajectory.STATUS_VALID, "recovery", h.send_all)
    assert not h.valid_plans()[-1].contradictions


def test_boxes_that_cannot_be_are_counted_in_diagnostics(make_harness: Any) -> None:
    h = make_harness(tasks=["plan", "detect"])
    h.wait_connected()
    h.driver.results = {"detect": Detections((Box("car", (400, 400, 600, 600), 0.8),), dropped=2)}
    h.spin_until(lambda: _value(h, "impossible boxes left out") not in ("", "0"), "the count", h.send_all)
    assert int(_value(h, "impossible boxes left out")) % 2 == 0
    assert len(h.outputs["boxes"][-1].boxes) == 1


def test_a_plan_against_the_answer_is_flagged_while_the_answer_holds(make_harness: Any) -> None:
    h = make_harness(tasks=["plan", "ask"], ask_rate_hz=0.0)
    h.wait_connected()
    h.driver.results = {"plan": plan(FASTER), "ask": Answer("may we go?", "no, the light is red.", 0.9)}
    h.question.publish(String(data="may we go?"))
    h.spin_until(lambda: any(m.contradictions for m in h.valid_plans()), "a flagged plan", h.send_all)
    h.driver.results = {"plan": plan(FASTER), "ask": Answer("may we go?", "yes, the light is green.", 0.9)}
    h.spin_until(lambda: not h.valid_plans()[-1].contradictions, "no flag any more", h.send_all)


def test_the_smooth_trajectory_keeps_to_the_configured_limits(make_harness: Any) -> None:
    h = make_harness(tasks=["plan"], max_acceleration_mps2=0.8, max_jerk_mps3=0.7, max_curvature_1pm=0.02)
    h.wait_connected()
    bend = np.column_stack([5.0 * TIMES + 1.5 * np.maximum(TIMES - 1.0, 0.0) ** 2, 0.4 * TIMES**2])
    h.driver.results = {"plan": plan(bend)}
    h.spin_until(h.valid_plans, "a plan", h.send_all)
    points = h.valid_plans()[-1].points
    a = np.array([point.acceleration_mps2 for point in points])
    assert len(points) == 41 and a.max() <= 0.8 + 1e-3 and np.abs(np.diff(a)).max() <= 0.07 + 1e-3
    assert max(abs(point.curvature_1pm) for point in points) <= 0.02 + 1e-6
    assert h.valid_plans()[-1].raw_x_m == pytest.approx(bend[:, 0])  # the raw points are as the model said
    h.node.set_parameters([Parameter("max_acceleration_mps2", value=3.0), Parameter("max_jerk_mps3", value=20.0)])

    def faster() -> bool:
        return max(point.acceleration_mps2 for point in h.valid_plans()[-1].points) > 1.0

    h.spin_until(faster, "the new limits", h.send_all)


def test_candidates_come_behind_the_plan_the_likeliest_first(make_harness: Any) -> None:
    h = make_harness(tasks=["plan"], candidates=3, candidate_temperature=0.7)
    asked: list[tuple[int, float]] = []

    def draw(scene: Any, count: int, temperature: float) -> list[Any]:
        asked.append((count, temperature))
        return [plan(AHEAD, 0.5, -9.0), plan(with_value(np.nan)), plan(FASTER, 0.8, -2.0)]

    h.driver.plan_candidates = draw
    h._listen("/wamdiff2/output/candidates", "candidates", Candidates)
    h.wait_connected()
    h.spin_until(lambda: h.outputs["candidates"], "candidates", h.send_all)
    message = h.outputs["candidates"][-1]
    assert asked[-1] == (3, 0.7) and (message.asked, message.withheld) == (3, 1)
    assert [c.log_likelihood for c in message.candidates] == [-2.0, -9.0]
    assert message.candidates[0].x_m == pytest.approx(FASTER[:, 0]) and message.temperature == pytest.approx(0.7)
    stamps = [m.header.stamp for m in h.valid_plans()]
    assert message.header.stamp in stamps
    h.spin_until(lambda: any(list(m.tasks) == ["candidates"] for m in h.outputs["stats"]), "their stats", h.send_all)
    stats = next(m for m in h.outputs["stats"] if list(m.tasks) == ["candidates"])
    assert stats.tokens == 2 * 96 and stats.decode_ms == pytest.approx(3.0)
    h.node.set_parameters([Parameter("candidates", value=0)])
    count = len(asked)
    h.spin_until(lambda: len(h.valid_plans()) > len(stamps) + 4, "more plans", h.send_all)
    assert len(asked) <= count + 1


def test_a_dry_run_says_nothing_that_a_follower_hears(make_harness: Any) -> None:
    h = make_harness(dry_run=True, tasks=["plan", "detect"], max_plan_age_s=0.3)
    h._listen("/wamdiff2/debug/trajectory", "tried", Trajectory)
    h._listen("/wamdiff2/debug/stats", "stats", Stats)
    inputs = [*h.images.values(), h.odometry]
    h.spin_until(lambda: all(p.get_subscription_count() for p in inputs), "matching")
    h.spin_until(lambda: any(m.status == Trajectory.STATUS_VALID for m in h.outputs["tried"]), "plans", h.send_all)
    h.spin_until(lambda: any(m.status == Trajectory.STATUS_STOP for m in h.outputs["tried"]), "stop trajectories")
    tried = [f"/wamdiff2/debug/{name}" for name in KINDS]
    h.spin_until(lambda: all(h.probe.count_publishers(topic) for topic in tried), "discovery")
    assert not any(h.probe.count_publishers(topic.replace("debug", "output")) for topic in tried)
    assert not h.outputs["trajectory"] and not h.outputs["path"]
    refused = h.node.set_parameters([Parameter("dry_run", value=False)])[0]
    assert not refused.successful and "dry_run" in refused.reason


@pytest.mark.parametrize("name", ["twin_vision_msgs", "twin_autoware"])
def test_a_twin_without_its_package_is_a_configure_error(make_harness: Any, name: str) -> None:
    h = make_harness(autostart=False, **{name: True})
    assert h.node.trigger_configure() == TransitionCallbackReturn.FAILURE
    h.node.set_parameters([Parameter(name, value=False)])
    assert h.node.trigger_configure() == TransitionCallbackReturn.SUCCESS


def test_compensation_is_stated_and_the_raw_points_are_not_touched(make_harness: Any) -> None:
    h = make_harness(tasks=["plan"], compensate_delay=True)
    h.wait_connected()
    h.driver.results = {"plan": plan()}
    h.spin_until(lambda: any(m.compensated_s > 0.0 for m in h.valid_plans()), "a compensated plan", h.send_all)
    message = next(m for m in h.valid_plans() if m.compensated_s > 0.0)
    passed_s = cv.stamp_seconds(message.header.stamp) - cv.stamp_seconds(message.images_stamp)
    assert passed_s == pytest.approx(message.compensated_s, abs=1e-6)
    assert message.raw_x_m == pytest.approx(AHEAD[:, 0]) and message.points[0].time_from_start_s == 0.0
    assert len(message.points) == int((4.0 - message.compensated_s) / 0.1 + 1e-6) + 1
    h.node.set_parameters([Parameter("compensate_delay", value=False)])
    h.spin_until(lambda: h.valid_plans()[-1].compensated_s == 0.0, "none any more", h.send_all)
    assert h.valid_plans()[-1].images_stamp == h.valid_plans()[-1].header.stamp


def test_markers_where_somebody_listens(make_harness: Any) -> None:
    h = make_harness(detect_rate_hz=0.0, tasks=["plan", "detect"])
    h._listen("/wamdiff2/output/markers", "markers", MarkerArray)
    h.wait_connected()

    def shown() -> set[str]:
        return {marker.ns for array in h.outputs["markers"] for marker in array.markers}

    h.spin_until(lambda: shown() >= {"plan", "boxes"}, "markers", h.send_all)
    h.driver.results = {"plan": failure(FailureKind.PARSE)}
    texts = "no plan: parse"
    h.spin_until(lambda: any(m.text == texts for a in h.outputs["markers"] for m in a.markers), "words", h.send_all)


def test_stats_say_where_the_time_went(make_harness: Any) -> None:
    h = make_harness(tasks=["plan"])
    h.wait_connected()
    h.spin_until(lambda: len(h.outputs["stats"]) > 2, "stats", h.send_all)
    stats = h.outputs["stats"][-1]
    parts = ("wait_ms", "images_ms", "prompt_ms", "convert_ms", "publish_ms")
    assert all(getattr(stats, name) >= 0.0 for name in parts) and stats.images_ms > 0.0 and stats.convert_ms > 0.0
    assert stats.overhead_ms + 0.01 >= sum(getattr(stats, name) for name in parts[1:])
    assert h.outputs["stats"][-1].header.stamp in [m.header.stamp for m in h.outputs["trajectory"]]


def test_overhead_counts_neither_the_model_nor_an_earlier_scene() -> None:
    idle = taken(received_s=10.0, free_since_s=5.0, taken_s=10.002)
    assert (idle.busy_ms, idle.wait_ms) == (0.0, pytest.approx(2.0))
    late = taken(received_s=10.0, free_since_s=10.2, taken_s=10.203)
    assert (late.busy_ms, late.wait_ms) == (pytest.approx(200.0), pytest.approx(3.0))
    assert Stages(10.0, busy_ms=200.0, inference_ms=250.0).overhead_ms(10.46) == pytest.approx(10.0)


def _value(h: Any, key: str) -> str:
    """Newest diagnostic value of this key among the plans' figures."""
    for array in reversed(h.outputs["diagnostics"]):
        for status in array.status:
            if status.name.endswith(": plans"):
                return next((pair.value for pair in status.values if pair.key == key), "")
    return ""
