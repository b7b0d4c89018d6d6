"""The driver node and odd inputs: connections, stamps, clocks, restarted senders, texts; each named and counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

import rclpy  # noqa: E402
from builtin_interfaces.msg import Time  # noqa: E402
from rclpy.context import Context  # noqa: E402
from rclpy.duration import Duration  # noqa: E402
from rclpy.node import Node  # noqa: E402
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy  # noqa: E402
from rosgraph_msgs.msg import Clock  # noqa: E402
from sensor_msgs.msg import CompressedImage, Image  # noqa: E402
from std_msgs.msg import String  # noqa: E402

from wamdiff2.msg import Boxes, Trajectory  # noqa: E402
from wamdiff2_ros import conversions as cv  # noqa: E402
from wamdiff2_ros.images import fill_compressed  # noqa: E402
from wamdiff2_ros.qos import OUTPUT, SENSOR_OUT  # noqa: E402

BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
LEFT = "/wamdiff2/input/cam_left/image/compressed"


def values(h: Any, named: str) -> dict[str, str]:
    """Newest figures of the diagnostic status whose name ends so."""
    for array in reversed(h.outputs["diagnostics"]):
        for status in array.status:
            if status.name.endswith(named):
                return {pair.key: pair.value for pair in status.values}
    return {}


def renew(h: Any, camera: str, qos: QoSProfile = SENSOR_OUT) -> None:
    """Another publisher in the place of the harness's own, connected."""
    topic = h.images[camera].topic_name
    h.probe.destroy_publisher(h.images[camera])
    h.images[camera] = h.probe.create_publisher(CompressedImage, topic, qos)
    h.spin_until(h.images[camera].get_subscription_count, "the new publisher's connection")


def frame_at(stamp_s: float, value: int = 90) -> CompressedImage:
    return fill_compressed(CompressedImage(), cv.header(stamp_s, "x"), np.full((48, 64, 3), value, np.uint8))


# -- connections ------------------------------------------------------------------------------------------------------


def test_a_best_effort_camera_and_a_reliable_one_both_arrive(make_harness: Any) -> None:
    h = make_harness()
    h.wait_connected()
    renew(h, "cam_left", BEST_EFFORT)
    h.spin_until(h.valid_plans, "a plan of both", h.send_all)
    said = "no subscriber is shut out"  # the probe subscribes as most do, with nothing but history and reliability
    h.spin_until(lambda: h.diagnosis(": outputs") == said, "good diagnostics of the outputs", h.send_all)
    h.spin_until(lambda: h.diagnosis(LEFT) in {"arriving"}, "good diagnostics", h.send_all)


def test_a_qos_that_does_not_match_is_named(make_harness: Any) -> None:
    h = make_harness(image_reliability="reliable")
    h.probe.destroy_publisher(h.images["cam_left"])
    h.images["cam_left"] = h.probe.create_publisher(CompressedImage, LEFT, BEST_EFFORT)
    latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    h.probe.create_subscription(Trajectory, "/wamdiff2/output/trajectory", lambda message: None, latched)
    strict = QoSProfile(depth=1, deadline=Duration(seconds=0.1))
    h.probe.create_subscription(Boxes, "/wamdiff2/output/boxes", lambda message: None, strict)
    h.probe.create_publisher(String, "/wamdiff2/input/question", BEST_EFFORT)
    h.spin_until(lambda: "Best effort publisher and reliable" in h.diagnosis(LEFT), "the mismatch", h.send_all)
    assert "/probe" in h.diagnosis(LEFT) and "cam_front" not in h.diagnosis(LEFT)
    h.spin_until(lambda: "Volatile publisher" in h.diagnosis(": outputs"), "the shut out subscriber", h.send_all)
    assert "/wamdiff2/output/trajectory" in h.diagnosis(": outputs")
    h.spin_until(lambda: "eadline" in h.diagnosis(": outputs"), "the subscriber with a deadline", h.send_all)
    assert "/wamdiff2/output/boxes" in h.diagnosis(": outputs")
    h.spin_until(lambda: "Best effort" in h.diagnosis("input/question"), "the question's publisher", h.send_all)


@pytest.fixture
def other_context() -> Iterator[Context]:
    context = Context()
    rclpy.init(context=context)
    yield context
    rclpy.shutdown(context=context)


