"""Situations on the stage: who looks gets through, who does not is caught; lights are held and let go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate.bench2drive.benchmark import routes
from wamdiff2_core.scene import Plan, Scene
from wamdiff2_sim.drive import LoopConfig, drive
from wamdiff2_sim.expert import Expert
from wamdiff2_sim.roads.roadmap import RoadMap, load_map
from wamdiff2_sim.roads.route import Route
from wamdiff2_sim.scenarios import acts_junction, acts_road
from wamdiff2_sim.scenarios.acts import Act
from wamdiff2_sim.scenarios.catalog import TYPES, make_act
from wamdiff2_sim.scenarios.directed import Directed, Line
from wamdiff2_sim.scenarios.reference import Reference
from wamdiff2_sim.scenarios.stage import Stage
from wamdiff2_sim.types import LightState, Pose, VehicleControl

TOWN = "Town01"


@pytest.fixture(scope="module")
def town() -> RoadMap:
    return load_map(TOWN)


@pytest.fixture(scope="module")
def straight(town: RoadMap) -> Route:
    """The longest lane of the town: no junction, 200 m of it."""
    lane = max((one for one in town.lanes.values() if one.junction_id < 0), key=lambda one: one.length)
    return Route.from_points(lane.points[:200].astype(np.float64), town)


def staged(town: RoadMap, route: Route, act: Act, begin: bool = True) -> Stage:
    stage = Stage(town, route, seed=1)
    act.prepare(stage)
    stage.acts.append(act)
    if begin:
        act.begin(stage)
    return stage


class Driver:
    """The reference (`looks`), or the expert that sees nobody, behind the loop's door."""

    def __init__(self, stage: Stage, looks: bool) -> None:
        self._stage, self._looks = stage, looks
        self._reference, self._expert = Reference(stage), Expert(stage.map)

    def plan(self, scene: Scene) -> Plan:
        if self._looks:
            return self._reference.plan()
        state = replace(self._stage.state, actors=())
        return Plan(np.asarray(self._expert.plan(state, self._stage.route, state.route_s).points), np.ones(8))


def outcome(stage: Stage, looks: bool, seconds: float = 45.0) -> dict:
    config = LoopConfig(latency_s=0.0, limit_s=seconds)
    return drive(stage, Driver(stage, looks), config, look=False).score


MADE = {
    "pedestrian": lambda: acts_road.Crossing(10.0, 45.0, hidden=True),
    "hard brake": lambda: acts_road.LeadBrakes(20.0, 0.0),
    "parked": lambda: acts_road.Blocking(10.0, 60.0, "parked", 0),
    "oncoming": lambda: acts_road.Blocking(10.0, 60.0, "accident", 3),
    "works": lambda: acts_road.Blocking(10.0, 60.0, "works", 0),
    "cut-in": lambda: acts_road.CutIn(10.0, 45.0, -1),
}


@pytest.mark.parametrize("name", MADE)
def test_who_looks_gets_through_and_who_does_not_is_caught(town: RoadMap, straight: Route, name: str) -> None:
    good = outcome(staged(town, straight, MADE[name]()), looks=True)
    assert good["collisions"] == 0 and good["route_completion"] > 0.98, good
    bad = outcome(staged(town, straight, MADE[name]()), looks=False)
    assert bad["collisions"] >= 1, bad


def test_the_expert_alone_waits_behind_what_stands_in_its_lane(town: RoadMap, straight: Route) -> None:
    stage = staged(town, straight, MADE["parked"]())
    config = LoopConfig(latency_s=0.0, limit_s=30.0)
    reference = Reference(stage, knows=False)

    class Alone:
        def plan(self, scene: Scene) -> Plan:
            return reference.plan()

    score = drive(stage, Alone(), config, look=False).score
    assert score["collisions"] == 0 and score["route_completion"] < 0.6


def test_an_ambulance_waits_behind_and_gets_by_when_the_lane_is_free(town: RoadMap, straight: Route) -> None:
    act = acts_road.Ambulance(40.0, 30.0)
    stage = staged(town, straight, act)
    place = stage.route.point_at(45.0)
    on_lane = Pose(float(place[0]), float(place[1]), float(place[2]), stage.route.heading_at(45.0))
    stage.teleport(on_lane, 0.0)
    for _ in range(200):
        stage.step(VehicleControl(brake=1.0))
    assert act.ambulance is not None and act.ambulance.speed < 0.3 and not act.done  # we stand in its way
    (x, y), = on_lane.to_map(np.array([[0.0, 3.5]]))  # fmt: skip
    stage.teleport(Pose(float(x), float(y), on_lane.z, on_lane.yaw), 0.0)
    for _ in range(150):
        stage.step(VehicleControl(brake=1.0))
    assert act.done and stage.score.collisions == 0


