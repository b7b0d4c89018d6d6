"""Which tasks run when: rates, the plan first, no task left behind."""

from __future__ import annotations

from collections import Counter

from wamdiff2_ros.parameters import Settings
from wamdiff2_ros.worker import Schedule

SETTINGS = Settings(plan_rate_hz=0.0, detect_rate_hz=1.0, ask_rate_hz=0.5)


def run(
    settings: Settings, seconds: float, period_s: float, question: bool = True
) -> tuple[list[list[tuple[str, ...]]], Counter[str]]:
    schedule = Schedule()
    turns = [schedule.due(settings, 100.0 + k * period_s, question) for k in range(round(seconds / period_s))]
    return turns, Counter(task for turn in turns for batch in turn for task in batch)


def test_the_plan_comes_first_and_waits_for_one_other_task_at_most() -> None:
    turns, count = run(SETTINGS, 20.0, 0.2)
    assert all(turn[0] == ("plan",) and len(turn) <= 2 for turn in turns)
    assert all(len(batch) == 1 for turn in turns for batch in turn)
    assert count["plan"] == 100 and 18 <= count["detect"] <= 20 and 9 <= count["ask"] <= 10


def test_everything_due_in_one_batch_where_asked_for() -> None:
    turns, count = run(Settings(batch_tasks=True), 20.0, 0.2)
    assert turns[0] == [("plan", "detect", "ask")] and all(len(turn) == 1 for turn in turns)
    assert 18 <= count["detect"] <= 20


def test_rate_zero_means_every_scene_and_nobody_starves() -> None:
    _, count = run(Settings(detect_rate_hz=0.0, ask_rate_hz=0.0), 10.0, 0.1)
    assert count["plan"] == 100 and count["detect"] == count["ask"] == 50


def test_boxes_for_every_scene_leave_room_for_answers_on_a_slow_machine() -> None:
    _, count = run(Settings(detect_rate_hz=0.0, ask_rate_hz=0.5), 70.0, 0.7)
    assert 30 <= count["ask"] <= 35 and count["detect"] == 100 - count["ask"]
    schedule = Schedule()
    schedule.due(Settings(detect_rate_hz=0.0), 100.0, True)
    schedule.forget("ask")
    assert schedule.due(Settings(detect_rate_hz=0.0), 105.0, True) == [("plan",), ("ask",)]


def test_without_a_question_or_the_task_nothing_is_asked() -> None:
    _, count = run(SETTINGS, 10.0, 0.2, question=False)
    assert "ask" not in count
    turns, count = run(Settings(tasks=("detect",)), 10.0, 0.2)
    assert set(count) == {"detect"} and [] in turns
    _, count = run(Settings(plan_rate_hz=2.0, tasks=("plan",)), 10.0, 0.1)
    assert 17 <= count["plan"] <= 20


def test_a_new_question_is_due_at_once() -> None:
    schedule = Schedule()
    schedule.due(SETTINGS, 100.0, True)
    schedule.due(SETTINGS, 100.1, True)
    assert schedule.due(SETTINGS, 100.2, True) == [("plan",)]
    schedule.forget("ask")
    assert schedule.due(SETTINGS, 100.3, True) == [("plan",), ("ask",)]
