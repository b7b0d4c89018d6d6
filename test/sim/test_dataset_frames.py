"""Dataset with pictures: frames are complete, decided by their seed, and a job that is called again goes on."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from wamdiff2_core.rig import load_rig
from wamdiff2_core.scene import Camera, Plan
from wamdiff2_core.tasks import detect, plan
from wamdiff2_sim.data.entries import entries
from wamdiff2_sim.data.frames import FrameSource, interesting_route, visible_state
from wamdiff2_sim.dataset import RIG, main
from wamdiff2_sim.render.renderer import Renderer
from wamdiff2_sim.roads.roadmap import load_map
from wamdiff2_sim.truth import true_boxes
from wamdiff2_sim.types import ActorState, LightState, Pose, WorldState


@pytest.fixture(scope="module")
def source():
    made = FrameSource(load_rig(RIG), ("Town02",))
    yield made
    made.close()


def test_frames_are_complete_and_decided_by_their_seed(source):
    first = list(itertools.islice(source.frames(4, 0), 6))
    again = list(itertools.islice(source.frames(4, 0), 6))
    other = list(itertools.islice(source.frames(5, 0), 6))
    for a, b in zip(first, again, strict=True):
        assert a.name == b.name and np.array_equal(a.points, b.points) and a.questions == b.questions
        assert all(np.array_equal(a.images[name], b.images[name]) for name in a.images)
    assert not all(np.array_equal(a.points, b.points) for a, b in zip(first, other, strict=True))
    for frame in first:
        assert [image.shape for image in frame.images.values()] == [(192, 320, 3), (96, 160, 3), (96, 160, 3)]
        texts = [entry["conversations"][1]["value"] for entry in entries(frame, ["a", "b", "c"])]
        assert isinstance(plan.parse(texts[0]), Plan)
        assert len(detect.parse(texts[1]).boxes) == len(frame.boxes)
        assert 1 <= len(frame.questions) <= 3


def test_hidden_road_users_are_not_known_to_the_label():
    camera = Camera("cam_front", 320, 192, 70.0, (2.2, 0.0, 1.6))
    road_map = load_map("Town02")
    lane = next(lane for lane in road_map.lanes.values() if lane.length > 60.0 and lane.junction_id < 0)
    x, y, z = (float(value) for value in lane.point_at(5.0))
    ego = Pose(x, y, z, lane.heading_at(5.0))

    def actor(number: int, ahead: float, kind: str, size: tuple[float, float, float]) -> ActorState:
        at = ego.ahead(ahead)
        return ActorState(number, kind, lane.id, 5.0 + ahead, at.x, at.y, z, ego.yaw, 0.0, 0.0, *size, (1.0, 0.0, 0.0))

    actors = (actor(1, 14.0, "truck", (8.0, 2.5, 3.4)), actor(2, 24.0, "pedestrian", (0.5, 0.5, 1.6)))
    state = WorldState(0.0, ego, 0.0, actors=actors, lights=dict.fromkeys(road_map.light_groups, LightState.RED))
    with Renderer(road_map, (camera,)) as renderer:
        boxes = true_boxes(renderer, "cam_front", [a.view() for a in actors], ego)
    assert [box.label for box in boxes if box.actor_id > 0] == ["truck"]
    assert [a.id for a in visible_state(state, boxes, camera).actors] == [1]


def test_routes_with_turns_are_preferred():
    road_map = load_map("procedural:3")
    routes = [interesting_route(road_map, np.random.default_rng(seed)) for seed in range(5)]
    assert any(manoeuvre.start_s < 220.0 for route in routes for manoeuvre in route.manoeuvres)


@pytest.mark.slow
def test_a_job_goes_on_where_it_stopped(tmp_path: Path):
    arguments = ["--out", str(tmp_path), "--seed", "3", "--workers", "1", "--maps", "Town02", "--shard-frames", "2"]
    assert main([*arguments, "--frames", "2"]) == 0
    before = (tmp_path / "shard_00000" / "samples.json").stat().st_mtime_ns
    assert main([*arguments, "--frames", "4"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard_00000", "shard_00001"]
    assert (tmp_path / "shard_00000" / "samples.json").stat().st_mtime_ns == before
    assert {entry["task"] for entry in json.loads((tmp_path / "shard_00001" / "samples.json").read_text())} == {
        "plan",
        "detect",
        "ask",
    }
