"""Deadline mode: calibration within its time, one chooser per kind of answer, and the node with a slow driver."""

from __future__ import annotations

from typing import Any

import pytest

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.scene import Cost, Failure, FailureKind
from wamdiff2_ros.deadline_mode import DeadlineMode, kinds_of_answers
from wamdiff2_ros.parameters import Settings

COST_MS = {"8x8": 300.0, "16x8": 150.0, "32x8": 10.0, "32x4": 5.0, "32x2": 2.0}
PLAN = ("plan",)


def dial(settings: Settings) -> str:
    return f"{settings.block_size}x{settings.steps}"


class Bench:
    """A clock that an `ask` moves on."""

    def __init__(self, factor: float = 1.0, broken: tuple[str, ...] = ()) -> None:
        self.now_s = 0.0
        self.factor = factor
        self.broken = broken
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def ask(self, settings: Settings, tasks: tuple[str, ...]) -> None:
        self.asked.append((dial(settings), tasks))
        if dial(settings) in self.broken:
            raise RuntimeError("out of memory\nand pages of advice")
        self.now_s += COST_MS[dial(settings)] * self.factor * 1e-3

    def clock(self) -> float:
        return self.now_s


def test_calibration_goes_from_cheap_to_dear_and_stops_where_it_is_hopeless() -> None:
    mode, bench = DeadlineMode(), Bench()
    settings = Settings(deadline_ms=60.0, tasks=PLAN)
    lines = mode.calibrate(settings, bench.ask, bench.clock)
    assert [name for name, _ in bench.asked] == ["32x2", "32x2", "32x4", "32x4", "32x8", "32x8", "16x8", "16x8"]
    assert lines == ["plan 32x2: 2 ms", "plan 32x4: 5 ms", "plan 32x8: 10 ms", "plan 16x8: 150 ms"]
    chosen, why = mode.settings_for(settings, PLAN, 0.0)
    assert dial(chosen) == "32x8" and why.startswith("32x8: expected 10 of 60 ms; next better 16x8: 150 ms")
    assert chosen.threshold == settings.threshold and chosen.tasks == settings.tasks


def test_calibration_keeps_to_its_time_shared_by_the_kinds_of_answers() -> None:
    mode, bench = DeadlineMode(), Bench(factor=50.0)
    settings = Settings(deadline_ms=1e4, deadline_calibration_s=2.0, tasks=("plan", "detect"))
    lines = mode.calibrate(settings, bench.ask, bench.clock)
    assert "plan 32x8 and better: not measured, the time for calibration is over" in lines
    assert {tasks for _, tasks in bench.asked} == {("plan",), ("detect",)}
    assert bench.now_s <= 2.0


def test_a_setting_that_does_not_run_is_left_out_and_all_of_them_are_an_error() -> None:
    mode, bench = DeadlineMode(), Bench(broken=("32x8",))
    settings = Settings(deadline_ms=60.0, tasks=PLAN)
    assert "plan 32x8: does not run: out of memory" in mode.calibrate(settings, bench.ask, bench.clock)
    assert dial(mode.settings_for(settings, PLAN, 0.0)[0]) == "32x4"
    with pytest.raises(ConfigError, match="no setting for the deadline is left"):
        DeadlineMode().calibrate(settings, Bench(broken=tuple(COST_MS)).ask, bench.clock)


def test_kinds_are_apart_and_a_missed_budget_is_counted() -> None:
    mode = DeadlineMode()
    settings = Settings(deadline_ms=100.0, block_size=32, steps=8)
    plan, why = mode.settings_for(settings, PLAN, 0.0)
    assert dial(plan) == "32x8" and "nothing has been measured" in why
    mode.measured(plan, PLAN, 400.0, {"plan": "a plan"})
    assert dial(mode.settings_for(settings, PLAN, 0.1)[0]) == "32x2"
    assert dial(mode.settings_for(settings, ("detect",), 0.1)[0]) == "32x8"
    status = mode.status(settings)
    assert status is not None and (status.answers, status.missed, mode.missed) == (1, 1, 1)
    assert set(status.choices) == {"plan", "detect"}


