"""Formulas against slow, plain ones: tracker, fits, polygons, boxes, paths; guards and two stages by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.signal import savgol_filter

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.navsim import comfort, geometry, guards, simulate, stages
from wamdiff2_core.evaluate.navsim import vehicle as car
from wamdiff2_core.evaluate.navsim.profiles import speeds_and_curvatures


def paths(count: int, seed: int = 0, slowest: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Smooth paths (N, 41, 3) and start states (N, 11) of random speeds and turns."""
    random = np.random.default_rng(seed)
    speed = random.uniform(0, 12, (count, 1)) + random.normal(0, 0.2, (count, 41)).cumsum(axis=1)
    speed = np.maximum(speed, slowest)
    heading = random.uniform(-3, 3, (count, 1)) + random.normal(0, 0.01, (count, 41)).cumsum(axis=1).cumsum(axis=1)
    x, y = (np.cumsum(0.1 * speed * turn(heading), axis=1) for turn in (np.cos, np.sin))
    start = np.zeros((count, 11))
    start[:, 0], start[:, 1], start[:, 2] = x[:, 0], y[:, 0], heading[:, 0]
    start[:, car.SPEED_X] = speed[:, 0]
    start[:, car.ACCEL_X] = random.normal(0, 1, count)
    return np.stack([x, y, heading], axis=2), start


def test_lateral_command_minimises_its_cost():
    """The steering rate is the least of (lateral^2 + 10 heading^2 + rate^2) after ten steps of the linear model."""
    poses, start = paths(6, slowest=2.0)
    _, curvatures = speeds_and_curvatures(poses)
    states = simulate.simulate(poses, start)
    ahead = np.concatenate([curvatures, np.repeat(curvatures[:, -1:], 9, axis=1)], axis=1)
    for drive, step in ((0, 0), (1, 7), (2, 20), (3, 33), (4, 39)):
        state, pose = states[drive, step], poses[drive, step]
        target = speeds_and_curvatures(poses)[0][drive, min(step + 10, 39)]
        acceleration = 10 / 11 * (target - state[car.SPEED_X])

        def cost(rate, state=state, pose=pose, acceleration=acceleration, bends=ahead[drive, step : step + 10]):
            dx, dy = state[:2] - pose[:2]
            lateral, turned = dy * math.cos(pose[2]) - dx * math.sin(pose[2]), state[2] - pose[2]
            turned, steer = math.remainder(turned, math.tau), state[car.STEER]
            for j in range(10):
                v = state[car.SPEED_X] + acceleration * 0.1 * j
                lateral, turned, steer = (
                    lateral + 0.1 * v * turned,
                    turned + 0.1 * v * (steer / car.WHEEL_BASE_M - bends[j]),
                    steer + 0.1 * rate,
                )
            return lateral**2 + 10 * turned**2 + rate**2

        rate = states[drive, step + 1, car.STEER_RATE] * 1.5  # the lag takes two thirds
        assert cost(rate) < min(cost(rate - 1e-3), cost(rate + 1e-3))


def test_few_and_many_drives_are_simulated_alike():
    poses, start = paths(simulate.FEW + 5)
    many = simulate.simulate(poses, start)
    few = np.concatenate([simulate.simulate(poses[k : k + 1], start[k : k + 1]) for k in range(len(poses))])
    np.testing.assert_allclose(many, few, atol=1e-9)


def test_profiles_are_the_least_squares_fits():
    poses, _ = paths(3, seed=5)
    speeds, curvatures = speeds_and_curvatures(poses)
    heading, moved = poses[:, :-1, 2], np.diff(poses[..., :2], axis=1)
    sums = np.tril(np.full((40, 40), 0.1))
    sums[:, 0] = 1.0
    for k in range(3):
        unit = np.stack([np.cos(heading[k]), np.sin(heading[k])], axis=1)
        rows = (0.1 * unit[:, :, None] * sums[:, None, :]).reshape(80, 40)
        penalty = np.zeros((38, 40))
        penalty[np.arange(37), np.arange(1, 38)] = 1e-2
        penalty[37, 38:] = -1e-2, 1e-2
        fitted = np.linalg.lstsq(np.vstack([rows, penalty]), np.append(moved[k].ravel(), np.zeros(38)), rcond=None)[0]
        np.testing.assert_allclose(speeds[k], sums @ fitted, atol=1e-8)
        rows = 0.1 * speeds[k][:, None] * sums
        penalty = np.diag([1e-5] + [1e-1] * 39)
        turned = np.append(np.diff(poses[k, :, 2]), np.zeros(40))
        fitted = np.linalg.lstsq(np.vstack([rows, penalty]), turned, rcond=None)[0]
        np.testing.assert_allclose(curvatures[k], sums @ fitted, atol=1e-6)


