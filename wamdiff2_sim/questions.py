"""Questions about a moment in the world whose answers are known, in short lower-case sentences.

Every answer can be found in the camera images (and the question's own words): true boxes say what is visible. A
kind of question
that cannot be answered surely at this moment (a light at the edge of sight, a pose between two answers) is not asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from wamdiff2_core.scene import Command
from wamdiff2_core.tasks.navigation import navigation_text
from wamdiff2_sim.expert import ExpertPlan
from wamdiff2_sim.roads.roadmap import RoadMap
from wamdiff2_sim.roads.route import Route
from wamdiff2_sim.route_profile import JunctionSpan, RouteProfile
from wamdiff2_sim.types import EGO_FRONT_M, ActorState, GtBox, LightState, WeatherSpec, WorldState
from wamdiff2_sim.wordings import KEEP, WEIGHTS, WORDINGS

VEHICLES = ("car", "truck")
MIN_VISIBLE = 0.35
NUMBERS = ("no", "1", "2", "3", "4", "5")

MOVES = {Command.LEFT: "turn left", Command.RIGHT: "turn right", Command.STRAIGHT: "go straight"}


@dataclass(frozen=True)
class Moment:
    """All that a question may use. `boxes`: visible ones of the front camera; `actors`: those that some camera
    sees.
    """

    state: WorldState
    profile: RouteProfile
    s: float
    lateral: float
    heading_error: float
    plan: ExpertPlan
    boxes: tuple[GtBox, ...]
    actors: tuple[ActorState, ...]
    weather: WeatherSpec
    command: Command
    distance_m: float

    @property
    def front(self) -> float:
        return self.s + EGO_FRONT_M


def ask(state: WorldState, road_map: RoadMap, route: Route, route_s: float, plan: ExpertPlan, rng:
np.random.Generator, *,
        profile: RouteProfile | None = None, boxes: Sequence[GtBox] = (),
        weather: WeatherSpec | None = None) -> tuple[str, str]:  # fmt: skip
    """One question with its answer. `boxes` are the true boxes of the front camera."""
    moment = make_moment(state, profile or RouteProfile(road_map, route), route, route_s, plan, boxes, weather)
    return ask_several(moment, 1, rng)[0]


def ask_several(moment: Moment, count: int, rng: np.random.Generator) -> list[tuple[str, str]]:
    """At most `count` (at least one) questions of different kinds, with their answers."""
    kinds, weights = list(WEIGHTS), np.array(list(WEIGHTS.values()))
    order = rng.choice(len(kinds), size=len(kinds), replace=False, p=weights / weights.sum())
    out: list[tuple[str, str]] = []
    refused: list[tuple[str, str]] = []
    for kind in (kinds[index] for index in order):
        found = ANSWERS[kind](moment, rng)
        if found is None:
            continue
        wording = WORDINGS[kind][int(rng.integers(len(WORDINGS[kind])))]
        pair = (wording.format(**found.words), found.answer)
        (out if rng.random() < KEEP.get(found.answer, 1.0) else refused).append(pair)
        if len(out) == count:
            return out
    return out or refused[:1]


def make_moment(state: WorldState, profile: RouteProfile, route: Route, route_s: float, plan: ExpertPlan,
                boxes: Sequence[GtBox], weather: WeatherSpec | None) -> Moment:  # fmt: skip
    """Collect what questions look at."""
    s, lateral = profile.project(state.ego.x, state.ego.y, route_s)
    error = math.remainder(state.ego.yaw - profile.at(profile.heading, s), math.tau)
    seen = tuple(box for box in boxes if box.visible >= MIN_VISIBLE and box.camera == "cam_front")
    ids = {box.actor_id for box in seen}
    actors = tuple(actor for actor in state.actors if actor.id in ids)
    command, distance = route.command_at(s)
    return Moment(state, profile, s, lateral, error, plan, seen, actors, weather or WeatherSpec(), command, distance)


@dataclass(frozen=True)
class Found:
    """An answer, and words for the blanks of the question."""

    answer: str
    words: dict[str, str]


def _found(answer: str, **words: str) -> Found:
    return Found(answer, words)


def _about(distance: float) -> str:
    return f"about {max(5, 5 * round(distance / 5.0))} m"


def _span(moment: Moment) -> JunctionSpan | None:
    """The junction that we are in or come to next."""
    return next((span for span in moment.profile.junctions if span.end > moment.s + EGO_FRONT_M), None)


def _light(moment: Moment) -> tuple[LightState | None, bool]:
    """(colour of our light, None without one; is that sure?)"""
    line = next((line for line in moment.profile.stop_lines if line.s > moment.front - 1.0), None)
    heads = any(box.label == "light" for box in moment.boxes)
    if line is not None and line.s - moment.front < 40.0 and heads:
        return moment.state.lights.get(line.group), True
    span = _span(moment)
    near = (
        line is not None
        and line.s - moment.front < 90.0
        or span is not None
        and span.signalised
        and span.start < moment.front
    )
    return None, not heads and not near


def _leader(moment: Moment) -> tuple[ActorState, float] | None:
    """The nearest visible vehicle on our path within 45 m, and the gap (m) to it."""
    best: tuple[ActorState, float] | None = None
    for actor in moment.actors:
        if actor.kind == "pedestrian":
            continue
        gap = math.hypot(actor.x - moment.state.ego.x, actor.y - moment.state.ego.y)
        s, lateral = moment.profile.project(actor.x, actor.y, moment.s + gap)
        distance = s - actor.length / 2.0 - moment.front
        if abs(lateral) < 1.6 and 0.0 < distance < 45.0 and (best is None or distance < best[1]):
            best = (actor, distance)
    return best


def _walkers(moment: Moment) -> list[tuple[float, float]]:
    """(distance along the route, lateral offset) of visible pedestrians within 30 m."""
    out = []
    for actor in moment.actors:
        local = moment.state.ego.to_local(np.array([[actor.x, actor.y]]))[0]
        if actor.kind == "pedestrian" and 0.0 < local[0] < 30.0:
            s, lateral = moment.profile.project(actor.x, actor.y, moment.s + float(local[0]))
            out.append((s - moment.s, lateral))
    return sorted(out)


def _colour(moment: Moment, rng) -> Found | None:
    colour, sure = _light(moment)
    if not sure:
        return None
    return _found("there is no light." if colour is None else f"the light is {colour.name.lower()}.")


def _distance(moment: Moment, rng) -> Found | None:
    near = [box.distance for box in moment.boxes if box.label in VEHICLES]
    if not near:
        return _found("there is no car ahead.")
    return _found(f"{_about(min(near))}.") if min(near) < 62.0 else None


def _ahead(moment: Moment, rng) -> Found | None:
    if any(abs(lateral) < 2.0 for _, lateral in _walkers(moment)):
        return _found("a pedestrian on the road.")
    colour, sure = _light(moment)
    leader = _leader(moment)
    if leader is not None and leader[1] < 30.0:
        return _found(f"a {leader[0].kind}, {_about(leader[1] + 2.0)} away.")
    if colour is not None and sure:
        return _found(f"a {colour.name.lower()} light.")
    span = _span(moment)
    if span is not None and span.start - moment.front < 35.0:
        return _found("a junction.") if span.start - moment.front < 25.0 else None
    return _found("a free road.") if sure and leader is None else None


REASONS = {
    "red light": "the light is red.",
    "car ahead": "there is a car ahead.",
    "pedestrian": "a pedestrian is crossing.",
    "yield": "i let another car pass.",
    "curve": "the road bends.",
    "clear": "i am not braking.",
}


def _why(moment: Moment, rng) -> Found | None:
    plan, reason = moment.plan, moment.plan.reason
    slowing = plan.speed[-1] < plan.speed[0] - 1.0 or plan.speed[-1] < 0.5
    if not slowing:
        return _found(REASONS["clear"]) if reason == "clear" or plan.speed[-1] > plan.speed[0] + 1.0 else None
    if reason == "clear":
        return None
    if reason == "red light":
        colour, sure = _light(moment)
        return _found(f"the light is {colour.name.lower()}.") if sure and colour is not None else None
    if plan.actor_id >= 0 and plan.actor_id not in {actor.id for actor in moment.actors}:
        return None  # the front camera does not see it
    return _found(REASONS[reason])


def _may(moment: Moment, rng) -> Found | None:
    span = _span(moment)
    move = list(MOVES.values())[int(rng.integers(3))]
    if span is None or span.start - moment.front > 45.0:
        return _found("no, there is no junction here.", move=move)
    if span.turn not in MOVES or not -1.0 < span.start - moment.front < 20.0:
        return None
    move = MOVES[span.turn]
    colour, sure = _light(moment)
    if span.signalised and (colour is None or not sure):
        return None
    if colour in (LightState.RED, LightState.YELLOW):
        return _found(f"no, the light is {colour.name.lower()}.", move=move)
    if moment.plan.reason == "pedestrian":
        return _found("no, a pedestrian is crossing.", move=move)
    if moment.plan.reason == "yield":
        return _found("no, another car is coming.", move=move)
    if moment.plan.reason == "car ahead":
        return None
    return _found("yes, the light is green." if colour == LightState.GREEN else "yes, the way is free.", move=move)


def _pedestrian(moment: Moment, rng) -> Found | None:
    walkers = _walkers(moment)
    if not walkers:
        return None if any(box.label == "pedestrian" for box in moment.boxes) else _found("no.")
    _, lateral = min(walkers, key=lambda walker: abs(walker[1]))
    if abs(lateral) < 1.9:
        return _found("yes, on the road.")
    return _found(f"yes, on the {'left' if lateral > 0 else 'right'}.")


def _count(moment: Moment, rng) -> Found | None:
    count = sum(box.label in VEHICLES for box in moment.boxes)
    if any(box.distance > 60.0 for box in moment.boxes if box.label in VEHICLES):
        return None
    if count >= len(NUMBERS):
        return _found("i see many cars.")
    return _found(f"i see {NUMBERS[count]} car{'s' if count > 1 else ''}.")


def _weather(moment: Moment, rng) -> Found | None:
    weather = moment.weather
    if weather.rain > 0.15:
        return _found("it is raining.")
    if weather.fog > 0.2:
        return _found("it is foggy.")
    if weather.night or 0.4 < weather.cloud < 0.6 or weather.fog > 0.08:
        return None
    return _found("it is cloudy." if weather.cloud >= 0.6 else "it is sunny.")


def _daytime(moment: Moment, rng) -> Found:
    return _found("it is night." if moment.weather.night else "it is day.")


def _wet(moment: Moment, rng) -> Found | None:
    wet = moment.weather.wetness
    if 0.1 < wet < 0.35 or moment.weather.night:
        return None
    return _found("yes, the road is wet." if wet >= 0.35 else "no, the road is dry.")


def _next(moment: Moment, rng) -> Found | None:
    text = navigation_text(moment.command, moment.distance_m)
    plan = moment.plan
    if plan.speed[-1] < 1.0 and plan.reason == "red light":
        colour, sure = _light(moment)
        return _found("i stop at the light.", text=text) if sure and colour is not None else None
    if plan.speed[-1] < 1.0 and plan.reason in ("pedestrian", "yield", "car ahead"):
        if plan.actor_id not in {actor.id for actor in moment.actors}:
            return None
        who = {"pedestrian": "pedestrian"}.get(plan.reason, "car")
        return _found(f"i wait for the {who}.", text=text)
    if plan.speed[-1] < 2.0:
        return None
    span = _span(moment)
    if moment.command in MOVES and moment.distance_m < 6.0:
        if span is None or span.start > moment.s + 6.0:
            return None  # the manoeuvre is all but done
        return _found(f"i {MOVES[moment.command]}.", text=text)
    return (
        _found("i follow the road.", text=text)
        if moment.distance_m > 12.0 or moment.command is Command.FOLLOW
        else None
    )


def _lane(moment: Moment, rng) -> Found | None:
    span = _span(moment)
    if abs(moment.heading_error) > 0.15 or span is not None and span.start < moment.front + 8.0:
        return None
    if abs(moment.lateral) < 0.25:
        return _found("yes, in the middle.")
    if abs(moment.lateral) < 0.7:
        return None
    return _found(f"no, too far {'left' if moment.lateral > 0 else 'right'}.")


def _junction(moment: Moment, rng) -> Found | None:
    span = _span(moment)
    ahead = math.inf if span is None else span.start - moment.front
    if ahead > 70.0:
        return _found("no, there is no junction.")
    if ahead > 35.0:
        return None
    return _found("we are in the junction.") if ahead < -1.0 else _found(f"yes, in {_about(ahead)}.")


def _bend(moment: Moment, rng) -> Found | None:
    span = _span(moment)
    if span is not None and span.start - moment.s < 45.0:
        return None
    headings = moment.profile.heading
    turn = moment.profile.at(headings, moment.s + 30.0) - moment.profile.at(headings, moment.s + 2.0)
    if abs(turn) < 0.06:
        return _found("the road goes straight on.")
    return _found(f"the road bends to the {'left' if turn > 0 else 'right'}.") if abs(turn) > 0.2 else None


def _brake_lights(moment: Moment, rng) -> Found | None:
    leader = _leader(moment)
    if leader is None or leader[1] > 25.0 or leader[0].kind not in VEHICLES:
        return None
    return _found("yes, it is braking." if leader[0].braking else "no, it is not braking.")


ANSWERS: dict[str, Callable[[Moment, np.random.Generator], Found | None]] = {
    "light": _colour, "distance": _distance, "ahead": _ahead, "why": _why, "may": _may, "pedestrian": _pedestrian,
    "count": _count, "weather": _weather, "daytime": _daytime, "wet": _wet, "next": _next, "lane": _lane,
    "junction": _junction, "bend": _bend, "brake_lights": _brake_lights,
}  # fmt: skip