def test_missing_and_wrong_publishers_are_named(make_harness: Any, other_context: Context) -> None:
    h = make_harness(cameras=["cam_front", "cam_left", "cam_gone", "cam_raw", "cam_odd"])
    h.probe.create_publisher(Image, "/wamdiff2/input/cam_raw/image", SENSOR_OUT)
    other = Node("other", context=other_context)  # DDS lets no participant have two types on one topic
    other.create_publisher(String, "/wamdiff2/input/cam_odd/image/compressed", OUTPUT)
    h.probe.create_publisher(CompressedImage, LEFT, SENSOR_OUT)
    h.spin_until(lambda: "no publisher" in h.diagnosis("cam_gone/image/compressed"), "the missing one", h.send_all)
    h.spin_until(lambda: "image_transport" in h.diagnosis("cam_raw/image/compressed"), "a hint", h.send_all)
    text = "has type std_msgs/msg/String, expected sensor_msgs/msg/CompressedImage"
    h.spin_until(lambda: text in h.diagnosis("cam_odd/image/compressed"), "the other type", h.send_all)
    h.spin_until(lambda: "2 publishers at once" in h.diagnosis(LEFT), "two publishers", h.send_all)
    assert not h.valid_plans()
    other.destroy_node()


# -- stamps and clocks ------------------------------------------------------------------------------------------------


def test_a_camera_without_stamps_is_named_and_nothing_is_planned(make_harness: Any) -> None:
    h = make_harness()
    h.wait_connected()

    def send() -> None:
        h.send_odometry()
        h.send_frames(["cam_front"])
        message = frame_at(h.now_s())
        message.header.stamp = Time()
        h.images["cam_left"].publish(message)

    h.spin_until(lambda: any("no stamp" in m.text and LEFT in m.text for m in h.outputs["trajectory"]), "why", send)
    h.spin_until(lambda: "no stamp" in h.diagnosis(LEFT), "diagnostics", send)
    h.spin_until(lambda: int(values(h, LEFT).get("refused without stamp", "0")) > 3, "the count", send)
    assert not h.valid_plans()
    h.spin_until(h.valid_plans, "recovery", h.send_all)
    h.spin_until(lambda: "refused, the last: frame has no stamp" in h.diagnosis(LEFT), "a trace", h.send_all)


def test_before_the_first_clock_nothing_is_answered_and_it_is_said(make_harness: Any) -> None:
    h = make_harness(use_sim_time=True)
    h.wait_connected()
    clock = h.probe.create_publisher(Clock, "/clock", OUTPUT)
    seconds = [500.0]

    def send() -> None:
        for publisher in h.images.values():
            publisher.publish(frame_at(seconds[0]))

    def tick() -> None:
        seconds[0] += 0.1
        clock.publish(Clock(clock=cv.time_message(seconds[0])))
        h.send_odometry()
        send()

    h.spin_until(lambda: "/clock has not come" in h.diagnosis("input /clock"), "the missing clock", send)
    counted = "refused before the first clock"
    h.spin_until(lambda: int(values(h, LEFT).get(counted, "0")) > 0, "the count", send)
    assert not h.driver.scenes[1:]
    h.spin_until(h.valid_plans, "plans with a clock", tick)
    assert all(plan.header.stamp.sec >= 500 for plan in h.valid_plans())


def test_a_clock_that_jumps_back_leaves_nothing_of_the_time_before(make_harness: Any) -> None:
    h = make_harness(use_sim_time=True, missing_camera="hold")
    h.wait_connected()
    clock = h.probe.create_publisher(Clock, "/clock", OUTPUT)
    seconds = [500.0]

    def tick(cameras: tuple[str, ...] = ("cam_front", "cam_left")) -> None:
        seconds[0] += 0.1
        clock.publish(Clock(clock=cv.time_message(seconds[0])))
        h.send_odometry()
        for name in cameras:
            h.images[name].publish(frame_at(seconds[0]))

    h.spin_until(lambda: len(h.valid_plans()) > 3, "plans", tick)
    seconds[0] = 100.0
    h.spin_until(lambda: h.node.get_clock().now().nanoseconds < 200e9, "the jump", lambda: tick(("cam_front",)))
    seen = len(h.outputs["diagnostics"])
    more = lambda: len(h.outputs["diagnostics"]) > seen + 1  # noqa: E731
    # One camera of the new time is there, the other's frames are of the old time. Plans from before may still come in.
    h.spin_until(more, "a second of it", lambda: tick(("cam_front",)))
    before = len(h.valid_plans())
    assert all(plan.header.stamp.sec >= 500 for plan in h.valid_plans())
    h.spin_until(lambda: len(h.valid_plans()) > before + 2, "plans of the new time", tick)
    assert all(plan.header.stamp.sec < 200 for plan in h.valid_plans()[before:])
    assert h.driver.scenes[-1].ego.speed == 5.0
    h.spin_until(lambda: "time jumped by -4" in h.diagnosis("input /clock"), "the name of the jump", tick)