@pytest.mark.parametrize("order", [1, -1])
def test_points_in_a_polygon_with_a_notch(order):
    ring = np.array([[0, 0], [4, 0], [4, 4], [2, 1], [0, 4]], dtype=float)[::order]
    points = {(1, 1): True, (2, 2): False, (3.5, 3): True, (5, 1): False, (0, 2): False, (2, 0): False, (2, 1): False}
    x, y = np.array(list(points), dtype=float).T
    assert geometry.inside_polygon(x, y, geometry.edges_of(ring)).tolist() == list(points.values())


def test_boxes_touch_as_clipped_polygons_do():
    random = np.random.default_rng(3)
    half_a, half_b = np.array([2.5, 1.1]), np.array([2.0, 0.9])
    offset, turn = random.uniform(-6, 6, (400, 2)), random.uniform(-4, 4, 400)
    touch = geometry.boxes_touch(*offset.T, np.cos(turn), np.sin(turn), half_a, np.tile(half_b, (400, 1)))
    ring = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) * half_b
    for k in range(400):
        cos, sin = np.cos(turn[k]), np.sin(turn[k])
        corners = ring @ np.array([[cos, sin], [-sin, cos]]) + offset[k]
        as_polygon = geometry.box_touches_polygon(np.zeros((1, 2)), np.zeros(1), half_a, geometry.edges_of(corners))
        assert touch[k] == as_polygon[0]
    assert 100 < touch.sum() < 300


def test_a_box_within_a_polygon_touches_it():
    ring = np.array([[-50, -50], [50, -50], [50, 50], [-50, 50]], dtype=float)
    assert geometry.box_touches_polygon(np.zeros((1, 2)), np.zeros(1), car.HALF_SIZE_M, geometry.edges_of(ring))[0]


def test_along_a_path_the_first_of_equal_places_counts():
    path = np.array([[0, 0], [10, 0], [10, 0], [10, 10], [0, 10]], dtype=float)
    points = np.array([[4.0, 3.0], [12.0, -2.0], [5.0, 5.0], [0.0, 12.0]])
    np.testing.assert_allclose(geometry.along_path(points, path), [4.0, 10.0, 5.0, 30.0])
    for distance, farther in ((1.9, [1, 1, 1, 1]), (2.5, [1, 1, 1, 0]), (2.9, [1, 0, 1, 0]), (5.1, [0, 0, 0, 0])):
        assert geometry.farther_than(points, path, distance).tolist() == [bool(flag) for flag in farther]
    assert geometry.farther_than(points + 500.0, path, 3.0).all()


def test_filters_are_savgol():
    values = np.random.default_rng(0).normal(size=(3, 55))
    for window, order, derivative in ((8, 2, 0), (15, 2, 1), (5, 3, 2)):
        expected = savgol_filter(values, window, order, deriv=derivative, delta=0.1, axis=1)
        np.testing.assert_allclose(comfort._filtered(values, window, order, derivative), expected, atol=1e-7)


def straight(*legs: float) -> np.ndarray:
    plan = np.zeros((8, 3))
    plan[:, 0] = np.cumsum(legs)
    return plan


