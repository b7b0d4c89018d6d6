"""The witness of the fault test writes down when something was said, not when it had time to hear it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.ros
rclpy = pytest.importorskip("rclpy")

from rclpy.context import Context  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.node import Node  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402

from wamdiff2.msg import Trajectory  # noqa: E402
from wamdiff2_ros.faults.events import read_events  # noqa: E402
from wamdiff2_ros.faults.watcher import QOS, WatcherNode, sent_s  # noqa: E402

LIMIT_S = 120.0  # against hanging only


def test_a_witness_that_was_kept_waiting_tells_the_time_of_publication(tmp_path: Path) -> None:
    context = Context()
    rclpy.init(context=context)
    log = Parameter("log", value=str(tmp_path / "witness.jsonl"))
    watcher, driver = WatcherNode(context=context, parameter_overrides=[log]), Node("driver", context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(watcher)
    try:
        publisher = driver.create_publisher(Trajectory, "/wamdiff2/output/trajectory", QOS)
        until_s = time.monotonic() + LIMIT_S
        while not publisher.get_subscription_count():
            assert time.monotonic() < until_s
            time.sleep(0.02)
        before_s = time.monotonic()
        publisher.publish(Trajectory())
        after_s = time.monotonic()
        time.sleep(2.0)
        while not (events := list(read_events(tmp_path / "witness.jsonl"))):
            assert time.monotonic() < until_s
            executor.spin_once(timeout_sec=0.1)
    finally:
        executor.shutdown()
        watcher.destroy_node()
        driver.destroy_node()
        rclpy.shutdown(context=context)
    assert [event["kind"] for event in events] == ["trajectory"]
    assert before_s - 1.0 < events[0]["at_s"] < after_s + 1.0


def test_without_a_time_of_publication_it_is_now() -> None:
    before_s = time.monotonic()
    assert before_s <= sent_s({"source_timestamp": 0}) <= time.monotonic()
