"""The player and a driver node get to know each other before anything is sent: an answer nobody hears is lost."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

import rclpy  # noqa: E402
from nav_msgs.msg import Odometry  # noqa: E402
from rclpy.context import Context  # noqa: E402
from rosgraph_msgs.msg import Clock  # noqa: E402
from sensor_msgs.msg import CompressedImage  # noqa: E402

from wamdiff2_ros import replay_player  # noqa: E402
from wamdiff2_ros.qos import OUTPUT  # noqa: E402
from wamdiff2_ros.replay_player import KINDS, NODE, PREFIX, NoAnswer, Player  # noqa: E402

INPUTS = {
    f"{PREFIX}/clock": Clock, f"{PREFIX}/cam_front/image/compressed": CompressedImage, f"{PREFIX}/odometry": Odometry,
}  # fmt: skip
FOOTAGE: Any = SimpleNamespace(
    parts=SimpleNamespace(topics={"cam_front": "/a", "odometry": "/b", "route": "/c"}),
    cameras=["cam_front"],
    bag=SimpleNamespace(topics=lambda: {"/a": "sensor_msgs/msg/CompressedImage", "/b": "nav_msgs/msg/Odometry"}),
)


@pytest.fixture
def driver() -> Iterator[Any]:
    """A node of the driver's name that neither hears nor says anything yet."""
    context = Context()
    rclpy.init(context=context)
    node = rclpy.create_node(NODE, context=context)
    yield node
    node.destroy_node()
    rclpy.try_shutdown(context=context)


def test_nothing_is_sent_before_the_driver_hears_and_is_heard(driver, monkeypatch) -> None:
    monkeypatch.setattr(replay_player, "MEET_S", 0.0)
    done: list[str] = []

    def alive() -> None:
        """Called all the time: gives the driver an ear or a mouth more at each tenth call."""
        alive.calls += 1  # type: ignore[attr-defined]
        ears, parts = [one for one in INPUTS if one not in done], [one for one in KINDS if one not in done]
        if alive.calls % 10 == 0 and ears + parts:  # type: ignore[attr-defined]
            if ears:
                driver.create_subscription(INPUTS[ears[0]], ears[0], lambda _: None, OUTPUT)
            else:
                driver.create_publisher(KINDS[parts[0]], f"/{NODE}/output/{parts[0]}", OUTPUT)
            done.append((ears + parts)[0])

    alive.calls = 0  # type: ignore[attr-defined]
    with Player(FOOTAGE, "compressed") as player:
        player.wait_for_driver(alive)
    assert done == [*INPUTS, *KINDS]


@pytest.mark.parametrize(("ears", "told"), [(2, "does not listen"), (3, "listens, but has no outputs")])
def test_a_driver_that_lacks_something_is_told_apart(driver, monkeypatch, ears: int, told: str) -> None:
    monkeypatch.setattr(replay_player, "START_LIMIT_S", 2.0)
    for topic in list(INPUTS)[:ears]:
        driver.create_subscription(INPUTS[topic], topic, lambda _: None, OUTPUT)
    for part in list(KINDS)[1:]:
        driver.create_publisher(KINDS[part], f"/{NODE}/output/{part}", OUTPUT)
    with Player(FOOTAGE, "compressed") as player, pytest.raises(NoAnswer, match=told):
        player.wait_for_driver(lambda: None)


def test_a_driver_that_ends_meanwhile_is_told_at_once(driver) -> None:
    def over() -> None:
        raise RuntimeError("the node ended")

    with Player(FOOTAGE, "compressed") as player, pytest.raises(RuntimeError, match="the node ended"):
        player.wait_for_driver(over)
