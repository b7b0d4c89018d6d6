"""The driver node in this process with a driver that answers at once: inputs, outputs, the dial, faults, lifecycle."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

from lifecycle_msgs.msg import State  # noqa: E402
from rclpy.lifecycle import TransitionCallbackReturn  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402
from sensor_msgs.msg import CompressedImage  # noqa: E402
from std_msgs.msg import String  # noqa: E402

from wamdiff2.msg import Boxes, Trajectory  # noqa: E402
from wamdiff2_core.scene import Failure, FailureKind  # noqa: E402
from wamdiff2_ros import conversions as cv  # noqa: E402


def test_frames_become_plans_boxes_and_answers(make_harness: Any) -> None:
    h = make_harness(detect_rate_hz=0.0, ask_rate_hz=0.0)
    h.wait_connected()
    h.instruction.publish(String(data="turn left in 40 m"))
    h.question.publish(String(data="what is ahead?"))

    def plans() -> list[Trajectory]:
        return [plan for plan in h.valid_plans() if plan.instruction == "turn left in 40 m"]

    others = [h.outputs[name] for name in ("answer", "boxes", "stats")]
    h.spin_until(lambda: all(others) and len(plans()) > 2, "answers", h.send_all)
    plan, scene = plans()[-1], h.driver.scenes[-1]
    assert plan.header.frame_id == "base_link"
    assert list(scene.images) == ["cam_front", "cam_left"] and scene.images["cam_front"].shape == (48, 64, 3)
    assert scene.ego.velocity == (5.0, 0.0) and scene.question == "what is ahead?"
    assert cv.stamp_seconds(plan.header.stamp) in [s.stamp_s for s in h.driver.scenes]
    assert h.outputs["boxes"][-1].status == Boxes.STATUS_FOUND
    assert h.outputs["boxes"][-1].boxes[0].x1_px == pytest.approx(25.6)
    assert h.outputs["answer"][-1].text == "a car."
    stats = h.outputs["stats"][-1]
    assert (stats.forwards, stats.plans > 0, stats.plan_hz > 0.0) == (4, True, True)
    assert stats.frame_age_ms >= stats.total_ms > 0.0


def test_the_dial_turns_while_running_and_stats_say_so(make_harness: Any) -> None:
    h = make_harness()
    h.wait_connected()
    h.spin_until(lambda: h.outputs["stats"], "first stats", h.send_all)
    results = h.node.set_parameters([Parameter("block_size", value=8), Parameter("steps", value=3)])
    assert all(result.successful for result in results)
    h.spin_until(lambda: h.outputs["stats"][-1].steps == 3, "the new steps in stats", h.send_all)  # the second set
    assert h.outputs["stats"][-1].block_size == 8
    assert (h.driver.used[-1].block_size, h.driver.used[-1].steps) == (8, 3)


def test_another_default_instruction_counts_until_one_comes(make_harness: Any) -> None:
    h = make_harness()
    h.wait_connected()
    h.spin_until(h.valid_plans, "a plan", h.send_all)
    assert h.node.set_parameters([Parameter("default_instruction", value="go straight now")])[0].successful
    h.spin_until(lambda: h.driver.scenes[-1].instruction == "go straight now", "the new default", h.send_all)
    h.instruction.publish(String(data="turn left now"))
    h.spin_until(lambda: h.driver.scenes[-1].instruction == "turn left now", "the instruction", h.send_all)
    h.node.set_parameters([Parameter("default_instruction", value="follow the road")])
    seen = len(h.driver.scenes)
    h.spin_until(lambda: len(h.driver.scenes) > seen + 3, "more scenes", h.send_all)
    assert h.driver.scenes[-1].instruction == "turn left now"


def test_a_rejected_set_changes_nothing(make_harness: Any) -> None:
    h = make_harness()
    h.wait_connected()
    before = h.node.settings
    both = [Parameter("steps", value=2), Parameter("rule", value="greedy")]
    refused = h.node.set_parameters_atomically(both)
    assert not refused.successful and "greedy" in refused.reason
    wrong = {"block_size": 100000, "threshold": "high", "checkpoint": "/other", "threads": 7, "tasks": ["sing"]}
    for name, value in wrong.items():
        result = h.node.set_parameters([Parameter(name, value=value)])[0]
        assert not result.successful and result.reason, name
    assert h.node.settings == before
    assert h.node.get_parameter("steps").value == before.steps


def test_without_odometry_there_is_no_plan_but_there_are_boxes(make_harness: Any) -> None:
    h = make_harness(detect_rate_hz=0.0)
    h.wait_connected()
    text = "/wamdiff2/input/odometry: nothing received"
    h.spin_until(lambda: len(h.outputs["boxes"]) > 2 and text in h.diagnosis(": plans"), "boxes", h.send_frames)
    h.spin_until(lambda: h.outputs["stats"][-1].failures_input > 0, "the count", h.send_frames)
    assert not h.valid_plans() and h.outputs["trajectory"][-1].status == Trajectory.STATUS_INPUT


def test_odometry_that_turned_bad_is_called_bad_not_late(make_harness: Any) -> None:
    h = make_harness(odometry_max_age_s=0.2)
    h.wait_connected()
    h.spin_until(h.valid_plans, "a plan", h.send_all)

    def send_bad() -> None:
        h.send_odometry(float("nan"))
        h.send_frames()

    text = "/wamdiff2/input/odometry: odometry holds a value that is not finite"
    h.spin_until(lambda: text in h.outputs["trajectory"][-1].text, "the reason", send_bad)


def test_a_silent_camera_withdraws_the_plan_and_is_named(make_harness: Any) -> None:
    h = make_harness(max_frame_age_s=0.2)
    h.wait_connected()
    h.spin_until(h.valid_plans, "a plan", h.send_all)

    def only_front() -> None:
        h.send_odometry()
        h.send_frames(["cam_front"])

    def withdrawn() -> bool:
        last = h.outputs["trajectory"][-1]
        return last.status == Trajectory.STATUS_INPUT and "cam_left/image/compressed" in last.text

    h.spin_until(lambda: withdrawn() and "cam_front" not in h.outputs["trajectory"][-1].text, "withdrawal", only_front)
    count = len(h.valid_plans())
    h.spin_until(lambda: "last frame" in h.diagnosis("cam_left/image/compressed"), "diagnostic", only_front)
    assert len(h.valid_plans()) == count and not h.outputs["path"][-1].poses
    h.spin_until(lambda: len(h.valid_plans()) > count + 2, "recovery", h.send_all)


@pytest.mark.parametrize(
    "trouble, text", [({"age_s": 5.0}, "old"), ({"age_s": -5.0}, "in the future"), ({"skew_s": 5.0}, "differ")]
)
def test_old_or_unsynchronised_frames_give_no_plan(make_harness: Any, trouble: dict, text: str) -> None:
    # A skew longer than any stall: else a picture of now fits one from before the stall.
    h = make_harness(max_frame_age_s=10.0 if "skew_s" in trouble else 1.0)
    h.wait_connected()

    def send() -> None:
        h.send_odometry()
        h.send_frames(**trouble)

    h.spin_until(lambda: any(text in m.text for m in h.outputs["trajectory"]), "a stated reason", send)
    assert not h.valid_plans() and not h.driver.scenes[1:]  # the first is the warm-up


def test_a_broken_picture_is_counted_and_named(make_harness: Any) -> None:
    h = make_harness()
    h.wait_connected()

    def send() -> None:
        h.send_odometry()
        h.send_frames(["cam_front"])
        broken = CompressedImage(header=cv.header(h.now_s(), "x"), format="jpeg", data=b"\xff\xd8not a picture")
        h.images["cam_left"].publish(broken)

    h.spin_until(lambda: any("not a JPEG" in m.text for m in h.outputs["trajectory"]), "a stated reason", send)
    assert not h.valid_plans()
    h.spin_until(lambda: "not a JPEG" in h.diagnosis("cam_left/image/compressed"), "diagnostic", send)


def test_failures_of_the_model_are_typed_and_counted(make_harness: Any) -> None:
    h = make_harness(detect_rate_hz=0.0)
    h.wait_connected()
    h.driver.results = {"plan": Failure(FailureKind.PARSE, "no numbers"), "detect": Failure(FailureKind.EMPTY, "")}

    def counted() -> bool:
        return any(m.failures_parse and m.failures_empty for m in h.outputs["stats"])

    h.spin_until(counted, "both outcomes", h.send_all)
    h.spin_until(lambda: h.outputs["trajectory"][-1].status == Trajectory.STATUS_PARSE, "no plan", h.send_all)
    h.spin_until(lambda: h.outputs["boxes"][-1].status == Boxes.STATUS_UNKNOWN, "no boxes", h.send_all)
    assert not h.valid_plans()
    h.driver.error = RuntimeError("out of memory")
    h.spin_until(lambda: h.outputs["stats"][-1].failures_invalid, "the error in the counters", h.send_all)
    assert any(m.status == Trajectory.STATUS_INVALID for m in h.outputs["trajectory"])
    h.driver.error, h.driver.results = None, {}
    h.spin_until(h.valid_plans, "recovery", h.send_all)


def test_lifecycle_by_hand(make_harness: Any) -> None:
    h = make_harness(autostart=False)
    node, good = h.node, TransitionCallbackReturn.SUCCESS

    def state() -> int:
        return node._state_machine.current_state[0]

    h.spin_until(lambda: True, "one turn")
    assert state() == State.PRIMARY_STATE_UNCONFIGURED
    assert node.trigger_configure() == good and state() == State.PRIMARY_STATE_INACTIVE
    h.wait_connected()
    for _ in range(5):
        h.send_all()
        h.executor.spin_once(timeout_sec=0.05)
    assert not h.outputs["stats"]  # inactive: nothing is answered
    for _ in range(2):
        assert node.trigger_activate() == good
        before = len(h.valid_plans())
        h.spin_until(lambda: len(h.valid_plans()) > before, "plans while active", h.send_all)  # noqa: B023
        assert node.trigger_deactivate() == good
    inactive_s, turns = h.now_s(), iter(range(30))
    h.spin_until(lambda: next(turns, None) is None, "thirty turns", h.send_all)
    assert all(cv.stamp_seconds(m.header.stamp) <= inactive_s for m in h.outputs["stats"])
    assert node.trigger_cleanup() == good and state() == State.PRIMARY_STATE_UNCONFIGURED
    assert node.set_parameters([Parameter("device", value="cuda")])[0].successful  # free again
    assert node.trigger_configure() == good and node.trigger_shutdown() == good
    assert state() == State.PRIMARY_STATE_FINALIZED
