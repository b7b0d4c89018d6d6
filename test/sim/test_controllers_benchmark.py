"""The comparison of controllers: the target that is shown, and an empty road driven to its end by every one."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.controllers import CONTROLLERS, TIMINGS, drive, means, next_node, route_nodes
from wamdiff2_sim.types import WorldState
from wamdiff2_sim.world import World


@pytest.fixture(scope="module")
def world():
    made = World("Town02", 5, rig=None, traffic=(0, 0), route_m=(40.0, 60.0))
    yield made
    made.close()


def test_the_next_node_is_ahead(world):
    state = world.reset()
    nodes = route_nodes(world.route)
    assert nodes[0] == 0.0 and nodes[-1] == world.route.length
    x, y = next_node(world.route, nodes, state)
    assert x > 4.0 and abs(y) < 0.5 * x
    end = next_node(world.route, nodes, WorldState(0.0, state.ego, 0.0, route_s=world.route.length))
    assert np.hypot(*end) == pytest.approx(np.hypot(*(world.route.points[-1] - world.route.points[0])[:2]), abs=0.5)


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("controller", ["follower", "usual_scaled"])
def test_an_empty_road_is_driven_to_its_end(controller, timing, world):
    world.reset()
    row = drive(world, CONTROLLERS[controller](), TIMINGS[timing])
    assert row["ended"] == "arrived" and row["collisions"] == 0 and row["lateral_p95_m"] < 1.5


def test_means_are_over_drives_that_all_made():
    figures = dict.fromkeys(
        ("driving_score", "route_completion", "collisions", "red_lights", "off_road_s", "comfort", "lateral_rms_m",
         "lateral_p95_m", "steer_change_per_s", "jerk_rms_mps3", "time_s"), 1.0,
    )  # fmt: skip

    def row(controller: str, seed: int, score: float) -> dict:
        key = [controller, "late", "Town02", seed]
        return {**figures, "key": key, "controller": controller, "timing": "late", "driving_score": score}

    made = means([row("follower", 1, 80.0), row("usual", 1, 50.0), row("follower", 2, 0.0)])
    assert [(r["controller"], r["routes"], r["driving_score"]) for r in made] == [
        ("follower", 1, 80.0),
        ("usual", 1, 50.0),
    ]
