"""Frames of the world with what NAVSIM's rules need beside them: the map around, who drives where in the next 5 s, the
expert's own drive. `python -m wamdiff2_sim.data.navsim_scenes --out DIR --frames N` writes shards as the dataset does,
with `scenes.json.gz` in each.

A frame equals the one that `wamdiff2_sim.dataset --natural` writes for the same seed, maps and shard size. Traffic is
recorded while the expert drives on and is replayed beside any plan: it does not react, as in NAVSIM. The car of the
scores is NAVSIM's, 0.28 m longer and 0.4 m wider than the world's.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import multiprocessing
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wamdiff2_core.evaluate.navsim.vehicle import PLAN_POSES, POSES
from wamdiff2_core.rig import load_rig
from wamdiff2_sim.data.autopilot import control_for
from wamdiff2_sim.data.entries import Frame, ego_state
from wamdiff2_sim.data.frames import PLAN_EVERY, STEP_S, Drive, FrameSource
from wamdiff2_sim.data.scene_map import lights_of, map_of
from wamdiff2_sim.data.shards import ShardWriter, shard_path
from wamdiff2_sim.dataset import RIG, SINGLE_THREADED, Job
from wamdiff2_sim.types import ActorState, Pose, VehicleControl, WorldState
from wamdiff2_sim.world import World

TRACK_POSES = 51
PAST_STEPS = 15
NEAR_M = 90.0
STOREY_M = 3.0
KINDS = {"car": "vehicle", "truck": "vehicle", "pedestrian": "pedestrian", "cyclist": "bicycle"}
SCENES = "scenes.json.gz"
SOURCE = "wamdiff2's own test world"


class RememberingWorld(World):
    """A world that knows where its ego was in the last 1.5 s (steps of 0.1 s)."""

    past: deque[WorldState]

    def reset(self, route=None, seed=None) -> WorldState:  # type: ignore[no-untyped-def]
        self.past = deque(maxlen=PAST_STEPS + 1)
        state = super().reset(route, seed)
        self.past.append(state)
        return state

    def step(self, control: VehicleControl, dt: float = 0.05) -> WorldState:
        state = super().step(control, dt)
        self.past.append(state)
        return state


@dataclass(frozen=True)
class Future:
    """States of the world now and after each 0.1 s, while the expert drives on: 51."""

    states: tuple[WorldState, ...]

    def driven(self) -> np.ndarray:
        """Poses (41, 3) of the ego in the map frame."""
        return np.array([[s.ego.x, s.ego.y, s.ego.yaw] for s in self.states[:POSES]])


class SceneSource(FrameSource):
    """Natural frames whose meta holds a NAVSIM scene under "scene", or None where the drive is too young."""

    world_type = RememberingWorld

    def _label(self, renderer, drive: Drive, state: WorldState, kind: str, map_name: str) -> Frame:  # type: ignore[no-untyped-def]
        frame = super()._label(renderer, drive, state, kind, map_name)
        world = drive.world
        assert isinstance(world, RememberingWorld)
        past = list(world.past)
        frame.meta["scene"] = None if len(past) <= PAST_STEPS else scene_of(frame.name, drive, past, look_ahead(drive))
        return frame


def look_ahead(drive: Drive) -> Future:
    """What happens in the next 5 s if the expert drives on. The world is as before when this returns."""
    world, plan = drive.world, drive.plan
    saved, past = world.snapshot(), world.past.copy() if isinstance(world, RememberingWorld) else None
    states = [world.state]
    for step in range(TRACK_POSES - 1):
        if step and step % PLAN_EVERY == 0:
            plan = drive.expert.plan(world.state, world.route, world.state.route_s)
        states.append(world.step(control_for(plan, world.state.speed, step % PLAN_EVERY), STEP_S))
    world.restore(saved)
    if isinstance(world, RememberingWorld) and past is not None:
        world.past = past
    return Future(tuple(states))


def scene_of(name: str, drive: Drive, past: list[WorldState], future: Future) -> dict[str, object]:
    """A scene in the plain form of `evaluate.navsim.scene`; its plan and human drive are the expert's own."""
    now = future.states[0]
    driven = future.driven()
    own = in_frame_of(now.ego, driven[5::5][:PLAN_POSES])
    polygons, connectors = map_of(drive.world.map, drive.world.route, now)
    return {
        "id": name,
        "source": SOURCE,
        "map": {"polygons": polygons},
        "route_centerline": _centreline(drive, now),
        "traffic_lights": lights_of(connectors, drive.world.map, drive.world.lights, now.time),
        "agents": _agents(future.states),
        "static_objects": [],
        "ego": _ego(now),
        "ego_past": [{"t": round(-0.1 * k, 1), **_ego(past[-1 - k])} for k in range(PAST_STEPS, -1, -1)],
        "reference": driven.round(4).tolist(),
        "plan": own.round(4).tolist(),
        "human": own.round(4).tolist(),
    }


