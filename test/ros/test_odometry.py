"""Odometry history: interpolation, motion for the prompt, time going back."""

from __future__ import annotations

import math

import pytest

from wamdiff2_ros.odometry import OdometryHistory, OdometrySample


def sample(
    stamp_s: float, x: float = 0.0, yaw: float = 0.0, speed: float = 0.0, yaw_rate: float = 0.0
) -> OdometrySample:
    return OdometrySample(stamp_s, x, 0.0, yaw, (speed, 0.0), yaw_rate)


def test_between_two_samples() -> None:
    history = OdometryHistory()
    history.add(sample(1.0, x=10.0, yaw=math.pi - 0.1))
    history.add(sample(1.1, x=12.0, yaw=-math.pi + 0.1))
    middle = history.at(1.05)
    assert middle is not None and middle.x == pytest.approx(11.0)
    assert math.remainder(middle.yaw - math.pi, 2 * math.pi) == pytest.approx(0.0)  # the short way round


def test_outside_the_nearest_counts_and_empty_is_none() -> None:
    history = OdometryHistory()
    assert history.at(1.0) is None and history.ego_state(1.0) is None
    history.add(sample(1.0, x=10.0))
    assert history.at(0.0) == history.at(9.0) == history.newest()


def test_motion() -> None:
    history = OdometryHistory()
    for k in range(11):
        history.add(sample(1.0 + 0.05 * k, speed=5.0 + 0.1 * k, yaw_rate=0.2))
    ego = history.ego_state(1.5)
    assert ego is not None and ego.velocity[0] == pytest.approx(6.0)
    assert ego.acceleration[0] == pytest.approx(2.0) and ego.acceleration[1] == pytest.approx(1.2)


def test_time_going_back_and_a_limited_memory() -> None:
    history = OdometryHistory()
    for k in range(200):
        history.add(sample(10.0 + 0.1 * k, x=float(k)))
    oldest = history.at(0.0)
    assert oldest is not None and oldest.stamp_s > 25.0
    history.add(sample(1.0))
    assert history.at(29.0) == history.newest()
