"""Drives the expert through towns and yields labelled frames: natural moments and perturbed or changed ones beside
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import cv2
import numpy as np

from wamdiff2_core.scene import Camera, Command
from wamdiff2_core.tasks.navigation import navigation_text
from wamdiff2_sim.data.autopilot import control_for
from wamdiff2_sim.data.entries import Frame, detections, ego_state
from wamdiff2_sim.data.perturb import perturbed
from wamdiff2_sim.data.variants import varied
from wamdiff2_sim.expert import Expert, ExpertPlan
from wamdiff2_sim.questions import ask_several, make_moment
from wamdiff2_sim.render.renderer import Renderer
from wamdiff2_sim.roads.roadmap import RoadMap, load_map
from wamdiff2_sim.roads.route import Route, plan_route
from wamdiff2_sim.truth import true_boxes
from wamdiff2_sim.types import GtBox, Pose, WorldState, random_weather
from wamdiff2_sim.world import World

STEP_S = 0.1
PLAN_EVERY = 2
FRAMES_PER_MAP = 140
FRAMES_PER_DRIVE = 70
ROUTE_CHOICES = 6
SOUGHT = {Command.LEFT: 0.36, Command.RIGHT: 0.22, Command.STRAIGHT: 0.27, Command.FOLLOW: 0.15}
EARLY_M = 220.0  # a drive sees about so much of its route
MODEL_SIZES = {"cam_front": (320, 192)}  # (width, height); other cameras:
SIDE_SIZE = (160, 96)
FRONT = "cam_front"
ROUTE_M = (330.0, 700.0)
END_M = 70.0  # of the route: a plan there would leave it
FEWEST_LANES = 8  # a town of one road teaches little


class FrameSource:
    """Labelled frames of one worker. `maps`: names; "procedural" stands for a new town every `FRAMES_PER_MAP` frames.

    `perturb` False gives natural moments only (evaluation).
    """

    world_type: type[World] = World  # of a source that watches its world

    def __init__(
        self, rig: Sequence[Camera], maps: Sequence[str], perturb: bool = True, device_index: int | None = None
    ) -> None:
        self._rig, self._maps, self._perturb, self._device = tuple(rig), tuple(maps), perturb, device_index
        self._renderer: Renderer | None = None
        self._rng = np.random.default_rng(0)
        self._prefix, self._made = "", 0

    def frames(self, seed: int, index: int) -> Iterator[Frame]:
        """Endless frames, decided by the seed and the shard's index alone."""
        self._rng = np.random.default_rng([seed, index, 7])
        self._prefix, self._made = f"{seed:d}_{index:05d}", 0
        while True:
            name = self._next_map()
            road_map = load_map(name)
            if len(road_map.lanes) < FEWEST_LANES:
                continue
            renderer = self._load(road_map)
            expert, made = Expert(road_map), 0
            for _ in range(4):  # a drive may end early
                for frame in self._drive(renderer, road_map, name, expert):
                    yield frame
                    made += 1
                if made >= FRAMES_PER_MAP:
                    break

    def close(self) -> None:
        """Free the renderer."""
        if self._renderer is not None:
            self._renderer.release()
            self._renderer = None

    def _next_map(self) -> str:
        name = self._maps[int(self._rng.integers(len(self._maps)))]
        return f"procedural:{int(self._rng.integers(1_000, 1_000_000_000))}" if name == "procedural" else name

    def _load(self, road_map: RoadMap) -> Renderer:
        if self._renderer is None:
            self._renderer = Renderer(road_map, self._rig, device_index=self._device)
        else:
            self._renderer.set_town(road_map)
        return self._renderer

    def _drive(self, renderer: Renderer, road_map: RoadMap, name: str, expert: Expert) -> Iterator[Frame]:
        """One route through the town, with its own weather and traffic."""
        rng = self._rng
        weather = random_weather(rng)
        renderer.set_weather(weather)
        counts = int(rng.integers(8, 42)), int(rng.integers(8, 50))
        world = self.world_type(road_map, int(rng.integers(1 << 31)), None, weather, counts, ROUTE_M)
        world.reset(interesting_route(road_map, rng))
        drive = Drive(world, expert, rng)
        made = 0
        while made < FRAMES_PER_DRIVE and drive.advance(float(rng.uniform(*drive.pause()))):
            for state, kind in drive.moments(self._perturb):
                yield self._label(renderer, drive, state, kind, name)
                made += 1

    def _label(self, renderer: Renderer, drive: Drive, state: WorldState, kind: str, map_name: str) -> Frame:
        """Pictures, boxes, plan and questions of a state."""
        world, rng = drive.world, self._rng
        views = [actor.view() for actor in state.actors]
        images = renderer.render(views, state.ego, state.lights, state.time)
        boxes = true_boxes(renderer, FRONT, views, state.ego)
        seen = visible_state(state, boxes, self._rig[0])
        plan = drive.expert.plan(seen, world.route, state.route_s)
        profile = drive.expert.profile(world.route)
        moment = make_moment(seen, profile, world.route, state.route_s, plan, boxes, world.weather)
        questions = ask_several(moment, int(rng.integers(2, 4)), rng)
        command, distance = world.route.command_at(state.route_s)
        self._made += 1
        front = self._rig[0]
        return Frame(
            f"{self._prefix}_{self._made:04d}",
            {name: _small(name, image) for name, image in images.items()},
            ego_state(state),
            navigation_text(command, distance),
            plan.points,
            detections(boxes, (front.width, front.height)),
            tuple(questions),
            _meta(state, plan, kind, command, distance, map_name, world),
        )


