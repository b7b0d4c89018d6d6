"""NAVSIM scenes of the world: the expert's own drive scores well, and looking ahead changes nothing."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from wamdiff2_core.evaluate import navsim
from wamdiff2_core.evaluate.navsim import read_scene, score_plans
from wamdiff2_sim.data.frames import Drive
from wamdiff2_sim.data.navsim_scenes import PAST_STEPS, RememberingWorld, look_ahead, scene_of
from wamdiff2_sim.expert import Expert
from wamdiff2_sim.roads.roadmap import load_map


@pytest.fixture(scope="module")
def drive() -> Drive:
    world = RememberingWorld("Town01", seed=3, traffic=(12, 8))
    made = Drive(world, Expert(load_map("Town01")), np.random.default_rng(0))
    made.advance(4.0)
    return made


def test_the_experts_own_drive_scores_well_and_a_wild_plan_does_not(drive: Drive) -> None:
    world = drive.world
    record = scene_of("one", drive, list(world.past), look_ahead(drive))
    scores = navsim.score(record)
    assert scores["v2"]["multiplicative_product"] == 1.0 and scores["v2"]["ep"] == pytest.approx(1.0, abs=0.02)
    scene = read_scene(record)
    assert scene.past.shape == (14, 11) and len(scene.objects) > 0 and scene.human is not None
    sideways = scene.plan + np.linspace(0, 1, 8)[:, None] * [0.0, 25.0, 0.0]
    assert score_plans(scene, sideways[None]).v11["dac"][0] == 0.0


def test_looking_ahead_leaves_the_world_as_it_was(drive: Drive) -> None:
    world = drive.world
    before, past, plan = world.state, list(world.past), copy.copy(drive.plan)
    future = look_ahead(drive)
    assert len(future.states) == 51 and future.states[0] == before
    assert future.states[-1].time == pytest.approx(before.time + 5.0)
    assert world.state == before and list(world.past) == past and drive.plan is not None
    again = look_ahead(drive)
    assert [s.ego for s in again.states] == [s.ego for s in future.states]
    assert np.array_equal(plan.points, drive.plan.points) and len(past) == PAST_STEPS + 1


def test_red_connectors_of_the_route_are_told() -> None:
    world = RememberingWorld("Town03", seed=1, traffic=(0, 0))
    made = Drive(world, Expert(load_map("Town03")), np.random.default_rng(0))
    colours: set[str] = set()
    for _ in range(40):
        if not made.advance(2.0):
            break
        record = scene_of("one", made, list(world.past), look_ahead(made))
        read_scene(record)
        colours |= {state for light in record["traffic_lights"] for state in light["state"]}
        if {"red", "green"} <= colours:
            return
    pytest.fail(f"no light of the route was seen red and green, only {sorted(colours)}")
