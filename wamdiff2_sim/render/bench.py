"""How fast a rig is drawn: `python -m wamdiff2_sim.render.bench --maps Town01,procedural:1`.

Prints one line per map. `--pictures FOLDER` also writes what the front camera saw.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from PIL import Image

from wamdiff2_core.rig import load_rig
from wamdiff2_sim.render.context import describe
from wamdiff2_sim.render.renderer import Renderer
from wamdiff2_sim.roads.roadmap import RoadMap, load_map
from wamdiff2_sim.types import ActorView, LightState, Pose, WeatherSpec

SIZES_M = {
    "car": (4.6, 1.85, 1.5),
    "truck": (7.5, 2.5, 3.2),
    "pedestrian": (0.5, 0.55, 1.75),
    "cyclist": (1.8, 0.6, 1.75),
}
WEATHERS = {
    "day": WeatherSpec(),
    "rain": WeatherSpec(0.5, 1.0, 1.0, 0.1, 0.8, 0.9),
    "night": WeatherSpec(-0.2, night=True),
}


def scatter(town: RoadMap, count: int, rng: np.random.Generator) -> list[ActorView]:
    """Road users standing anywhere on lanes."""
    lanes = list(town.lanes.values())
    actors = []
    for number in range(1, count + 1):
        lane = lanes[rng.integers(len(lanes))]
        s = rng.uniform(0.0, lane.length)
        kind = str(rng.choice(["car", "car", "car", "truck", "pedestrian", "cyclist"]))
        red, green, blue = rng.uniform(0.05, 0.95, 3).tolist()
        x, y, z = lane.point_at(s).tolist()
        actors.append(ActorView(number, kind, x, y, z, lane.heading_at(s), *SIZES_M[kind], (red, green, blue)))
    return actors


def viewpoints(town: RoadMap, count: int, rng: np.random.Generator) -> list[Pose]:
    """Places on lanes, looking along them."""
    lanes = list(town.lanes.values())
    chosen = [
        (lane, rng.uniform(0.0, lane.length)) for lane in (lanes[i] for i in rng.integers(len(lanes), size=count))
    ]
    places = [(lane.point_at(s), lane.heading_at(s)) for lane, s in chosen]
    return [Pose(float(x), float(y), float(z), heading) for (x, y, z), heading in places]


def main() -> None:
    """Parse arguments, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--maps", default="Town01,Town03,Town05,Town10HD,procedural:1")
    parser.add_argument("--rig", default="config/rig_three.yaml")
    parser.add_argument("--weather", choices=sorted(WEATHERS), default="day")
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--pictures", type=Path)
    arguments = parser.parse_args()
    rig = load_rig(arguments.rig)
    for name in arguments.maps.split(","):
        rng = np.random.default_rng(0)
        town = load_map(name)
        actors, poses = scatter(town, 90, rng), viewpoints(town, 20, rng)
        lights = {group: LightState(int(rng.integers(3))) for group in town.light_groups}
        started = time.perf_counter()
        with Renderer(town, rig, WEATHERS[arguments.weather]) as renderer:
            ready = time.perf_counter() - started
            pictures = [renderer.render(actors, pose, lights) for pose in poses]
            started, cpu = time.perf_counter(), time.process_time()
            for i in range(arguments.frames):
                renderer.render(actors, poses[i % len(poses)], lights)
            wall, cpu = time.perf_counter() - started, time.process_time() - cpu
            rate, cpu_ms, driver = arguments.frames / wall, 1e3 * cpu / arguments.frames, describe(renderer.context)
            print(
                f"{name}: {rate:.1f} frames/s of {len(rig)} views, CPU {cpu_ms:.1f} ms, set-up {ready:.2f} s, {driver}"
            )
        if arguments.pictures:
            arguments.pictures.mkdir(parents=True, exist_ok=True)
            sheet = np.concatenate([picture[rig[0].name] for picture in pictures[:4]])
            Image.fromarray(sheet).save(arguments.pictures / f"{name.replace(':', '_')}_{arguments.weather}.png")


if __name__ == "__main__":
    main()
