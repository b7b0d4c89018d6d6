"""Questions: every kind has a true, short, lower-case answer, and unsure ones are not asked."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wamdiff2_core.scene import Command
from wamdiff2_sim.expert import Expert
from wamdiff2_sim.questions import ANSWERS, ask, make_moment
from wamdiff2_sim.roads.roadmap import Lane, LightGroup, RoadMap
from wamdiff2_sim.roads.route import Manoeuvre, Route
from wamdiff2_sim.types import ActorState, GtBox, LightState, Pose, WeatherSpec, WorldState
from wamdiff2_sim.wordings import WEIGHTS, WORDINGS


@pytest.fixture(scope="module")
def road() -> tuple[RoadMap, Route, Expert]:
    points = np.column_stack([np.arange(0.0, 201.0), np.zeros(201), np.zeros(201)])
    lanes = {
        1: Lane(1, points[:122], speed_limit_mps=10.0, successors=[2], light_group=7, stop_s=118.0),
        2: Lane(2, points[121:142], speed_limit_mps=10.0, successors=[3], junction_id=5, turn=Command.STRAIGHT),
        3: Lane(3, points[141:], speed_limit_mps=10.0),
    }
    owners = np.where(points[:, 0] < 121, 1, np.where(points[:, 0] < 141, 2, 3))
    route = Route(
        points, owners, np.full(201, 10.0), [Manoeuvre(121.0, 141.0, Command.STRAIGHT, 5)], [(118.0, 7)], [1, 2, 3]
    )
    road_map = RoadMap("straight", lanes, light_groups={7: LightGroup(7, 5, 0)})
    return road_map, route, Expert(road_map)


LIGHT_BOX = GtBox("light", (300.0, 100.0, 310.0, 120.0), 1.0, 20.0)


def moment(road, x=100.0, speed=6.0, light=LightState.RED, y=0.0, boxes=(LIGHT_BOX,), actors=(), weather=None):
    _, route, expert = road
    state = WorldState(0.0, Pose(x, y), speed, route_s=x, actors=tuple(actors), lights={7: light})
    plan = expert.plan(state, route, x)
    return make_moment(state, expert.profile(route), route, x, plan, boxes, weather)


def actor(kind: str, x: float, y: float, number: int = 4, **more) -> tuple[ActorState, GtBox]:
    values = {"yaw": 0.0, "speed": 0.0, "braking": False} | more
    size = (0.5, 0.5, 1.7) if kind == "pedestrian" else (4.5, 1.8, 1.5)
    who = ActorState(
        number,
        kind,
        -1 if kind == "pedestrian" else 1,
        x,
        x,
        y,
        0.0,
        values["yaw"],
        values["speed"],
        0.0,
        *size,
        (1.0, 0.0, 0.0),
        values["braking"],
    )
    return who, GtBox(kind, (300.0, 150.0, 340.0, 220.0), 1.0, x - 100.0, number)


def answer(kind: str, now) -> str | None:
    found = ANSWERS[kind](now, np.random.default_rng(1))
    return found.answer if found else None


@pytest.mark.parametrize("light", list(LightState))
def test_colour_of_the_light(road, light):
    assert answer("light", moment(road, light=light)) == f"the light is {light.name.lower()}."


def test_no_light_far_away_and_unsure_cases_are_not_asked(road):
    assert answer("light", moment(road, x=10.0, boxes=())) == "there is no light."
    assert answer("light", moment(road, x=100.0, boxes=())) is None  # there is one, but the camera does not show it
    assert answer("light", moment(road, x=50.0, boxes=())) is None  # at the edge of sight


def test_distance_in_steps_of_five(road):
    car, box = actor("car", 117.0, 0.0)
    assert answer("distance", moment(road, boxes=(box,), actors=(car,))) == "about 15 m."
    assert answer("distance", moment(road, boxes=())) == "there is no car ahead."


def test_why(road):
    assert answer("why", moment(road)) == "the light is red."
    car, box = actor("car", 115.0, 0.0)
    assert answer("why", moment(road, light=LightState.GREEN, boxes=(box,), actors=(car,))) == "there is a car ahead."
    walker, box = actor("pedestrian", 113.0, 0.5, speed=1.0, yaw=math.pi / 2)
    assert (
        answer("why", moment(road, light=LightState.GREEN, boxes=(box,), actors=(walker,)))
        == "a pedestrian is crossing."
    )
    assert answer("why", moment(road, light=LightState.GREEN)) == "i am not braking."
    assert answer("why", moment(road, light=LightState.GREEN, boxes=(), actors=(car,))) is None  # the cause is hidden


def test_may_i_go(road):
    assert answer("may", moment(road)) == "no, the light is red."
    assert answer("may", moment(road, light=LightState.GREEN)) == "yes, the light is green."
    assert answer("may", moment(road, x=20.0, boxes=())) == "no, there is no junction here."


@pytest.mark.parametrize(
    ("y", "expected"), [(3.0, "yes, on the left."), (-3.0, "yes, on the right."), (0.5, "yes, on the road.")]
)
def test_pedestrians(road, y, expected):
    walker, box = actor("pedestrian", 112.0, y)
    assert answer("pedestrian", moment(road, boxes=(box,), actors=(walker,))) == expected
    assert answer("pedestrian", moment(road, boxes=())) == "no."


def test_count(road):
    boxes = tuple(actor("car", 110.0 + i, 0.0, i)[1] for i in range(8))
    assert [answer("count", moment(road, boxes=boxes[:n])) for n in (0, 1, 3, 8)] == [
        "i see no car.", "i see 1 car.", "i see 3 cars.", "i see many cars.",
    ]  # fmt: skip


def test_weather_and_road(road):
    rain = moment(road, weather=WeatherSpec(rain=0.6, wetness=0.7))
    assert (answer("weather", rain), answer("wet", rain)) == ("it is raining.", "yes, the road is wet.")
    night = moment(road, weather=WeatherSpec(night=True))
    assert (answer("daytime", night), answer("weather", night), answer("wet", night)) == ("it is night.", None, None)
    assert answer("weather", moment(road, weather=WeatherSpec(cloud=0.1))) == "it is sunny."


def test_place_in_the_lane(road):
    assert answer("lane", moment(road, x=30.0)) == "yes, in the middle."
    assert answer("lane", moment(road, x=30.0, y=1.0)) == "no, too far left."
    assert answer("lane", moment(road, x=30.0, y=-1.0)) == "no, too far right."
    assert answer("lane", moment(road, x=30.0, y=0.45)) is None


def test_junction_and_next(road):
    assert answer("junction", moment(road, x=97.0)) == "yes, in about 20 m."
    assert answer("junction", moment(road, x=20.0)) == "no, there is no junction."
    assert answer("next", moment(road)) == "i stop at the light."


def test_brake_lights(road):
    car, box = actor("car", 115.0, 0.0, braking=True)
    assert answer("brake_lights", moment(road, boxes=(box,), actors=(car,))) == "yes, it is braking."
    assert answer("brake_lights", moment(road, boxes=())) is None


def test_asked_questions_are_short_lower_case_and_deterministic(road):
    road_map, route, expert = road
    pairs = set()
    for seed in range(200):
        x = 5.0 + seed % 120
        state = WorldState(0.0, Pose(x, 0.0), 5.0, route_s=x, lights={7: LightState.RED})
        plan = expert.plan(state, route, x)
        arguments = {"profile": expert.profile(route), "boxes": (LIGHT_BOX,), "weather": WeatherSpec()}
        pair = ask(state, road_map, route, x, plan, np.random.default_rng(seed), **arguments)
        assert pair == ask(state, road_map, route, x, plan, np.random.default_rng(seed), **arguments)
        pairs.add(pair)
    for question, text in pairs:
        assert question == question.lower() and question.endswith("?") and len(question) < 90
        assert text == text.lower() and text.endswith(".") and len(text.split()) <= 9
    assert len({question for question, _ in pairs}) > 20


def test_every_kind_has_wordings_weights_and_an_answer():
    assert set(ANSWERS) == set(WORDINGS) == set(WEIGHTS)