class Drive:
    """The world driven by the expert along one route."""

    def __init__(self, world: World, expert: Expert, rng: np.random.Generator) -> None:
        self.world, self.expert, self._rng = world, expert, rng
        self.plan = self._plan()

    def advance(self, seconds: float) -> bool:
        """Drive on; False when the drive is over."""
        for _ in range(max(1, round(seconds / STEP_S / PLAN_EVERY))):
            for step in range(PLAN_EVERY):
                self.world.step(control_for(self.plan, self.world.state.speed, step), STEP_S)
            self.plan = self._plan()
        return not self.world.done and self.world.state.route_s < self.world.route.length - END_M

    def moments(self, perturb: bool) -> Iterator[tuple[WorldState, str]]:
        """States worth a frame now: the natural one, and perturbed ones beside it."""
        state, rng = self.world.state, self._rng
        interest = self.interest()
        if rng.random() > interest:
            return
        if not perturb:
            yield state, "none"
            return
        if rng.random() < 0.45:
            yield state, "none"
        for _ in range(1 if interest < 1.0 else int(rng.integers(1, 4))):
            changed = varied(state, self.plan, self.world.map, self.profile, self.place, rng)
            still = rng.random() < 0.15
            plan = self.expert.plan(changed, self.world.route, state.route_s)
            yield (changed, "scene") if still else (perturbed(changed, plan, self.profile, self.place, rng), "pose")

    @property
    def profile(self):
        return self.expert.profile(self.world.route)

    @property
    def place(self) -> float:
        """Arc length of base_link on the profile."""
        state = self.world.state
        return self.profile.project(state.ego.x, state.ego.y, state.route_s)[0]

    def turning(self) -> bool:
        """Just before or in a turn to the left or right."""
        command, distance = self.world.route.command_at(self.world.state.route_s)
        return command in (Command.LEFT, Command.RIGHT) and distance < 25.0

    def pause(self) -> tuple[float, float]:
        """Seconds until the next moment: turns, pedestrians and right of way are looked at more closely."""
        rare = self.turning() or self.plan.reason in ("pedestrian", "yield")
        return (0.25, 0.5) if rare and self.world.state.speed > 0.3 else (0.4, 1.0)

    def interest(self) -> float:
        """How much of moments like this one is kept: long waits and plain cruising are seen often enough."""
        plan, state = self.plan, self.world.state
        if state.speed < 0.1 and plan.speed[-1] < 0.3:
            return 0.3
        command, distance = self.world.route.command_at(state.route_s)
        if command is not Command.FOLLOW and distance < 25.0:
            return 1.0
        if (
            plan.reason == "clear"
            and abs(plan.speed[-1] - plan.speed[0]) < 1.0
            and abs(plan.yaw[-1] - plan.yaw[0]) < 0.1
        ):
            return 0.35
        if plan.reason == "car ahead" and abs(plan.speed[-1] - plan.speed[0]) < 1.5:
            return 0.4
        return 1.0

    def _plan(self) -> ExpertPlan:
        return self.expert.plan(self.world.state, self.world.route, self.world.state.route_s)