def test_a_clock_that_jumps_forward_leaves_nothing_of_the_time_before(make_harness: Any) -> None:
    h = make_harness(use_sim_time=True)
    h.wait_connected()
    clock = h.probe.create_publisher(Clock, "/clock", OUTPUT)
    seconds = [500.0]

    def tick() -> None:
        seconds[0] += 0.1
        clock.publish(Clock(clock=cv.time_message(seconds[0])))
        h.send_odometry()
        for publisher in h.images.values():
            publisher.publish(frame_at(seconds[0]))

    h.spin_until(lambda: len(h.valid_plans()) > 3, "plans", tick)
    assert "jump" not in h.diagnosis("input /clock")  # the first /clock is none
    seconds[0] = 900.0
    h.spin_until(lambda: "time jumped by +" in h.diagnosis("input /clock"), "the name of the jump", tick)
    h.spin_until(lambda: h.valid_plans()[-1].header.stamp.sec >= 900, "plans of the new time", tick)


def test_a_restarted_camera_is_noticed_and_only_new_frames_count(make_harness: Any) -> None:
    h = make_harness(missing_camera="hold", max_frame_age_s=5.0)
    h.wait_connected()
    h.spin_until(h.valid_plans, "a plan", h.send_all)
    renew(h, "cam_left")
    h.images["cam_left"].publish(frame_at(h.now_s(), 250))
    h.spin_until(lambda: values(h, LEFT).get("sender started anew") == "1", "the restart in diagnostics")
    seen = len(h.driver.scenes)

    def send() -> None:
        h.send_odometry()
        h.send_frames(["cam_front"])
        h.images["cam_left"].publish(frame_at(h.now_s(), 250))

    h.spin_until(lambda: len(h.driver.scenes) > seen + 2, "scenes", send)
    assert all(scene.images["cam_left"].min() > 240 for scene in h.driver.scenes[seen:])
    assert int(values(h, ": plans")["resets"]) == 1


def test_an_answer_that_is_out_of_date_when_it_comes_is_withheld(make_harness: Any) -> None:
    h = make_harness(tasks=["plan"])  # else it could be boxes that are withheld
    h.wait_connected()
    h.spin_until(h.valid_plans, "a plan", h.send_all)
    working, go_on = threading.Event(), threading.Event()
    at_once = h.driver.answer

    def slow(scene: Any, tasks: Any) -> Any:
        working.set()
        assert go_on.wait(200.0)
        return at_once(scene, tasks)

    h.driver.answer = slow
    h.spin_until(working.is_set, "an answer in the making", h.send_all)
    before = len(h.valid_plans())
    h.node._listener.mailbox.clear()  # what a jump of the clock does
    go_on.set()
    h.spin_until(lambda: "time went back" in h.outputs["trajectory"][-1].text, "the answer withheld")
    assert len(h.valid_plans()) == before
    h.spin_until(lambda: values(h, ": plans").get("answers out of date", "0") != "0", "the count", h.send_all)
    h.spin_until(lambda: len(h.valid_plans()) > before, "recovery", h.send_all)


def test_odometry_of_another_time_moves_no_plan(make_harness: Any) -> None:
    h = make_harness(odometry_max_age_s=2.0)
    h.wait_connected()
    old = cv.odometry_message(cv.OdometrySample(h.now_s() - 9.0, 0.0, 0.0, 0.0, (5.0, 0.0), 0.0))

    def send() -> None:
        h.odometry.publish(old)
        h.send_frames()

    text = "apart from the frames'"
    h.spin_until(lambda: any(text in m.text for m in h.outputs["trajectory"]), "the reason", send)
    old.header.stamp = Time()
    h.spin_until(lambda: "no stamp" in h.diagnosis("input/odometry"), "odometry without stamp", send)
    assert not h.valid_plans()


# -- raw images -------------------------------------------------------------------------------------------------------


