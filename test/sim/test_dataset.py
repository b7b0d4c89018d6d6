"""Dataset: frames without a GPU are not needed here; perturbation, variants, entries, shards and resuming are."""

from __future__ import annotations

import json
import math
from pathlib import Path

import cv2
import numpy as np
import pytest

from wamdiff2_core.errors import DataError, Wamdiff2Error
from wamdiff2_core.scene import Box, EgoState, Plan
from wamdiff2_core.tasks import detect, plan
from wamdiff2_sim.data import variants
from wamdiff2_sim.data.autopilot import control_for
from wamdiff2_sim.data.entries import Frame, detections, entries
from wamdiff2_sim.data.perturb import FAR_FACTOR, LATERAL_MAX_M, YAW_MAX, perturbed, touches
from wamdiff2_sim.data.shards import ShardWriter
from wamdiff2_sim.dataset import Job, main, statistics
from wamdiff2_sim.expert import Expert
from wamdiff2_sim.types import GtBox, LightState
from wamdiff2_sim.world import World


@pytest.fixture(scope="module")
def drive() -> tuple[World, Expert]:
    """A world after ten seconds of driving."""
    world = World("Town01", 3, None, traffic=(20, 20))
    expert = Expert(world.map)
    for _ in range(100):
        world.step(control_for(expert.plan(world.state, world.route, world.state.route_s), world.state.speed), 0.1)
    return world, expert


def frame(name: str = "f0") -> Frame:
    rng = np.random.default_rng(1)
    images = {
        "cam_front": rng.integers(0, 255, (192, 320, 3), dtype=np.uint8),
        "cam_front_left": rng.integers(0, 255, (96, 160, 3), dtype=np.uint8),
        "cam_front_right": rng.integers(0, 255, (96, 160, 3), dtype=np.uint8),
    }
    points = np.column_stack([np.arange(1, 9) * 2.5, np.linspace(0.0, -1.0, 8)])
    meta = {
        "reason": "clear",
        "manoeuvre": "follow",
        "motion": "steady",
        "perturbed": "none",
        "map": "x",
        "weather": "clear",
    }
    questions = (("is the road wet?", "no, the road is dry."), ("what is ahead of us?", "a free road."))
    return Frame(
        name,
        images,
        EgoState((5.0, 0.0)),
        "turn left in 20 m",
        points,
        (Box("car", (100, 200, 300, 400)),),
        questions,
        meta,
    )


def test_perturbed_states_stay_in_their_bounds_and_free_of_contact(drive):
    world, expert = drive
    profile = expert.profile(world.route)
    s, lateral = profile.project(world.state.ego.x, world.state.ego.y, world.state.route_s)
    now = expert.plan(world.state, world.route, world.state.route_s)
    rng = np.random.default_rng(0)
    speeds, offsets = [], []
    for _ in range(200):
        state = perturbed(world.state, now, profile, s, rng)
        place, offset = profile.project(state.ego.x, state.ego.y, s)
        assert abs(place - s) < 1.0 and abs(offset) < FAR_FACTOR * LATERAL_MAX_M + 0.2
        assert (
            abs(math.remainder(state.ego.yaw - profile.at(profile.heading, s), math.tau)) < FAR_FACTOR * YAW_MAX + 0.05
        )
        assert not touches(state) and state.speed >= 0.0
        assert expert.plan(state, world.route, state.route_s).acceleration.min() >= -6.001
        speeds.append(state.speed)
        offsets.append(offset)
    assert np.std(offsets) > 0.4
    assert np.mean(np.array(speeds) == 0.0) > 0.1


def test_another_light_changes_the_plan_and_never_gives_two_greens(drive):
    world, expert = drive
    route = world.route
    profile = expert.profile(route)
    if not profile.stop_lines:
        pytest.skip("this route has no light")
    line = profile.stop_lines[0]
    s = line.s - 12.0
    for seed in range(20):
        state = variants.with_other_light(world.state, world.map, profile, s, np.random.default_rng(seed))
        ours = world.map.light_groups[line.group]
        greens = {
            group.phase
            for group in world.map.light_groups.values()
            if group.junction_id == ours.junction_id and state.lights[group.id] != LightState.RED
        }
        assert state.lights[line.group] == LightState.RED or greens == {ours.phase}


def test_somebody_on_the_road_is_added(drive):
    world, expert = drive
    profile = expert.profile(world.route)
    state = variants.with_walker(world.state, profile, world.state.route_s, np.random.default_rng(2))
    assert len(state.actors) == len(world.state.actors) + 1
    assert state.actors[-1].kind == "pedestrian"


def test_boxes_become_detections_of_the_front_camera():
    boxes = [
        GtBox("car", (64.0, 38.4, 128.0, 76.8), 1.0, 10.0),
        GtBox("truck", (0.0, 0.0, 640.0, 384.0), 0.1, 10.0),  # hidden
        GtBox("light", (10.0, 10.0, 11.0, 11.0), 1.0, 60.0),  # too small
    ]
    assert detections(boxes, (640, 384)) == (Box("car", (100, 100, 200, 200)),)
    many = [GtBox("car", (0.0, 0.0, 30.0 + i, 30.0), 1.0, 10.0) for i in range(9)]
    found = detections(many, (640, 384))
    assert len(found) == detect.MAX_BOXES and found[0].xyxy[2] > found[-1].xyxy[2]


def test_entries_are_what_the_driver_asks_and_reads():
    out = entries(frame(), ["a.jpg", "b.jpg", "c.jpg"])
    assert [entry["task"] for entry in out] == ["plan", "detect", "ask", "ask"]
    human, gpt = (turn["value"] for turn in out[0]["conversations"])
    assert human == "<image>\n<image>\n<image>\n" + plan.prompt_text(frame().ego, "turn left in 20 m")
    assert isinstance(plan.parse(gpt), Plan)
    assert np.allclose(plan.parse(gpt).points, frame().points, atol=0.006)
    assert detect.parse(out[1]["conversations"][1]["value"]).boxes[0].label == "car"


def test_a_shard_appears_whole_or_not_at_all(tmp_path: Path):
    writer = ShardWriter(tmp_path, 3)
    writer.add(frame())
    assert not list(tmp_path.glob("shard_*"))
    folder = writer.close()
    assert folder == tmp_path / "shard_00003"
    samples = json.loads((folder / "samples.json").read_text())
    assert len(samples) == 4
    for camera, size in zip(samples[0]["image"], ((320, 192), (160, 96), (160, 96))):
        assert cv2.imread(str(folder / camera)).shape[1::-1] == size
    assert statistics(tmp_path)["frames"] == 1
    again = ShardWriter(tmp_path, 3)
    again.add(frame())
    with pytest.raises(DataError):
        again.close()


def test_job_counts_shards_and_the_last_one_is_smaller(tmp_path: Path):
    job = Job(tmp_path, 600, shard_frames=256)
    assert job.shards == 3 and [job.size(k) for k in range(3)] == [256, 256, 88]
    assert Job(tmp_path, 0).shards is None
    with pytest.raises(Wamdiff2Error):
        Job(tmp_path, -1)
    assert main(["--out", str(tmp_path), "--frames", "-5"]) == 1
