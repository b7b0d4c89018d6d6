"""The agent through a drive's odd moments: late pictures, NaN compass, flipped latitude, a model that breaks."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from agent_data import CAMERA, GPS, NODES, StraightPlanner, data

from wamdiff2_core.agent.records import RouteRecords, record_folder
from wamdiff2_core.agent.route_agent import RouteAgent
from wamdiff2_core.agent.settings import AgentSettings
from wamdiff2_core.errors import DataError


def agent(planner: StraightPlanner | None = None, **settings: object) -> RouteAgent:
    return RouteAgent(AgentSettings(**settings), planner or StraightPlanner(), [CAMERA], NODES, GPS)  # type: ignore[arg-type]


def drive(one: RouteAgent, ticks: int, flipped: bool = False, **changes: object) -> list:
    """Straight east at 5 m/s from the route's start."""
    return [one.tick(data(10.0 + 0.25 * k, -20.0, 0.0, flipped=flipped, **changes), 0.05 * k) for k in range(ticks)]


def test_drives_straight_on_a_straight_road() -> None:
    one = agent()
    controls = drive(one, 100)
    assert all(abs(control.steer) < 0.02 for control in controls)
    assert all(control.brake == 0.0 for control in controls)
    assert one.report()["plans"] == 20  # every 0.25 s of 5 s
    assert one.guide.progress == pytest.approx(24.75, abs=1.0)


@pytest.mark.parametrize("flipped", [False, True])
def test_latitude_may_run_the_wrong_way(flipped: bool) -> None:
    one = agent()
    drive(one, 40, flipped=flipped)
    assert one.motion.on_map is not None
    assert (one.motion.on_map.x, one.motion.on_map.y) == pytest.approx((19.75, -20.0), abs=0.3)
    assert one.report()["gnss_projection"] == ("transverse_flipped" if flipped else "mercator")


def test_pictures_missing_on_the_first_ticks_brake_and_are_counted() -> None:
    planner = StraightPlanner()
    one = agent(planner)
    first = [one.tick(data(10.0, -20.0, 0.0, speed=0.0, cam_front=None), 0.05 * k) for k in range(3)]
    assert all(control.brake == 1.0 and control.throttle == 0.0 for control in first)
    assert not planner.scenes
    then = one.tick(data(10.0, -20.0, 0.0, speed=0.0), 0.15)
    assert len(planner.scenes) == 1 and then.brake == 0.0
    report = one.report()
    assert report["missing_pictures"] == {"cam_front": 3} and report["braking_ticks"] == 3


def test_a_picture_of_another_size_is_none() -> None:
    one = agent()
    one.tick(data(10.0, -20.0, 0.0, cam_front=np.zeros((10, 10, 4), np.uint8)), 0.0)
    assert one.report()["missing_pictures"] == {"cam_front": 1} and one.report()["plans"] == 0


def test_a_compass_that_says_nan_leaves_the_heading() -> None:
    one = agent()
    imu = np.array([0.0, 0.0, 9.81, 0.0, 0.0, 0.0, math.nan])
    drive(one, 40, IMU=imu)
    assert one.motion.on_map is not None
    assert one.motion.on_map.yaw == pytest.approx(0.0, abs=0.01)
    assert one.motion.gaps["compass"] == 40 and one.motion.gaps["imu"] == 0


def test_no_fix_brakes_until_there_is_one() -> None:
    one = agent()
    control = one.tick(data(10.0, -20.0, 0.0, GPS=np.full(3, math.nan)), 0.0)
    assert control.brake == 1.0 and one.report()["gaps"]["gnss"] == 1  # type: ignore[index]
    assert one.tick(data(10.0, -20.0, 0.0), 0.05).brake == 0.0


def test_an_exception_in_the_model_brakes_is_counted_and_ends_nothing() -> None:
    planner = StraightPlanner()
    one = agent(planner)
    drive(one, 10)
    planner.fails = RuntimeError("out of memory")
    broken = [one.tick(data(12.5 + 0.25 * k, -20.0, 0.0), 0.5 + 0.05 * k) for k in range(10)]
    assert all(control.brake == 1.0 for control in broken)
    report = one.report()
    assert report["exceptions"] == 2 and report["last_exception"] == "RuntimeError: out of memory"
    planner.fails = None
    assert one.tick(data(15.0, -20.0, 0.0, speed=0.0), 1.0).throttle > 0.0  # it drives on


def test_a_plan_that_failed_keeps_the_one_before_for_a_while() -> None:
    planner = StraightPlanner()
    one = agent(planner, max_plan_age_s=0.5)
    one.tick(data(10.0, -20.0, 0.0), 0.0)
    planner.refuses = True
    controls = [one.tick(data(10.0 + 0.25 * k, -20.0, 0.0), 0.05 * k) for k in range(1, 20)]
    assert controls[5].brake == 0.0 and controls[-1].brake == 1.0
    assert one.report()["failures"] == {"parse": 3}


def test_the_scene_says_the_turn_the_motion_and_shows_a_re_encoded_picture() -> None:
    planner = StraightPlanner()
    one = agent(planner)
    for k in range(3):
        one.tick(data(70.0 + 0.25 * k, -20.0, 0.0, speed=5.0), 0.05 * k)
    scene = planner.scenes[0]
    assert one.guide.instruction.startswith("turn left in")
    picture = scene.images["cam_front"]
    assert picture.shape == (24, 32, 3) and picture.dtype == np.uint8
    assert picture[0, 0, 0] > 150 > picture[0, 0, 2]  # BGRA (10, 20, 200) is red
    assert scene.ego.speed == 5.0


def test_a_plan_acts_when_it_would_have_been_ready() -> None:
    one = agent(latency_s=0.3)
    controls = drive(one, 20)
    assert [control.brake == 1.0 for control in controls[:6]] == [True] * 6
    assert controls[6].brake == 0.0
    assert one.report()["plans"] == 4  # asked at 0, 0.3, 0.6 and 0.9 s: one at a time


@pytest.mark.parametrize("name", ["follower", "waypoint_pid"])
def test_steers_to_the_right_side(name: str) -> None:
    class LeftPlanner(StraightPlanner):
        def plan(self, scene):  # type: ignore[no-untyped-def]
            made = super().plan(scene)
            made.points[:, 1] = 0.08 * made.points[:, 0] ** 2
            return made

    one = RouteAgent(AgentSettings(controller=name), LeftPlanner(), [CAMERA], NODES, GPS)
    steers = [one.tick(data(100.0, -20.0, 0.0), 0.05 * k).steer for k in range(5)]
    assert steers[-1] < -0.05  # left is negative in CARLA


def test_plans_that_do_not_belong_together_are_an_error() -> None:
    with pytest.raises(DataError, match="two plans"):
        RouteAgent(AgentSettings(), StraightPlanner(), [CAMERA], NODES, GPS[:2])


def test_records_go_below_save_path_and_replace_older_ones(tmp_path: Path) -> None:
    folder = record_folder(str(tmp_path), "RouteScenario_1_rep0")
    for count in (3, 2):
        records = RouteRecords(folder)
        for k in range(count):
            records.tick({"location": [float(k), 0.0, 0.0]})
        records.write({"plans": count})
    written = json.loads((tmp_path / "RouteScenario_1_rep0/metric_info.json").read_text())
    assert list(written) == ["0", "1"] and written["1"]["location"] == [1.0, 0.0, 0.0]
    assert json.loads((tmp_path / "RouteScenario_1_rep0/wamdiff2.json").read_text()) == {"plans": 2}
    assert record_folder(None, "name") is None and record_folder(str(tmp_path), "") is None
