"""A world repeats itself bytewise, can be rewound, and knows when a drive is over. No pictures here."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.rig import load_rig
from wamdiff2_core.scene import Command
from wamdiff2_sim.roads.roadmap import load_map
from wamdiff2_sim.roads.route import Route
from wamdiff2_sim.types import LightState, Pose, VehicleControl, WorldState, random_weather
from wamdiff2_sim.vehicle import MAX_ACCEL_MPS2, VehicleState, step_vehicle
from wamdiff2_sim.world import World

MAP = "procedural:1"


def controls(n: int, seed: int = 0) -> list[VehicleControl]:
    """Wild but repeatable driving."""
    rng = np.random.default_rng(seed)
    return [
        VehicleControl(float(s), float(t), float(b > 0.8)) for s, t, b in rng.uniform((-0.2, 0, 0), (0.2, 1, 1), (n, 3))
    ]


def flat(state: WorldState) -> bytes:
    """All numbers of a state."""
    rows = [state.time, *dataclasses.astuple(state.ego), state.speed, state.acceleration, state.yaw_rate, state.route_s]
    for actor in state.actors:
        rows += [v for v in dataclasses.astuple(actor) if isinstance(v, (int, float))]
    return np.array([*rows, *state.lights.values()], dtype=np.float64).tobytes()


def test_same_seed_and_controls_give_bytewise_equal_states():
    one, two = World(MAP, seed=5, traffic=(25, 15)), World(MAP, seed=5, traffic=(25, 15))
    assert one.weather == two.weather
    for control in controls(300):
        assert flat(one.step(control)) == flat(two.step(control))
    assert one.score.summary() == two.score.summary()
    other = World(MAP, seed=6, traffic=(25, 15))
    assert flat(other.state) != flat(one.reset())


def test_reset_repeats_and_reset_with_a_seed_changes():
    world = World(MAP, seed=5, traffic=(12, 8))
    first = flat(world.state)
    for control in controls(40):
        world.step(control)
    assert flat(world.reset()) == first
    assert flat(world.reset(seed=6)) != first


def test_snapshot_and_restore_replay_the_same_future():
    world = World(MAP, seed=2, traffic=(25, 15))
    for control in controls(60):
        world.step(control)
    saved = world.snapshot()
    before = flat(world.state)
    futures = []
    for _ in range(2):
        assert flat(world.restore(saved)) == before
        futures.append([flat(world.step(control)) for control in controls(80, seed=1)])
    assert futures[0] == futures[1]


def test_state_is_made_of_actors_and_lights_of_the_map():
    world = World("Town10HD", seed=1, traffic=(30, 20))
    state = world.state
    assert set(state.lights) == set(world.map.light_groups)
    assert all(isinstance(light, LightState) for light in state.lights.values())
    assert len({actor.id for actor in state.actors}) == len(state.actors)
    assert {actor.kind for actor in state.actors} >= {"car", "pedestrian"}
    for actor in state.actors:
        assert np.hypot(actor.x - state.ego.x, actor.y - state.ego.y) < 125.0
        if actor.kind != "pedestrian":
            place = world.map.lanes[actor.lane_id].point_at(actor.s)
            assert np.hypot(actor.x - place[0], actor.y - place[1]) < 2.5


def test_a_route_driven_to_its_end_is_complete():
    road_map = load_map(MAP)
    world = World(road_map, seed=4, traffic=(0, 0))
    route = Route.from_points(world.route.points[:60], road_map)
    world.reset(route)
    for _ in range(600):
        ahead = world.state.ego.to_local(route.points_at(np.array([world.state.route_s + 5.0]))[:, :2])[0]
        world.step(VehicleControl(float(np.clip(0.4 * ahead[1], -1, 1)), 0.4 if world.state.speed < 6 else 0.0))
        if world.done:
            break
    assert world.end_reason == "arrived"
    assert world.score.route_completion == 1.0
    assert world.score.collisions == 0
    assert 50.0 < world.score.distance < 62.0


def test_standing_still_ends_as_stuck_and_leaving_the_route_as_off_route():
    world = World("Town05", seed=1, traffic=(0, 0))
    route = next(Route.from_points(lane.points, world.map) for lane in world.map.lanes.values()
                 if lane.junction_id < 0 and lane.light_group < 0 and lane.length > 60.0)  # fmt: skip
    world.reset(route)
    for _ in range(1300):
        world.step(VehicleControl(brake=1.0), 0.05)
        if world.done:
            break
    assert world.end_reason == "stuck"
    assert world.score.summary()["stuck"]
    assert 59.0 < world.state.time < 62.0
    world.reset(route)
    world.teleport(world.state.ego.ahead(10.0), 0.0)
    pose = world.state.ego
    world.teleport(Pose(pose.x - 30.0 * np.sin(pose.yaw), pose.y + 30.0 * np.cos(pose.yaw), pose.z, pose.yaw), 5.0)
    world.step(VehicleControl())
    assert world.end_reason == "off_route"


def test_teleport_sets_pose_speed_and_progress():
    world = World(MAP, seed=3, traffic=(5, 0))
    x, y, z = world.route.point_at(40.0)
    state = world.teleport(Pose(x, y, z, world.route.heading_at(40.0)), 7.0)
    assert state.speed == 7.0
    assert state.route_s == pytest.approx(40.0, abs=0.5)
    after = world.step(VehicleControl(throttle=0.2))
    assert after.route_s == pytest.approx(40.35, abs=0.5)


def test_instruction_and_ego_state_follow_the_route():
    world = World(MAP, seed=3, traffic=(0, 0))
    turn = next(m for m in world.route.manoeuvres if m.command in (Command.LEFT, Command.RIGHT) and m.start_s > 60.0)
    said = {}
    for before in (70.0, 20.0, -1.0):
        s = turn.start_s - before
        x, y, z = world.route.point_at(s)
        world.teleport(Pose(x, y, z, world.route.heading_at(s)), 3.0)
        said[before] = world.instruction
    assert said[20.0] == f"turn {turn.command.value} in 20 m"
    assert said[-1.0] == f"turn {turn.command.value} now"
    assert world.ego_state.velocity == (3.0, 0.0)


def test_the_expert_plans_from_the_world():
    world = World(MAP, seed=3, traffic=(10, 5))
    plan = world.expert_plan()
    assert plan.shape == (8, 2)
    assert np.isfinite(plan).all()


def test_cameras_boxes_and_questions_come_from_one_moment():
    pytest.importorskip("moderngl")
    rig = load_rig(Path(__file__).parents[2] / "config" / "rig_three.yaml")
    world = World(MAP, seed=3, rig=rig, traffic=(20, 10))
    try:
        for control in controls(20):
            world.step(control)
        scene = world.scene("what is ahead?")
        assert {name: image.shape for name, image in scene.images.items()} == {
            camera.name: (camera.height, camera.width, 3) for camera in rig
        }
        again = world.render()
        assert all(np.array_equal(again[name], image) for name, image in scene.images.items())
        assert scene.images["cam_front"].std() > 10.0
        for box in world.boxes():
            assert 0.0 <= box.visible <= 1.0
            assert 0.0 <= box.xyxy[0] < box.xyxy[2] <= 640.0
        question, answer = world.question(np.random.default_rng(0))
        assert question
        assert answer
    finally:
        world.close()


@pytest.mark.parametrize("arguments", [{"seed": -1}, {"traffic": (-1, 0)}])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(ConfigError):
        World(MAP, **arguments)


def test_wrong_steps_are_refused():
    world = World(MAP, traffic=(0, 0))
    for dt in (0.0, -0.05, 0.5):
        with pytest.raises(ConfigError):
            world.step(VehicleControl(), dt)
    with pytest.raises(ConfigError, match="no cameras"):
        world.render()


def drive_vehicle(control: VehicleControl, seconds: float, speed: float = 0.0) -> VehicleState:
    state = VehicleState(Pose(0.0, 0.0, 0.0, 0.0), speed)
    for _ in range(round(seconds / 0.05)):
        state = step_vehicle(state, control, 0.05)
    return state


def test_vehicle_accelerates_brakes_and_never_rolls_back():
    fast = drive_vehicle(VehicleControl(throttle=1.0), 5.0)
    assert 10.0 < fast.speed < MAX_ACCEL_MPS2 * 5.0
    stopped = drive_vehicle(VehicleControl(brake=1.0), 3.0, speed=10.0)
    assert stopped.speed == 0.0
    assert 10.0**2 / 16.0 < stopped.pose.x < 10.0**2 / 16.0 + 2.0
    assert drive_vehicle(VehicleControl(throttle=1.0, reverse=True), 2.0).speed < -1.0


def test_vehicle_turns_left_with_positive_steer_on_the_bicycle_radius():
    state = drive_vehicle(VehicleControl(steer=0.5), 3.0, speed=4.0)
    assert state.pose.y > 1.0
    assert state.pose.yaw > 0.3
    radius = state.speed / state.yaw_rate
    assert radius == pytest.approx(2.85 / np.tan(0.3), rel=0.02)


def test_broken_controls_stop_the_vehicle():
    nan = float("nan")
    state = drive_vehicle(VehicleControl(steer=nan, throttle=nan, brake=nan), 3.0, speed=8.0)
    assert state.speed == 0.0
    assert state.pose.y == 0.0
    wild = drive_vehicle(VehicleControl(steer=50.0, throttle=9.0), 2.0)
    assert abs(wild.steer_rad) <= 0.6 + 1e-9


def test_weathers_are_repeatable_and_sane():
    specs = [random_weather(np.random.default_rng(k)) for k in range(300)]
    assert specs[7] == random_weather(np.random.default_rng(7))
    assert 20 < sum(spec.night for spec in specs) < 80
    for spec in specs:
        assert 0.0 <= spec.rain <= spec.wetness <= 1.0
        assert 0.0 <= spec.fog <= 1.0
        assert 0.0 <= spec.cloud <= 1.0
