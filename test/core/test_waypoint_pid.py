"""The usual waypoint PID against outputs of the original, tick by tick, and its door to our nodes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.waypoint_pid import PidGains, WaypointPid, WaypointPidConfig, pedals, to_right_forward

GOLDEN = json.loads(gzip.decompress((Path(__file__).parents[1] / "golden/bench2drive/pid.json.gz").read_bytes()))
STRAIGHT = np.column_stack([np.zeros(6), np.arange(1, 7) * 2.5])  # x right, y forward: 5 m/s
AHEAD = (0.0, 30.0)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["id"])
def test_all_outputs_of_every_tick_are_those_of_the_original(case):
    pid = WaypointPid()
    for tick, expected in zip(case["ticks"], case["expected"]):
        made = pid.step(np.array(tick["waypoints"]), tick["speed"], tuple(tick["target"]))._asdict()
        assert set(made) == set(expected)
        assert made["brake"] is expected["brake"]
        for name in expected:  # the file is rounded to six digits
            assert made[name] == pytest.approx(expected[name], abs=6e-7), name


def test_the_golden_set_is_whole():
    assert len(GOLDEN["cases"]) == 40
    assert {len(case["ticks"]) for case in GOLDEN["cases"]} == {20}


def test_control_is_the_same_step_in_our_axes():
    """A plan to the left: steering left is positive with us, negative in CARLA."""
    s = np.arange(1, 9) * 2.0
    plan = np.column_stack([s, 0.03 * s**2])
    target = (25.0, 12.0)
    made = WaypointPid().step(to_right_forward(plan[:6]), 3.0, (-target[1], target[0]))
    control = WaypointPid().control(plan, 3.0, target)
    assert made.steer < 0.0 < control.steer
    assert control.steer == -made.steer and control.throttle == made.throttle and control.brake == 0.0


def test_only_the_configured_number_of_points_counts():
    plan = np.column_stack([np.arange(1, 9) * 2.0, np.zeros(8)])  # 4 m/s
    faster = plan.copy()
    faster[6:, 0] = (40.0, 70.0)
    six, eight = WaypointPidConfig(), WaypointPidConfig(points=8)
    ahead = (20.0, 0.0)
    assert WaypointPid(six).control(plan, 4.2, ahead) == WaypointPid(six).control(faster, 4.2, ahead)
    assert WaypointPid(eight).control(plan, 4.2, ahead) != WaypointPid(eight).control(faster, 4.2, ahead)


def test_standing_plan_brakes_without_dividing_by_zero():
    made = WaypointPid().step(np.zeros((6, 2)), 0.0, AHEAD)
    assert made.brake is True and made.throttle == 0.0 and made.desired_speed == 0.0


def test_speed_loop_moves_on_while_braking():
    """Braking zeroes the throttle, not the loop's memory: what follows differs from a fresh controller."""
    slow = np.column_stack([np.zeros(6), np.arange(1, 7) * 0.15])  # 0.3 m/s: below the brake speed
    braked, fresh = WaypointPid(), WaypointPid()
    assert braked.step(slow, 0.1, AHEAD).brake
    assert braked.step(STRAIGHT, 4.9, AHEAD).throttle != fresh.step(STRAIGHT, 4.9, AHEAD).throttle


def test_reset_forgets():
    used = WaypointPid()
    used.step(STRAIGHT, 1.0, (8.0, 5.0))
    used.reset()
    assert used.step(STRAIGHT, 4.9, AHEAD) == WaypointPid().step(STRAIGHT, 4.9, AHEAD)


@pytest.mark.parametrize(
    ("throttle", "brake", "expected"),
    [(0.5, 1.0, (0.5, 1.0)), (0.0, 0.04, (0.0, 0.0)), (0.6, 0.5, (0.6, 0.0)), (0.9, 0.0, (0.75, 0.0))],
)
def test_pedals_as_the_agents_set_them(throttle, brake, expected):
    assert pedals(throttle, brake) == expected


@pytest.mark.parametrize(
    ("waypoints", "speed", "target"),
    [
        (STRAIGHT[:1], 1.0, AHEAD),
        (np.zeros((6, 3)), 1.0, AHEAD),
        (np.full((6, 2), np.nan), 1.0, AHEAD),
        (STRAIGHT, float("nan"), AHEAD),
        (STRAIGHT, 1.0, (float("inf"), 1.0)),
        (STRAIGHT, 1.0, (1.0, 2.0, 3.0)),
    ],
)
def test_unusable_input_is_named_and_changes_nothing(waypoints, speed, target):
    pid = WaypointPid()
    with pytest.raises(DataError):
        pid.step(waypoints, speed, target)
    assert pid.step(STRAIGHT, 4.9, AHEAD) == WaypointPid().step(STRAIGHT, 4.9, AHEAD)


def test_plan_of_another_shape_is_named():
    with pytest.raises(DataError, match=r"\(N, 2\)"):
        WaypointPid().control(np.zeros(12), 1.0, (5.0, 0.0))


@pytest.mark.parametrize("wrong", [{"points": 1}, {"step_s": 0.0}, {"turn": PidGains(1.0, 1.0, 1.0, 0)}])
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(ConfigError):
        WaypointPidConfig(**wrong)