def test_guards_tell_backing_and_cut_plans_from_braking_ones():
    cruise, brake = straight(*[4.0] * 8), straight(4, 4, 3.2, 2.4, 1.6, 0.8, 0.1, 0)
    back, cut, thrown = straight(1, 1, 1, 0, -1, -1, 0, 0), straight(*[4.0] * 7, 0), straight(*[4.0] * 7, 9)
    assert [guards.reverses(plan) for plan in (cruise, brake, back, cut)] == [False, False, True, False]
    assert [guards.last_is_clipped(plan) for plan in (cruise, brake, back, cut, thrown)] == [False] * 3 + [True, True]
    turned = cruise.copy()
    turned[:, 2] = math.pi  # faces backwards from the first waypoint on
    assert guards.reverses(turned)
    creeping, jitter = ([[size * k, 0.0, 0.0] for k in range(1, 9)] for size in (-0.09, -0.04))
    assert guards.reverses(np.array(creeping)) and not guards.reverses(np.array(jitter))
    assert guards.l2_to_human(cruise, brake)[2:4] == pytest.approx([0.8, 2.4])


def member(start=(0.0, 0.0), end=(0.0, 0.0), jolt=0.0, **parts: float) -> stages.Member:
    names = ("nc", "dac", "ddc", "tlc", "ep", "ttc", "lk", "hc")
    full = {**dict.fromkeys(names, 1.0), **parts, "ec": None}
    shake = jolt * np.sin(np.arange(41))
    return stages.Member(full, np.array(start), np.array(end), np.abs(shake), np.zeros(41))


def test_two_stages_by_hand():
    members = {
        "a": member(end=(10.0, 0.0), ep=0.5), "b": member(end=(8.0, 0.0), nc=0.5),
        "a1": member(start=(10.0, 0.1), ttc=0.0), "b1": member(start=(8.0, 0.0)),
        "a2": member(start=(10.0, -0.3), dac=0.0), "b2": member(start=(8.0, 9.0), jolt=9.0),
    }  # fmt: skip
    groups = stages.read_groups({"groups": [{
        "now": "a", "before": "b", "interval_s": 0.5,
        "second_stage": [{"now": "a1", "before": "b1"}, {"now": "a2", "before": "b2"}],
    }]})  # fmt: skip
    result = stages.aggregate(groups, members)
    near, far = math.exp(-0.01 / 0.2), math.exp(-0.09 / 0.2)
    first_now, first_before = (5 * 0.5 + 5 + 6) / 16, 0.5
    second_now = near / (near + far) * 11 / 16
    second_before = 1.0  # b2 is 9 m away
    assert result["combined"] == pytest.approx((first_now * second_now + first_before * second_before) / 2)
    assert result["stage_one"]["score"] == pytest.approx((first_now + first_before) / 2)
    assert result["stage_two"]["score"] == pytest.approx((second_now + second_before) / 2)
    assert result["stage_two"]["ec"] == pytest.approx((near / (near + far) + 1) / 2)  # a2 shares the jolt of b2
    assert (result["groups"], result["scenes"]) == (1, 6)


def test_second_stage_scenes_that_are_all_far_weigh_the_same():
    far = stages.weights(np.zeros(2), np.array([[50.0, 0.0], [0.0, 80.0], [90.0, 0.0]]))
    assert far == pytest.approx([1 / 3] * 3)
    assert stages.weights(np.zeros(2), np.array([[0.0, 0.0], [0.0, 1.0]])) == pytest.approx(
        np.array([1, math.exp(-5)]) / (1 + math.exp(-5))
    )


GROUP = {"now": "a", "before": "b", "interval_s": 0.5, "second_stage": [{"now": "c", "before": "d"}]}


@pytest.mark.parametrize(
    "record, message",
    [
        ({}, "'groups' is missing"),
        ({"groups": []}, "a group or more"),
        ({"groups": [{**GROUP, "second_stage": []}]}, "a pair of scenes or more"),
        ({"groups": [{**GROUP, "interval_s": 1.0}]}, "interval_s: expected"),
        ({"groups": [{**GROUP, "before": "a"}]}, "'a' is there twice"),
        ({"groups": [GROUP, GROUP]}, "'a' is there twice"),
        ({"groups": [{**GROUP, "second_stage": [{"now": "c"}]}]}, "'before' is missing"),
    ],
)
def test_broken_groups_are_named(record, message):
    with pytest.raises(DataError, match=message):
        stages.read_groups(record)


def test_a_group_whose_scene_is_missing_is_not_scored():
    with pytest.raises(DataError, match="2 scenes were not scored, the first is 'c'"):
        stages.aggregate(stages.read_groups({"groups": [GROUP]}), {"a": member(), "b": member()})