def in_frame_of(ego: Pose, poses: np.ndarray) -> np.ndarray:
    """Map poses (N, 3) in the frame of a pose."""
    turned = np.array([math.remainder(yaw - ego.yaw, math.tau) for yaw in poses[:, 2]])
    return np.column_stack([ego.to_local(poses[:, :2]), turned])


def _ego(state: WorldState) -> dict[str, object]:
    motion = ego_state(state)
    return {
        "pose": [round(state.ego.x, 4), round(state.ego.y, 4), round(state.ego.yaw, 6)],
        "velocity": [round(value, 4) for value in motion.velocity],
        "acceleration": [round(value, 4) for value in motion.acceleration],
        "steering": 0.0,  # as NAVSIM builds its start states
    }


def _centreline(drive: Drive, now: WorldState) -> list[list[float]]:
    profile = drive.profile
    first = max(int((now.route_s - 20.0) * 2), 0)
    last = min(first + 300, len(profile.xy))
    line = np.column_stack([profile.xy[first:last], profile.heading[first:last]])[::2]
    return line.round(3).tolist()


def _agents(states: tuple[WorldState, ...]) -> list[dict[str, object]]:
    ego = states[0].ego
    tracks: dict[int, list[list[float] | None]] = {}
    first: dict[int, ActorState] = {}
    for step, state in enumerate(states):
        for actor in state.actors:
            if math.hypot(actor.x - ego.x, actor.y - ego.y) > NEAR_M or abs(actor.z - state.ego.z) > STOREY_M:
                continue
            first.setdefault(actor.id, actor)
            row = [round(actor.x, 3), round(actor.y, 3), round(actor.yaw, 4), round(actor.speed, 3)]
            tracks.setdefault(actor.id, [None] * len(states))[step] = row
    return [
        {
            "token": str(key), "type": KINDS[actor.kind], "length": round(actor.length, 3),
            "width": round(actor.width, 3), "track": tracks[key],
        }
        for key, actor in first.items()
    ]  # fmt: skip


def write_shard(source: SceneSource, out: Path, index: int, seed: int, size: int) -> None:
    """One shard of `size` frames with their scenes; nothing if it is there already."""
    if shard_path(out, index).exists():
        return
    writer, scenes = ShardWriter(out, index), []
    for frame in source.frames(seed, index):
        scene = frame.meta.pop("scene")
        writer.add(frame)
        if isinstance(scene, dict):
            pictures = {camera: f"images/{frame.name}_{camera}.jpg" for camera in frame.images}
            scenes.append({**scene, "sensors": {"images": pictures, "instruction": frame.instruction}})
        if writer.frames >= size:
            break
    text = json.dumps({"scenes": scenes}, separators=(",", ":"))
    writer.attach(SCENES, gzip.compress(text.encode(), compresslevel=5, mtime=0))
    writer.close()


def _work(out: Path, maps: tuple[str, ...], seed: int, sizes: dict[int, int]) -> None:
    """Shards (index -> frames) in a process of its own."""
    source = SceneSource(load_rig(RIG), maps, perturb=False)
    for index, size in sizes.items():
        write_shard(source, out, index, seed, size)
    source.close()


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--maps", default="procedural", help="procedural, or names like Town01,Town02")
    parser.add_argument("--shard-frames", type=int, default=128)
    got = parser.parse_args(argv)
    job = Job(got.out, got.frames, got.seed, got.workers, tuple(got.maps.split(",")), got.shard_frames, perturb=False)
    job.out.mkdir(parents=True, exist_ok=True)
    for name in SINGLE_THREADED:
        os.environ[name] = "1"
    sizes = {index: job.size(index) for index in range(job.shards or 0)}
    parts = [dict(list(sizes.items())[k :: job.workers]) for k in range(job.workers)]
    with ProcessPoolExecutor(job.workers, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_work, job.out, job.maps, job.seed, part) for part in parts if part]):
            done.result()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
