"""A recorder that has to subscribe anew: what had arrived by then is in the bag."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ros
rclpy = pytest.importorskip("rclpy")

from rclpy.context import Context  # noqa: E402
from rclpy.node import Node  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402
from rclpy.qos import QoSProfile, ReliabilityPolicy  # noqa: E402
from rosbags.highlevel import AnyReader  # noqa: E402
from std_msgs.msg import String  # noqa: E402

from wamdiff2_ros.recorder_node import RecorderNode  # noqa: E402

LIMIT_S = 120.0  # against hanging only
TOPIC = "/made/texts"


@pytest.fixture
def context() -> Iterator[Context]:
    made = Context()
    rclpy.init(context=made)
    yield made
    rclpy.shutdown(context=made)


def until(true: Callable[[], object], do: Callable[[], None]) -> None:
    """Discovery has threads of its own: nothing is spun here, so no callback ever has its turn."""
    until_s = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < until_s
        do()
        time.sleep(0.02)


def test_what_waits_for_its_callback_is_recorded_before_a_topic_is_subscribed_anew(
    context: Context, tmp_path: Path
) -> None:
    values = {"path": str(tmp_path / "bag"), "prefixes": ["/made/"], "min_free_mb": 0.0}
    overrides = [Parameter(name, value=value) for name, value in values.items()]
    recorder = RecorderNode(context=context, parameter_overrides=overrides)
    sender = Node("sender", context=context)
    try:
        reliable = sender.create_publisher(String, TOPIC, QoSProfile(depth=100))
        until(reliable.get_subscription_count, recorder._look)
        for k in range(20):
            reliable.publish(String(data=str(k)))
        sender.create_publisher(String, TOPIC, QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT))
        until(lambda: TOPIC in recorder._notes, recorder._look)
    finally:
        recorder.close()
        recorder.destroy_node()
        sender.destroy_node()
    with AnyReader([tmp_path / "bag"]) as reader:
        found: list[Any] = [reader.deserialize(raw, c.msgtype) for c, _, raw in reader.messages()]
    assert [message.data for message in found] == list(map(str, range(20)))