def test_what_was_not_decoded_says_nothing_about_the_cost() -> None:
    mode = DeadlineMode()
    settings = Settings(deadline_ms=100.0)
    for kind in (FailureKind.INPUT, FailureKind.INVALID):
        mode.measured(settings, PLAN, 0.1, {"plan": Failure(kind, "")})
    assert "nothing has been measured" in mode.settings_for(settings, PLAN, 0.0)[1]
    mode.measured(settings, PLAN, 50.0, {"plan": Failure(FailureKind.PARSE, "", cost=Cost())})
    assert "expected 50" in mode.settings_for(settings, PLAN, 0.1)[1]


def test_without_a_deadline_settings_are_as_they_are() -> None:
    mode, settings = DeadlineMode(), Settings(block_size=7)
    mode.measured(settings, PLAN, 50.0, {"plan": "a plan"})
    assert mode.settings_for(settings, PLAN, 0.0) == (settings, "") and mode.status(settings) is None


def test_other_dials_are_learnt_afresh() -> None:
    mode = DeadlineMode()
    mode.measured(Settings(deadline_ms=9.0), PLAN, 50.0, {})
    other = Settings(deadline_ms=9.0, deadline_dials=("4x4",), block_size=16)
    chosen, why = mode.settings_for(other, PLAN, 0.0)
    assert (dial(chosen), why) == ("16x8", "16x8: nothing has been measured yet")
    mode.measured(chosen, PLAN, 1.0, {})
    assert dial(mode.settings_for(other, PLAN, 0.1)[0]) == "4x4"


def test_kinds_of_answers_are_the_batches() -> None:
    assert kinds_of_answers(Settings(batch_tasks=True)) == [("plan", "detect", "ask")]
    assert kinds_of_answers(Settings()) == [("plan",), ("detect",), ("ask",)]


@pytest.mark.ros
def test_the_node_keeps_to_a_deadline_and_says_how(make_harness: Any) -> None:
    pytest.importorskip("rclpy")
    from dial_driver import DialDriver
    from rclpy.parameter import Parameter

    h = make_harness(deadline_ms=100.0, tasks=["plan"])
    h.driver = slow = DialDriver(COST_MS)
    h.wait_connected()

    def used() -> str:
        return f"{h.outputs['stats'][-1].block_size}x{h.outputs['stats'][-1].steps}"

    h.spin_until(lambda: h.outputs["stats"] and used() == "32x8", "the best that fits", h.send_all)
    stats = h.outputs["stats"][-1]
    assert stats.deadline_ms == 100.0 and stats.deadline_choice.startswith("32x8: expected")
    slow.load = 25.0  # 250, 125, 50 ms
    h.spin_until(lambda: used() in ("32x4", "32x2"), "a step down", h.send_all)
    assert h.outputs["stats"][-1].deadline_missed >= 1
    slow.load = 1.0
    h.spin_until(lambda: used() == "32x8", "a step up", h.send_all)
    assert all(f"{s.block_size}x{s.steps}" in s.deadline_choice for s in h.outputs["stats"])
    assert slow.agrees(h.outputs["stats"])
    assert h.node.set_parameters([Parameter("deadline_ms", value=1)])[0].successful
    h.spin_until(lambda: "no setting meets 1 ms" in h.diagnosis(": deadline"), "the warning", h.send_all)
    said = "no setting meets 1 ms: the fastest, "
    h.spin_until(lambda: said in h.outputs["stats"][-1].deadline_choice, "the same in stats", h.send_all)
    assert h.node.set_parameters([Parameter("deadline_ms", value=0.0)])[0].successful
    h.spin_until(lambda: h.outputs["stats"][-1].deadline_ms == 0.0, "no deadline", h.send_all)
    assert h.outputs["stats"][-1].deadline_choice == "" and used() == "32x8"  # as set
