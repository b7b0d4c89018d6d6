"""The same moment with one thing changed: another light, a car less, somebody on the road. Causes are learnt from
such pairs.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from wamdiff2_sim.expert import ExpertPlan
from wamdiff2_sim.roads.roadmap import RoadMap
from wamdiff2_sim.route_profile import RouteProfile
from wamdiff2_sim.types import EGO_FRONT_M, ActorState, LightState, WorldState

LIGHT_NEAR_M = 45.0
INSERTED_ID = 9_000_000
COLOUR_SHARES = (0.42, 0.13, 0.45)  # red, yellow, green


def with_other_light(state: WorldState, road_map: RoadMap, profile: RouteProfile, s: float,
                     rng: np.random.Generator) -> WorldState:  # fmt: skip
    """Another colour for the light ahead, and lights that fit to it at the same junction; unchanged without a
    light ahead.
    """
    line = next((line for line in profile.stop_lines if -1.0 < line.s - s - EGO_FRONT_M < LIGHT_NEAR_M), None)
    if line is None:
        return state
    colour = LightState(int(rng.choice(3, p=COLOUR_SHARES)))
    ours = road_map.light_groups[line.group]
    lights = dict(state.lights)
    for group in road_map.light_groups.values():
        if group.junction_id == ours.junction_id:
            lights[group.id] = colour if group.phase == ours.phase else _other_phase(colour, lights[group.id])
    return replace(state, lights=lights)


def _other_phase(colour: LightState, now: LightState) -> LightState:
    """What the crossing directions show: never green while ours is not red."""
    return now if colour == LightState.RED else LightState.RED


def without(state: WorldState, actor_id: int) -> WorldState:
    """The moment without one road user."""
    return replace(state, actors=tuple(actor for actor in state.actors if actor.id != actor_id))


def with_walker(state: WorldState, profile: RouteProfile, s: float, rng: np.random.Generator) -> WorldState:
    """Somebody crosses (or waits at, or walks beside) the road ahead."""
    place = s + EGO_FRONT_M + float(rng.uniform(5.0, 32.0))
    lateral = float(rng.uniform(-4.0, 4.5))
    heading = profile.at(profile.heading, place)
    x = profile.at(profile.xy[:, 0], place) - lateral * math.sin(heading)
    y = profile.at(profile.xy[:, 1], place) + lateral * math.cos(heading)
    across = math.pi / 2.0 if rng.random() < 0.5 else -math.pi / 2.0
    speed = 0.0 if rng.random() < 0.15 else float(rng.uniform(0.9, 1.9))
    height = float(rng.uniform(1.5, 1.9))
    colour = tuple(rng.uniform(0.05, 0.9, size=3).tolist())
    walker = ActorState(
        INSERTED_ID,
        "pedestrian",
        -1,
        0.0,
        x,
        y,
        state.ego.z,
        math.remainder(heading + across, math.tau),
        speed,
        0.0,
        0.5,
        0.5,
        height,
        colour,
    )
    return replace(state, actors=(*state.actors, walker))


def varied(state: WorldState, plan: ExpertPlan, road_map: RoadMap, profile: RouteProfile, s: float,
           rng: np.random.Generator) -> WorldState:  # fmt: skip
    """Often another light, sometimes without the road user that decides the plan, sometimes with somebody
    crossing.
    """
    if rng.random() < 0.5:
        state = with_other_light(state, road_map, profile, s, rng)
    if plan.actor_id >= 0 and rng.random() < 0.25:
        state = without(state, plan.actor_id)
    if rng.random() < 0.12:
        state = with_walker(state, profile, s, rng)
    return state