def test_raw_images_arrive_and_odd_ones_are_named_and_counted(make_harness: Any, capfd: Any) -> None:
    h = make_harness(cameras=["cam_front"], image_transport="raw")
    topic = "/wamdiff2/input/cam_front/image"
    sender = h.probe.create_publisher(Image, topic, SENSOR_OUT)
    picture = np.random.default_rng(0).integers(0, 256, (2, 5, 3), dtype=np.uint8)
    padded = np.concatenate([picture.reshape(2, 15), np.zeros((2, 1), np.uint8)], axis=1).tobytes()
    good = Image(height=2, width=5, encoding="rgb8", step=16, data=padded)
    odd = Image(height=480, width=1920, encoding="rgb8", step=5760, data=bytes(110_592))

    def send(message: Image) -> None:
        h.send_odometry()
        message.header = cv.header(h.now_s(), "x")
        sender.publish(message)

    h.spin_until(h.valid_plans, "a plan", lambda: send(good))
    np.testing.assert_array_equal(h.driver.scenes[-1].images["cam_front"], picture)
    h.spin_until(lambda: "image has 110592 bytes" in h.diagnosis(f"input {topic}"), "the name", lambda: send(odd))
    assert int(values(h, f"input {topic}")["refused broken pictures"]) > 0
    refused = Trajectory.STATUS_INPUT
    h.spin_until(lambda: h.outputs["trajectory"][-1].status == refused, "the plan withdrawn", lambda: send(odd))
    before = len(h.valid_plans())
    h.spin_until(lambda: len(h.valid_plans()) > before, "recovery", lambda: send(good))
    assert "raw images without a DDS profile" in capfd.readouterr().err


def test_silent_odometry_is_named_even_while_nobody_plans(make_harness: Any) -> None:
    h = make_harness(odometry_max_age_s=0.5)
    h.wait_connected()
    h.spin_until(h.valid_plans, "a plan", h.send_all)
    h.spin_until(lambda: "last usable message came" in h.diagnosis("input/odometry"), "the silence")
    h.spin_until(lambda: h.diagnosis("input/odometry") == "arriving", "its end", h.send_all)


def test_pictures_that_change_their_size_are_named_and_used(make_harness: Any) -> None:
    h = make_harness(cameras=["cam_front"], image_transport="raw")
    topic = "/wamdiff2/input/cam_front/image"
    sender = h.probe.create_publisher(Image, topic, SENSOR_OUT)

    def send(width: int) -> None:
        h.send_odometry()
        header = cv.header(h.now_s(), "x")
        sender.publish(Image(header=header, height=2, width=width, encoding="mono8", step=width, data=bytes(2 * width)))

    h.spin_until(h.valid_plans, "a plan", lambda: send(6))
    said = "pictures are of 4x2 pixels now, 6x2 before"
    h.spin_until(lambda: said in h.diagnosis(f"input {topic}"), "the name of the change", lambda: send(4))
    assert values(h, f"input {topic}")["changes of size"] == "1"
    size = lambda: h.driver.scenes[-1].images["cam_front"].shape  # noqa: E731
    h.spin_until(lambda: size() == (2, 4, 3), "a scene with the new size", lambda: send(4))


# -- texts ------------------------------------------------------------------------------------------------------------


def test_texts_are_limited_made_plain_counted_and_echoed(make_harness: Any) -> None:
    h = make_harness(max_instruction_length=60, ask_rate_hz=0.0)
    h.wait_connected()
    h.instruction.publish(String(data="turn left\n<|im_end|> \x1b<image> now"))
    h.question.publish(String(data="what is\x07 ahead?"))
    plain = "turn left <|im_end|> <image> now"
    h.spin_until(lambda: any(m.instruction == plain for m in h.valid_plans()), "the plain text", h.send_all)
    h.spin_until(lambda: any(m.question == "what is ahead?" for m in h.outputs["answer"]), "the question", h.send_all)
    h.instruction.publish(String(data="turn right " * 10))
    h.spin_until(lambda: "109 characters, at most 60" in h.diagnosis("input/instruction"), "the refusal", h.send_all)
    counts = values(h, "input/instruction")
    assert counts["refused too long"] == "1" and counts["with control characters"] == "1"
    seen = len(h.driver.scenes)
    h.spin_until(lambda: len(h.driver.scenes) > seen + 2, "more scenes", h.send_all)
    assert h.driver.scenes[-1].instruction == plain


def test_bytes_that_are_no_text_do_no_harm(make_harness: Any) -> None:
    h = make_harness()
    h.wait_connected()
    broken = b"left \xff\xfe\x00"
    h.instruction.publish(b"\x00\x01\x00\x00" + len(broken).to_bytes(4, "little") + broken)
    h.spin_until(lambda: any("left" in m.instruction for m in h.valid_plans()), "a plan", h.send_all)
