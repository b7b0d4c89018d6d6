"""The dial turned between and during answers: each answer is made with exactly one setting, which its stats state."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

from dial_driver import DialDriver  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402

from wamdiff2_ros.conversions import stamp_seconds  # noqa: E402

TURNS = (
    (4, 2, "static", 0.5), (8, 8, "dynamic", 0.9), (16, 4, "sequential", 0.25), (32, 1, "dynamic", 1.0),
    (32, 3, "ordered", 0.625),
)  # fmt: skip


def test_every_answer_is_made_with_one_setting_and_says_which(make_harness: Any) -> None:
    h = make_harness(tasks=["plan"])
    h.driver = driver = DialDriver({f"{block}x{steps}": 20.0 for block, steps, _, _ in TURNS})
    h.wait_connected()
    turned = 0

    def turn() -> None:
        nonlocal turned
        values = dict(zip(("block_size", "steps", "rule", "threshold"), TURNS[turned % len(TURNS)], strict=True))
        parameters = [Parameter(name, value=value) for name, value in values.items()]
        assert h.node.set_parameters_atomically(parameters).successful
        turned += 1
        h.send_all()

    turn()
    h.spin_until(lambda: len(h.outputs["stats"]) > 40, "answers", turn)
    told = {(m.block_size, m.steps, m.rule, round(m.threshold, 3)) for m in h.outputs["stats"]}
    assert told == set(TURNS) and driver.agrees(h.outputs["stats"])
    assert turned > 40 and len({m.header.stamp.nanosec for m in h.outputs["stats"]}) > 40


def test_tasks_and_rates_apply_from_the_next_scene(make_harness: Any) -> None:
    h = make_harness(tasks=["plan"])
    h.wait_connected()
    h.spin_until(lambda: len(h.outputs["stats"]) > 2, "plans", h.send_all)
    assert {tuple(m.tasks) for m in h.outputs["stats"]} == {("plan",)}
    both = [Parameter("tasks", value=["plan", "detect"]), Parameter("detect_rate_hz", value=0)]
    assert h.node.set_parameters_atomically(both).successful
    h.spin_until(lambda: len(h.outputs["boxes"]) > 3, "boxes", h.send_all)
    assert h.node.set_parameters([Parameter("tasks", value=["detect"])])[0].successful
    alone_s = h.now_s()  # scenes of later pictures are begun without a plan
    later = lambda name: [m for m in h.outputs[name] if stamp_seconds(m.header.stamp) > alone_s]  # noqa: E731
    h.spin_until(lambda: len(later("boxes")) > 8, "more boxes", h.send_all)
    assert {tuple(m.tasks) for m in later("stats")} == {("detect",)} and not later("trajectory")
