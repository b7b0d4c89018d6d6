"""Where the car is on the map, step by step. Points on an edge are outside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wamdiff2_core.evaluate.navsim import scene as scenes
from wamdiff2_core.evaluate.navsim.geometry import inside_polygon
from wamdiff2_core.evaluate.navsim.vehicle import centres, corners


@dataclass(frozen=True)
class Where:
    """Flags (N, 41) of simulated states, and the box centres (N, 41, 2).

    several_lanes: corners in two lanes or more and no lane holds all four. off_road: a corner is in no drivable area.
    off_route: the centre is in no lane of the route. centre_, axle_in_intersection: box centre and rear axle.
    """

    centre: np.ndarray
    several_lanes: np.ndarray
    off_road: np.ndarray
    off_route: np.ndarray
    centre_in_intersection: np.ndarray
    axle_in_intersection: np.ndarray


def locate(states: np.ndarray, areas: tuple[scenes.Area, ...]) -> Where:
    """Flags of states (N, 41, 11) on a map."""
    shape = states.shape[:2]
    centre = centres(states)
    points = np.concatenate([corners(states), centre[:, :, None], states[:, :, None, :2]], axis=2)
    inside = _membership(points.reshape(-1, 2), areas).reshape(len(areas), *shape, 6)
    is_lane = np.array([area.kind in scenes.LANES for area in areas], dtype=bool)
    on_route = np.array([area.on_route for area in areas], dtype=bool)
    drivable = np.array([area.kind in scenes.DRIVABLE for area in areas], dtype=bool)
    crossing = np.array([area.kind == scenes.INTERSECTION for area in areas], dtype=bool)
    in_lane = inside[is_lane][..., :4]
    in_crossing = inside[crossing].any(axis=0)
    return Where(
        centre=centre,
        several_lanes=(in_lane.any(axis=-1).sum(axis=0) > 1) & ~in_lane.all(axis=-1).any(axis=0),
        off_road=~inside[drivable][..., :4].any(axis=0).all(axis=-1),
        off_route=~inside[is_lane & on_route][..., 4].any(axis=0),
        centre_in_intersection=in_crossing[..., 4],
        axle_in_intersection=in_crossing[..., 5],
    )


def _membership(points: np.ndarray, areas: tuple[scenes.Area, ...]) -> np.ndarray:
    """Whether each polygon (P) holds each point (M): (P, M). Only points within a polygon's bounds are looked at."""
    found = np.zeros((len(areas), len(points)), dtype=bool)
    if not areas:
        return found
    low = np.stack([area.low for area in areas])
    high = np.stack([area.high for area in areas])
    x, y = np.ascontiguousarray(points.T)
    near = (x > low[:, :1]) & (x < high[:, :1]) & (y > low[:, 1:]) & (y < high[:, 1:])
    for index in np.flatnonzero(near.any(axis=1)):
        at = np.flatnonzero(near[index])
        found[index, at] = inside_polygon(x[at], y[at], areas[index].edges)
    return found
