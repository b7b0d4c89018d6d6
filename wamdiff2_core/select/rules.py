"""A rule-based scorer: PDMS of candidates in the world as it is known now, everybody driving on as they do.

Collision, time to collision, drivable area, comfort and progress are NAVSIM's rules (`evaluate.navsim`); what a scene
file knows of the future is replaced by constant speed along each object's heading. Objects come from boxes that are
recorded, or from the detections of one picture (`ground.py`). Without a map nothing is off the road.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.navsim import vehicle as car
from wamdiff2_core.evaluate.navsim.devkit import poses_of
from wamdiff2_core.evaluate.navsim.geometry import edges_of
from wamdiff2_core.evaluate.navsim.scene import DRIVABLE, STOPPED_MPS, TRACK_POSES, Area, Objects, Scene, path_of
from wamdiff2_core.evaluate.navsim.scoring import score_plans
from wamdiff2_core.scene import EgoState, Plan

FAR_M = 500.0  # half the side of the ground where no map is known
PAST_STATES = 14


@dataclass(frozen=True)
class Thing:
    """Somebody or something on the road, in base_link's frame: middle, heading, speed along it, size (m, rad, m/s)."""

    x: float
    y: float
    heading: float
    speed: float
    length: float
    width: float
    agent: bool = True


@dataclass(frozen=True)
class Surroundings:
    """What is known around the car, in base_link's frame. drivable: rings (V, 2), none: everywhere. route: points
    (V, 2) of the way to go, None: progress is measured along the plain plan.
    """

    things: tuple[Thing, ...] = ()
    drivable: tuple[np.ndarray, ...] = ()
    route: np.ndarray | None = field(default=None)


def rule_scores(points: np.ndarray, ego: EgoState, world: Surroundings) -> np.ndarray:
    """Scores (K,) of candidates (K, 8, 2), the plain plan first; NaN for those that are NaN. DataError if all are."""
    points = np.asarray(points, dtype=np.float64)
    valid = np.isfinite(points).all(axis=(1, 2))
    if not valid.any():
        raise DataError("candidates: expected one plan or more, got none")
    poses = np.array([poses_of(Plan(one, np.ones(8)), ego.speed) for one in points[valid]], dtype=np.float64)
    farthest = int(np.linalg.norm(np.diff(poses[..., :2], axis=1), axis=2).sum(axis=1).argmax())
    scores = np.full(len(points), np.nan)
    scores[valid] = score_plans(_scene(poses, ego, world, farthest), poses, ("v11",)).v11["score"]
    return scores


def recorded(scene: Scene) -> Surroundings:
    """What a NAVSIM scene knows of the present alone: boxes and their speeds now, the map, the way to go."""
    heading = float(scene.start[car.HEADING])
    turn = np.array([[np.cos(heading), -np.sin(heading)], [np.sin(heading), np.cos(heading)]])

    def local(points: np.ndarray) -> np.ndarray:
        return (points - scene.start[:2]) @ turn

    things = []
    for pose, following, half, agent in zip(
        scene.objects.poses[:, 0], scene.objects.poses[:, 1], scene.objects.half, scene.objects.agent, strict=True
    ):
        if np.isfinite(pose).all():
            moved = np.nan_to_num(following[:2] - pose[:2]) / car.STEP_S
            speed = float(moved @ (np.cos(pose[2]), np.sin(pose[2])))
            x, y = local(pose[None, :2])[0]
            length, width = 2.0 * half
            things.append(Thing(x, y, float(pose[2]) - heading, speed, length, width, bool(agent)))
    rings = tuple(local(area.edges[:2, :, 0].T) for area in scene.areas if area.kind in DRIVABLE)
    return Surroundings(tuple(things), rings, local(scene.centreline))


def _scene(poses: np.ndarray, ego: EgoState, world: Surroundings, farthest: int) -> Scene:
    start = np.zeros(len(car.COLUMNS))
    start[[car.SPEED_X, car.SPEED_Y, car.ACCEL_X, car.ACCEL_Y]] = *ego.velocity, *ego.acceleration
    return Scene(
        id="now",
        origin=np.zeros(2),
        start=start,
        past=np.tile(start, (PAST_STATES, 1)),  # only v2 looks at it, which is not used here
        areas=_areas(world.drivable),
        centreline=_line(poses[0, :, :2]) if world.route is None else np.asarray(world.route, dtype=np.float64),
        red=(),
        objects=_objects(world.things),
        reference=path_of(poses[farthest : farthest + 1], start)[0],
        plan=poses[0],
        human=None,
        before=None,
    )


def _areas(rings: Sequence[np.ndarray]) -> tuple[Area, ...]:
    everywhere = FAR_M * np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    grounds = [np.asarray(ring, dtype=np.float64) for ring in rings] or [everywhere]
    return tuple(
        Area(f"ground {k}", "DRIVABLE_AREA", True, edges_of(ring), ring.min(axis=0), ring.max(axis=0))
        for k, ring in enumerate(grounds)
    )


def _objects(things: Sequence[Thing]) -> Objects:
    rows = np.array([[t.x, t.y, t.heading, t.speed] for t in things]).reshape(-1, 4)
    travelled = rows[:, 3, None] * np.arange(TRACK_POSES) * car.STEP_S
    turn = rows[:, 2, None]
    poses = np.stack(
        [rows[:, :1] + travelled * np.cos(turn), rows[:, 1:2] + travelled * np.sin(turn), turn + 0.0 * travelled],
        axis=2,
    )
    half = np.array([[t.length / 2, t.width / 2] for t in things]).reshape(-1, 2)
    agent = np.array([t.agent for t in things], dtype=bool)
    return Objects(poses, half, agent, ~agent | (np.abs(rows[:, 3]) <= STOPPED_MPS))


def _line(points: np.ndarray) -> np.ndarray:
    """The plain plan's path from here, straight on behind its end."""
    knots = np.vstack([[0.0, 0.0], points])
    moved = np.linalg.norm(np.diff(knots, axis=0), axis=1)
    last = np.flatnonzero(moved > 0.1)
    step = knots[last[-1] + 1] - knots[last[-1]] if len(last) else np.array([1.0, 0.0])
    return np.vstack([knots, knots[-1] + 100.0 * step / np.linalg.norm(step)])
