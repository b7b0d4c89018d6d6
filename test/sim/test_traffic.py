"""Lights by the clock, vehicles that never drive into each other and never jam, people who cross."""

from __future__ import annotations

import numpy as np
import pytest

from wamdiff2_core.scene import Command
from wamdiff2_sim.corridor import Bodies
from wamdiff2_sim.geometry import boxes_touch
from wamdiff2_sim.lane_graph import LaneGraph
from wamdiff2_sim.lights import Lights
from wamdiff2_sim.pedestrians import CROSSING, Pedestrians
from wamdiff2_sim.roads.roadmap import Lane, LightGroup, RoadMap, load_map
from wamdiff2_sim.traffic import Traffic
from wamdiff2_sim.types import LightState, box_corners

DT = 0.05


def straight(lane_id: int, start: tuple[float, float], end: tuple[float, float], **more) -> Lane:
    """A straight lane with points every metre."""
    n = int(round(np.hypot(end[0] - start[0], end[1] - start[1]))) + 1
    points = np.zeros((n, 3), dtype=np.float32)
    points[:, 0], points[:, 1] = np.linspace(start[0], end[0], n), np.linspace(start[1], end[1], n)
    return Lane(lane_id, points, **more)


def crossroad(light: bool) -> RoadMap:
    """Two one-way streets that cross at the origin; every end leads back to its street's start (the map is endless)."""
    lanes = []
    for base, (dx, dy) in ((0, (1, 0)), (10, (0, 1))):
        at = [(dx * d, dy * d) for d in (-150, -8, 8, 150)]
        group, stop = (base // 10 if light else -1), (140.0 if light else -1.0)
        lanes += [
            straight(
                base, at[0], at[1], successors=[base + 1], predecessors=[base + 2], light_group=group, stop_s=stop
            ),
            straight(
                base + 1, at[1], at[2], successors=[base + 2], predecessors=[base], junction_id=0, turn=Command.STRAIGHT
            ),
            straight(base + 2, at[2], at[3], successors=[base], predecessors=[base + 1]),
        ]
    square = np.array([[-8, -8], [8, -8], [8, 8], [-8, 8]], dtype=float)
    groups = {i: LightGroup(i, 0, i, [(0.0, 0.0, 5.0, 0.0)]) for i in (0, 1)} if light else {}
    return RoadMap("crossroad", {lane.id: lane for lane in lanes}, {0: square}, groups)


def ego_away(x: float = 0.0, y: float = 0.0) -> Bodies:
    """An ego in another storey: the middle of the ring, in nobody's way."""
    return Bodies(*(np.array([v]) for v in (x, y, -50.0, 0.0, 0.0, 2.45, 0.95)))


def overlaps(traffic: Traffic) -> tuple[set, set]:
    """Pairs of vehicles whose boxes touch: (outside junctions, with one of them in a junction)."""
    f, graph, outside, inside = traffic.fleet, traffic.graph, set(), set()
    on = np.flatnonzero(f.active)
    corners = {i: box_corners(f.x[i], f.y[i], f.yaw[i], f.length[i], f.width[i]) for i in on}
    for k, i in enumerate(on):
        for j in on[k + 1 :]:
            if np.hypot(f.x[i] - f.x[j], f.y[i] - f.y[j]) > 9.0 or abs(f.z[i] - f.z[j]) > 2.5:
                continue
            if boxes_touch(corners[i], corners[j]):
                junction = max(graph.junction[f.path[i, 0]], graph.junction[f.path[j, 0]]) >= 0
                (inside if junction else outside).add((int(f.serial[i]), int(f.serial[j])))
    return outside, inside


def make(road_map: RoadMap, n: int, seed: int) -> tuple[Traffic, Lights]:
    lights = Lights(road_map, seed)
    traffic = Traffic(LaneGraph(road_map, lights.index), n, np.random.default_rng(seed))
    return traffic, lights


def test_lights_cycle_green_yellow_red_and_never_green_for_both_phases():
    lights = Lights(crossroad(True), seed=3)
    times = np.arange(0.0, 120.0, 0.1)
    table = np.array([lights.array(t) for t in times])
    for column in table.T:
        changes = column[1:][np.diff(column) != 0].tolist()
        order = [int(LightState.GREEN), int(LightState.YELLOW), int(LightState.RED)]
        first = order.index(changes[0])
        assert changes == [order[(first + k) % 3] for k in range(len(changes))]
        assert len(changes) >= 6
    assert not ((table != LightState.RED).all(axis=1)).any()
    yellow = np.diff(np.flatnonzero(np.diff((table[:, 0] == LightState.YELLOW).astype(int))))
    assert 29 <= yellow[0] <= 31 or 29 <= yellow[1] <= 31
    assert lights.state_of(1, 7.3) == lights.states(7.3)[1]


def test_lights_depend_on_the_seed_alone():
    road_map = crossroad(True)
    one, same, other = Lights(road_map, 1), Lights(road_map, 1), Lights(road_map, 2)
    tables = [np.array([lights.array(t) for t in np.arange(0.0, 60.0, 0.5)]) for lights in (one, same, other)]
    assert np.array_equal(tables[0], tables[1])
    assert not np.array_equal(tables[0], tables[2])


@pytest.mark.parametrize("light", [True, False])
def test_a_crossroad_neither_crashes_nor_jams(light):
    road_map = crossroad(light)
    traffic, lights = make(road_map, 14, seed=5)
    traffic.populate(0.0, 0.0, 0.0)
    crossed = set()
    for k in range(2400):
        traffic.step(DT, k * DT, lights.array(k * DT), ego_away(), [])
        crossed |= {(int(s), int(lane)) for s, lane in zip(traffic.fleet.serial, traffic.fleet.path[:, 0], strict=True)}
        if k % 4 == 0:
            assert overlaps(traffic) == (set(), set())
    through = [pair for pair in crossed if traffic.graph.junction[pair[1]] >= 0]
    assert len({lane for _, lane in through}) == 2  # both streets move
    assert len(through) > 15


@pytest.mark.parametrize("name", ["procedural:1", "Town01", "Town10HD"])
def test_traffic_keeps_moving_without_contact(name):
    road_map = load_map(name)
    traffic, lights = make(road_map, 32, seed=11)
    place = traffic.graph.xyz(*(a[len(traffic._slots[0]) // 2 :][:1] for a in traffic._slots[:2]))[0]
    traffic.populate(place[0], place[1], 0.0)
    inside, speeds = set(), []
    for k in range(2400):
        traffic.step(DT, k * DT, lights.array(k * DT), ego_away(place[0], place[1]), [])
        if k % 8 == 0:
            outside, more = overlaps(traffic)
            assert outside == set()
            inside |= more
        if k >= 2000:
            speeds.append(traffic.fleet.speed[traffic.fleet.active].mean())
    assert len(inside) <= 2
    assert traffic.fleet.active.sum() >= 16
    assert np.mean(speeds) > 1.5


def test_nobody_runs_a_red_light():
    road_map = crossroad(True)
    traffic, lights = make(road_map, 12, seed=2)
    traffic.populate(0.0, 0.0, 0.0)
    f, graph = traffic.fleet, traffic.graph
    for k in range(1600):
        before = {int(f.serial[i]): (int(f.path[i, 0]), f.s[i] + f.length[i] / 2) for i in np.flatnonzero(f.active)}
        state = lights.array(k * DT)
        traffic.step(DT, k * DT, state, ego_away(), [])
        f = traffic.fleet
        for i in np.flatnonzero(f.active):
            lane, front = before.get(int(f.serial[i]), (-1, 0.0))
            if (
                lane == f.path[i, 0]
                and graph.light[lane] >= 0
                and front < graph.stop_s[lane] <= f.s[i] + f.length[i] / 2
            ):
                assert state[graph.light[lane]] != LightState.RED


def test_traffic_stops_behind_a_standing_ego_and_before_people():
    road_map = crossroad(False)
    for half in (2.45, 0.25):
        traffic, lights = make(road_map, 8, seed=4)
        blocker = Bodies(*(np.array([v]) for v in (-30.0, 0.0, 0.0, 0.0, 0.0, half, 0.95)))
        traffic.populate(-30.0, 0.0, 0.0)
        for k in range(800):
            traffic.step(DT, k * DT, lights.array(k * DT), blocker, [])
            f = traffic.fleet
            for i in np.flatnonzero(f.active & (np.abs(f.y) < 1.0) & (np.abs(f.x + 30.0) < 8.0)):
                box = box_corners(f.x[i], f.y[i], f.yaw[i], f.length[i], f.width[i])
                assert not boxes_touch(box, box_corners(-30.0, 0.0, 0.0, 2 * half, 1.9))
        on_street = f.active & (np.abs(f.y) < 1.0) & (f.x < -30.0)
        assert on_street.any() and f.speed[on_street].min() < 0.1


def sidewalk_street() -> RoadMap:
    """A two-way street of 300 m with sidewalks, endless both ways."""
    east = straight(1, (-150, -1.75), (150, -1.75), successors=[1], has_sidewalk_right=True)
    west = straight(2, (150, 1.75), (-150, 1.75), successors=[2], has_sidewalk_right=True)
    return RoadMap("street", {1: east, 2: west})


def test_people_walk_cross_and_come_to_no_harm():
    road_map = sidewalk_street()
    traffic, lights = make(road_map, 10, seed=1)
    people = Pedestrians(traffic.graph, 16, np.random.default_rng(8))
    traffic.populate(0.0, 0.0, 0.0)
    people.populate(0.0, 0.0, 0.0)
    crossings, before = 0, people.crowd.mode.copy()
    for k in range(2400):
        people.step(DT, Bodies.join([ego_away(), traffic.bodies()]))
        traffic.step(DT, k * DT, lights.array(k * DT), Bodies.join([ego_away(), people.bodies()]), [])
        c, f = people.crowd, traffic.fleet
        crossings += int(((before != CROSSING) & (c.mode == CROSSING)).sum())
        before = c.mode.copy()
        for p in np.flatnonzero(c.active & (c.mode == CROSSING)):
            for i in np.flatnonzero(f.active & (np.hypot(f.x - c.x[p], f.y - c.y[p]) < 6.0)):
                box = box_corners(f.x[i], f.y[i], f.yaw[i], f.length[i], f.width[i])
                assert not boxes_touch(box, box_corners(c.x[p], c.y[p], c.yaw[p], 0.4, 0.4)), f"at {k * DT} s"
    assert crossings >= 5
    on_walk = c.active & (c.mode == 0)
    assert (np.abs(c.y[on_walk]) > 3.5).all()


def test_a_map_without_sidewalks_has_no_people():
    graph = LaneGraph(crossroad(False), {})
    people = Pedestrians(graph, 10, np.random.default_rng(0))
    people.populate(0.0, 0.0, 0.0)
    people.step(DT, ego_away())
    assert people.actors() == []


def test_conflicts_are_found_between_crossing_paths_only():
    graph = LaneGraph(crossroad(False), {})
    crossing = graph.conflict(graph.index[1], graph.index[11])
    assert crossing is not None
    assert 4.0 < crossing[0] < 8.0 < crossing[1] < 12.0
    assert graph.conflict(graph.index[1], graph.index[1]) is None
