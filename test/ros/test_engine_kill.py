"""A driver node on the captured engine, killed with -9 and started again: real processes, the real checkpoint."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

from remote import Remote  # noqa: E402

from wamdiff2.msg import Trajectory  # noqa: E402
from wamdiff2_ros.parameters import Settings  # noqa: E402

TINY = Path(__file__).parents[2] / "checkpoints" / "tiny"
OPTIONS = {
    "checkpoint": str(TINY), "kernels": "torch", "tasks": "[plan]", "block_size": 32, "steps": 2, "rule": "ordered",
    "threads": 1, "deadline_dials": "[32x2]", "max_plan_age_s": 10.0, "max_frame_age_s": 10.0,
    "odometry_max_age_s": 10.0, "on_stale_plan": "silence",
}  # fmt: skip
LIMIT_S = 150.0  # to load, to make an engine ready and to plan, on a machine that all share


@pytest.fixture
def start() -> Iterator[Callable[[], Remote]]:
    """Starts a node; what is left of it is ended afterwards."""
    begun: list[Remote] = []

    def make() -> Remote:
        arguments = [word for name, value in OPTIONS.items() for word in ("-p", f"{name}:={value}")]
        begun.append(Remote("wamdiff2_ros.driver_node", *arguments, cameras=Settings().cameras, limit_s=LIMIT_S))
        return begun[-1]

    yield make
    for remote in begun:
        remote.close()


@pytest.mark.timeout(600)
def test_a_node_on_the_engine_is_killed_twice_and_plans_again_each_time(start: Callable[[], Remote]) -> None:
    assert killed(start(), answering=False)
    assert any(killed(start(), answering=True) for _ in range(5))
    node = start()
    began_s = time.time()
    node.until(lambda: len(node.plans()) > 2, "plans after two kills", node.send)
    assert all(taken_s(m) >= began_s for m in node.plans()) and node.stats[-1].failures_invalid == 0
    assert node.end(signal.SIGINT) == 0


def killed(node: Remote, answering: bool) -> bool:
    """Kill a node that plans, idle or in the middle of an answer. False if that answer was there before the signal."""
    began_s = time.time()
    node.until(lambda: node.plans() and node.stats, "a plan", node.send)
    assert {m.kernels for m in node.stats} == {"engine torch"}
    assert all(taken_s(m) >= began_s for m in node.plans())  # nothing of the life before
    if answering:
        assert node.set(block_size=1, steps=1) == []  # an answer of many passes
        node.until(lambda: node.stats[-1].block_size == 1, "block size 1", node.send)
    asked_s = time.time()
    if answering:
        node.send(asked_s)
        time.sleep(0.1)
    code = node.end(signal.SIGKILL)
    assert code == -signal.SIGKILL and "Traceback" not in node.log
    heard(node)
    return not answering or all(taken_s(m) < asked_s - 1e-6 for m in node.trajectories)


def heard(node: Remote) -> None:
    """Take in what is still on its way from a process that is gone."""
    until_s = time.monotonic() + 1.0
    while time.monotonic() < until_s:
        node.executor.spin_once(timeout_sec=0.05)


def taken_s(message: Trajectory) -> float:
    """When the pictures of a trajectory were taken."""
    return message.header.stamp.sec + message.header.stamp.nanosec * 1e-9
