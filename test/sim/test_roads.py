"""Road maps: continuity, determinism, round trip, look-up; procedural and CARLA towns alike."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import Command
from wamdiff2_sim.roads.builder import classify_turn
from wamdiff2_sim.roads.curves import connect, fillet, resample, wrap
from wamdiff2_sim.roads.mapfile import TURNS
from wamdiff2_sim.roads.roadmap import MAPS_DIR, RoadMap, load_map

TOWNS = ("Town01", "Town02", "Town03", "Town04", "Town05", "Town06", "Town07", "Town10HD")
SEEDS = tuple(range(8))


def digest(road_map: RoadMap) -> str:
    state = hashlib.sha256()
    for lane in road_map.lanes.values():
        state.update(lane.points.tobytes())
        state.update(repr((lane.id, lane.successors, lane.turn, lane.stop_s, lane.light_group)).encode())
    state.update(repr([(g.id, g.phase, g.poles) for g in road_map.light_groups.values()]).encode())
    return state.hexdigest()


@pytest.fixture(scope="module", params=[*(f"procedural:{seed}" for seed in SEEDS), *TOWNS])
def road_map(request: pytest.FixtureRequest) -> RoadMap:
    return load_map(request.param)


def test_successors_begin_where_lanes_end(road_map: RoadMap) -> None:
    headings_off = 0.1 if road_map.name.startswith("procedural") else 0.2
    for lane in road_map.lanes.values():
        for successor in (road_map.lanes[i] for i in lane.successors):
            np.testing.assert_allclose(lane.points[-1], successor.points[0], atol=1e-3)
            assert abs(wrap(float(lane.headings[-1] - successor.headings[0]))) < headings_off
            assert lane.id in successor.predecessors


def test_points_are_about_a_metre_apart(road_map: RoadMap) -> None:
    for lane in road_map.lanes.values():
        steps = np.diff(lane.s)
        assert steps.max() < 1.5
        assert lane.length < 2.0 or steps.min() > 0.4


def test_turns_curve_the_way_they_say(road_map: RoadMap) -> None:
    """Left is +y of the driving direction: a mirrored map would fail here."""
    turns = [lane for lane in road_map.lanes.values() if lane.turn in (Command.LEFT, Command.RIGHT)]
    assert turns
    for lane in turns:
        if all(road_map.lanes[i].junction_id < 0 for i in (*lane.predecessors, *lane.successors)):
            ahead = lane.points[-1, :2] - lane.points[0, :2]
            left = np.array([-np.sin(lane.headings[0]), np.cos(lane.headings[0])])
            assert (ahead @ left > 1.0) == (lane.turn is Command.LEFT)


@pytest.mark.parametrize("name", ["procedural:0", "procedural:1", "procedural:5", "Town01", "Town02", "Town10HD"])
def test_traffic_drives_on_the_right(name: str) -> None:
    """What lies across a yellow line on the left is an oncoming lane."""
    road_map, checked = load_map(name), 0
    for lane in road_map.lanes.values():
        if "yellow" not in lane.left_mark or lane.length < 30.0:
            continue
        s, heading = lane.length / 2.0, lane.heading_at(lane.length / 2.0)
        left = np.array([-np.sin(heading), np.cos(heading)])
        opposite = road_map.nearest_lane(lane.point_at(s)[:2] + left * lane.width)
        other = road_map.lanes[opposite.lane_id]
        if other is not lane and other.junction_id < 0 and opposite.distance < 1.0:
            assert np.cos(other.heading_at(opposite.s) - heading) < -0.8
            checked += 1
    assert checked > 3


def test_lights_face_their_approach_and_phases_split_crossing_roads(road_map: RoadMap) -> None:
    for lane in road_map.lanes.values():
        if lane.light_group < 0:
            continue
        group = road_map.light_groups[lane.light_group]
        assert 0.0 <= lane.stop_s < lane.length
        assert road_map.lanes[lane.successors[0]].junction_id == group.junction_id
        near, far = (np.array(pole) for pole in group.poles)
        stop = lane.point_at(lane.stop_s)
        for pole in (near, far):
            assert np.cos(pole[3] - lane.heading_at(lane.stop_s)) < -0.8
            assert 2.0 < pole[2] - stop[2] < 8.0
        forward = np.array([np.cos(lane.headings[-1]), np.sin(lane.headings[-1])])
        assert (far[:2] - stop[:2]) @ forward > (near[:2] - stop[:2]) @ forward
    for junction in road_map.junctions:
        phases = [g.phase for g in road_map.light_groups.values() if g.junction_id == junction]
        assert len(phases) < 3 or len(set(phases)) > 1


def test_neighbours_are_mutual(road_map: RoadMap) -> None:
    for lane in road_map.lanes.values():
        if lane.left_id >= 0 and road_map.name.startswith("procedural"):
            assert road_map.lanes[lane.left_id].right_id == lane.id


def test_npz_round_trip(tmp_path, road_map: RoadMap) -> None:
    path = tmp_path / "map.npz"
    road_map.save(path)
    back = load_map(path)
    assert back.name == road_map.name and list(back.lanes) == list(road_map.lanes)
    for number, lane in road_map.lanes.items():
        other = back.lanes[number]
        np.testing.assert_allclose(other.points, lane.points, atol=1e-3)
        keys = ("turn", "junction_id", "left_id", "right_id", "left_mark", "right_mark", "light_group", "successors")
        assert [getattr(other, k) for k in keys] == [getattr(lane, k) for k in keys]
        assert other.stop_s == pytest.approx(lane.stop_s, abs=1e-3)
    assert back.junctions.keys() == road_map.junctions.keys()
    assert len(back.crosswalks) == len(road_map.crosswalks)
    np.testing.assert_allclose(
        [p for g in back.light_groups.values() for p in g.poles],
        [p for g in road_map.light_groups.values() for p in g.poles],
        atol=1e-3,
    )


def test_nearest_lane_equals_brute_force(road_map: RoadMap) -> None:
    rng = np.random.default_rng(0)
    x0, y0, x1, y1 = road_map.bounds
    for _ in range(20):
        xy = rng.uniform((x0 - 30, y0 - 30), (x1 + 30, y1 + 30))
        distances = [lane.project(xy)[2] for lane in road_map.lanes.values()]
        assert road_map.nearest_lane(xy).distance == pytest.approx(min(distances))


def test_nearest_lane_respects_heading() -> None:
    road_map = load_map("Town01")
    lane = next(lane for lane in road_map.lanes.values() if lane.junction_id < 0 and lane.length > 50)
    place, heading = lane.point_at(20.0)[:2], lane.heading_at(20.0)
    assert road_map.nearest_lane(place, heading).lane_id == lane.id
    assert road_map.nearest_lane(place, heading + np.pi).lane_id != lane.id


@pytest.mark.parametrize("seed", SEEDS)
def test_same_seed_same_town(seed: int) -> None:
    assert digest(load_map(f"procedural:{seed}")) == digest(load_map(f"procedural:{seed}"))


def test_other_seed_other_town() -> None:
    assert len({digest(load_map(f"procedural:{seed}")) for seed in SEEDS}) == len(SEEDS)


def test_procedural_towns_have_no_dead_ends_and_can_be_driven() -> None:
    for seed in range(2000, 2030):
        road_map = load_map(f"procedural:{seed}")
        assert len(road_map.junctions) >= 2
        for lane in road_map.lanes.values():
            assert lane.successors
            curvature = np.abs(np.diff(lane.headings) / np.diff(lane.s)).max()
            assert curvature < 0.24, f"seed {seed} lane {lane.id} is tighter than the car can steer"


def test_procedural_lanes_of_roads_do_not_overlap() -> None:
    for seed in range(12):
        road_map = load_map(f"procedural:{seed}")
        for lane in road_map.lanes.values():
            if lane.junction_id >= 0:
                continue
            for point in lane.points[5:-5:12]:
                for number in set(road_map.lanes_near(point[:2], 6.0)) - {lane.id}:
                    other = road_map.lanes[number]
                    if other.junction_id < 0:
                        assert other.project(point[:2])[2] > 0.45 * (lane.width + other.width)


def test_shipped_maps_are_small_and_complete() -> None:
    for town in TOWNS:
        assert (MAPS_DIR / f"{town}.npz").stat().st_size < 400_000
        road_map = load_map(town)
        assert road_map.light_groups and road_map.junctions
        assert {lane.turn for lane in road_map.lanes.values()} == set(TURNS)


def test_unknown_maps_are_refused(tmp_path) -> None:
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"not a zip")
    foreign = tmp_path / "foreign.npz"
    np.savez(foreign, points=np.zeros(3))
    for name in ("Town99", "procedural:x", "procedural:", str(broken), str(foreign)):
        with pytest.raises(DataError):
            load_map(name)


def test_curves() -> None:
    line = fillet(np.array([[0.0, 0.0], [20.0, 0.0], [20.0, 30.0]]), [5.0])
    assert line[-1, 2] == pytest.approx(np.pi / 2)
    length = float(np.hypot(*np.diff(line[:, :2], axis=0).T).sum())
    assert length == pytest.approx(50.0 - 10.0 + 5.0 * np.pi / 2, abs=0.01)
    left = connect(np.zeros(2), 0.0, np.array([10.0, 10.0]), np.pi / 2)
    np.testing.assert_allclose(np.hypot(left[:, 0], left[:, 1] - 10.0), 10.0, atol=1e-6)
    even = resample(line[:, :2])
    assert np.ptp(np.hypot(*np.diff(even, axis=0).T)) < 0.02
    assert classify_turn(1.5) is Command.LEFT and classify_turn(-1.5) is Command.RIGHT
    assert classify_turn(0.3) is Command.STRAIGHT