def interesting_route(road_map: RoadMap, rng: np.random.Generator) -> Route:
    """The one of some random routes that soonest has lights and many manoeuvres of one kind, drawn by `SOUGHT`."""
    routes = [plan_route(road_map, rng, *ROUTE_M) for _ in range(ROUTE_CHOICES)]
    sought = list(SOUGHT)[int(rng.choice(len(SOUGHT), p=list(SOUGHT.values())))]
    return max(routes, key=lambda route: _early_events(route, sought))


def _early_events(route: Route, sought: Command) -> float:
    early = [manoeuvre.command for manoeuvre in route.manoeuvres if 10.0 < manoeuvre.start_s < EARLY_M]
    lights = sum(10.0 < s < EARLY_M for s, _ in route.stop_lines)
    return early.count(sought) + 0.25 * len(early) + 0.3 * lights


def visible_state(state: WorldState, boxes: Sequence[GtBox], front: Camera) -> WorldState:
    """Without road users that stand in the front camera's view but are wholly hidden: a label must not know of
    them.
    """
    seen = {box.actor_id for box in boxes if box.visible > 0.08}
    half = math.radians(front.fov_deg) / 2.0 - 0.03
    eye: Pose = state.ego.ahead(front.position[0])
    kept = []
    for actor in state.actors:
        ahead, left = eye.to_local(np.array([[actor.x, actor.y]]))[0]
        inside = ahead > 3.0 and abs(math.atan2(left, ahead)) < half
        if not inside or actor.id in seen:
            kept.append(actor)
    return replace(state, actors=tuple(kept))


def _small(name: str, image: np.ndarray) -> np.ndarray:
    size = MODEL_SIZES.get(name, SIDE_SIZE)
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def _meta(state: WorldState, plan: ExpertPlan, kind: str, command: Command, distance: float, map_name: str,
          world: World) -> dict[str, object]:  # fmt: skip
    """What statistics are made of, and what evaluation needs."""
    near = command if distance < 25.0 else Command.FOLLOW
    weather = world.weather
    look = "night" if weather.night else "rain" if weather.rain > 0.15 else "fog" if weather.fog > 0.2 else "clear"
    return {
        "reason": plan.reason,
        "manoeuvre": near.value,
        "motion": _motion(plan),
        "perturbed": kind,
        "weather": look,
        "map": map_name.split(":")[0],
        "map_name": map_name,
        "time": round(state.time, 2),
        "speed": round(state.speed, 2),
        "yaw": round(state.ego.yaw, 4),
        "x": round(state.ego.x, 2),
        "y": round(state.ego.y, 2),
    }


def _motion(plan: ExpertPlan) -> str:
    before, after = float(plan.speed[0]), float(plan.speed[-1])
    if before < 0.2:
        return "standing" if after < 0.5 else "starting"
    if after < 0.3:
        return "stopping"
    return "slowing" if after < before - 1.5 else "speeding up" if after > before + 1.5 else "steady"