def test_loss_of_control_pulls_and_ends(town: RoadMap, straight: Route) -> None:
    stage = staged(town, straight, acts_road.ControlLoss(0.0, 0.0))
    pulled = []
    for _ in range(120):
        stage.step(VehicleControl(throttle=0.5))
        pulled.append(stage.slip)
    assert max(pulled) > 0.1 and min(pulled) < -0.1 and pulled[-1] == 0.0
    assert stage.acts[0].done


@pytest.fixture(scope="module")
def signalised(town: RoadMap) -> Route:
    """40 m of a lane that ends at a light, and the way straight on."""
    for lane in town.lanes.values():
        ways = [town.lanes[i] for i in lane.successors if town.lanes[i].junction_id >= 0]
        if lane.light_group >= 0 and lane.length > 60.0 and ways and ways[0].successors:
            after = town.lanes[ways[0].successors[0]]
            parts = [lane.points[-50:], ways[0].points[1:], after.points[1:30]]
            return Route.from_points(np.concatenate(parts).astype(np.float64), town)
    raise AssertionError("no such place")


def test_a_red_light_is_held_until_we_stand_and_then_let_go(town: RoadMap, signalised: Route) -> None:
    act = acts_junction.RedFirst(Stage(town, signalised), 0.0)
    stage = staged(town, signalised, act)
    group = stage.route.stop_lines[0][1]
    assert stage.state.lights[group] == LightState.RED
    good = outcome(stage, looks=True)
    assert good["red_lights"] == 0 and good["route_completion"] > 0.98
    assert group not in stage.held.held and act.done


def test_a_red_light_catches_who_drives_on(town: RoadMap, signalised: Route) -> None:
    stage = staged(town, signalised, acts_junction.RedFirst(Stage(town, signalised), 0.0))
    for _ in range(400):
        pedal = 0.4 if stage.state.speed < 6.0 else 0.0
        stage.step(VehicleControl(throttle=pedal))
        if stage.state.route_s > 60.0:
            break
    assert stage.score.red_lights == 1


def test_every_official_type_has_an_act() -> None:
    assert {route.scenario for route in routes()} <= set(TYPES)


def test_an_unknown_type_is_named(town: RoadMap, straight: Route) -> None:
    with pytest.raises(ConfigError, match="Meteorite"):
        make_act("Meteorite", Stage(town, straight), Pose(0.0, 0.0), {})


def test_parameters_of_the_route_file_are_used(town: RoadMap, straight: Route) -> None:
    stage = Stage(town, straight)
    at = stage.route.point_at(20.0)
    trigger = Pose(float(at[0]), float(at[1]))
    act = make_act("ParkedObstacle", stage, trigger, {"distance": "33"})
    assert isinstance(act, acts_road.Blocking) and act.s == pytest.approx(53.0, abs=0.5) and not act.uses_oncoming_lane
    assert make_act("ParkedObstacleTwoWays", stage, trigger, {"frequency.from": "40"}).uses_oncoming_lane


def test_two_equal_stages_are_equal_and_one_can_be_rewound(town: RoadMap, straight: Route) -> None:
    def places(stage: Stage) -> list[tuple[float, ...]]:
        return [(one.s, one.speed, one.offset) for one in stage.cast.directed]

    one, two = (staged(town, straight, MADE["oncoming"]()) for _ in range(2))
    for _ in range(50):
        assert one.step(VehicleControl(throttle=0.6)) == two.step(VehicleControl(throttle=0.6))
    saved, kept = one.snapshot(), places(one)
    for _ in range(20):
        one.step(VehicleControl())
    assert places(one) != kept
    one.restore(saved)
    assert places(one) == kept


def test_a_directed_vehicle_stops_behind_us(town: RoadMap) -> None:
    line = np.column_stack([np.arange(0.0, 101.0), np.zeros(101), np.zeros(101)])
    car = Directed(1, "car", Line(line), wanted=10.0, speed=10.0)
    for _ in range(200):
        car.step(0.05, Pose(60.0, 0.5), 0.0)
    assert car.speed < 0.2 and 45.0 < car.s < 58.0
    rude = Directed(2, "car", Line(line), wanted=10.0, speed=10.0, keeps_gap=False)
    for _ in range(200):
        rude.step(0.05, Pose(60.0, 0.5), 0.0)
    assert rude.s > 90.0


def test_a_line_needs_two_places() -> None:
    with pytest.raises(ConfigError, match="different points"):
        Line(np.zeros((3, 3)))
