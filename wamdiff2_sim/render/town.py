"""The whole fixed part of a town as one mesh, and its signal heads."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from wamdiff2_sim.render import road_mesh, scenery
from wamdiff2_sim.render.mesh import MeshBuilder, StaticMesh
from wamdiff2_sim.render.occupancy import Occupancy, Terrain, lane_occupancy
from wamdiff2_sim.roads.roadmap import RoadMap


@dataclass(frozen=True)
class SignalHeads:
    """Heads of all light groups, (H,) each: group id, and `pose` (H, 4) x, y, z of the middle, yaw it faces."""

    group: np.ndarray
    pose: np.ndarray


@dataclass(frozen=True)
class Town:
    """What stays the same over a drive. `seed` also chooses the textures."""

    mesh: StaticMesh
    heads: SignalHeads
    seed: int


def signal_heads(town: RoadMap) -> SignalHeads:
    """Heads in the order of groups and their poles."""
    rows = [(group.id, *pole) for group in town.light_groups.values() for pole in group.poles]
    table = np.array(rows, np.float64).reshape(-1, 5)
    return SignalHeads(table[:, 0].astype(np.int64), table[:, 1:])


def build_town(town: RoadMap, seed: int | None = None) -> Town:
    """Meshes of `town`; `seed` varies colours, buildings and plants (default: from the map's name)."""
    seed = zlib.crc32(town.name.encode()) if seed is None else seed
    rng = np.random.default_rng(seed)
    style = scenery.random_style(rng)
    terrain = Terrain(town)
    builder = MeshBuilder()
    on_lanes = lane_occupancy(town)
    road_mesh.add_roads(builder, town, terrain, on_lanes, rng)
    scenery.add_ground(builder, terrain, on_lanes.grown(6.0), style)

    heads = signal_heads(town)
    poles = on_lanes.grown(0.5)
    if len(heads.pose):
        poles.stamp(heads.pose, 2.5)
    lamps = scenery.add_lamps(builder, scenery.place_along(town, style.lamp_gap, 0.6, poles, rng), terrain)
    scenery.add_signal_poles(builder, town, terrain)

    taken = on_lanes.grown(scenery.BUILDING_MARGIN_M + 0.3)
    buildings = scenery.place_buildings(town, terrain, taken, style, rng)
    scenery.add_buildings(builder, buildings)
    _stamp_signals(taken, heads)
    for offset in (3.4, 9.0, 22.0):
        trees = scenery.place_along(town, 15.0 / style.trees, offset, taken, rng)
        scenery.add_trees(builder, trees, terrain, style, rng)
    return Town(builder.build(lamps), heads, seed)


def _stamp_signals(taken: Occupancy, heads: SignalHeads) -> None:
    """Keep plants away from where they would hide a signal: 25 m in front of it."""
    for ahead in np.arange(0.0, 26.0, 2.0):
        if len(heads.pose):
            facing = np.stack([np.cos(heads.pose[:, 3]), np.sin(heads.pose[:, 3])], 1)
            taken.stamp(heads.pose[:, :2] + facing * ahead, 2.0)
