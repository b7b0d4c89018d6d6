"""Where we are, from GNSS: the map's reference out of the route, and latitudes that may run the wrong way."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wamdiff2_core.carla_gnss import EARTH_RADIUS_M, GeoReference, Projection, carla_to_ros_gnss
from wamdiff2_core.errors import DataError

ITERATIONS = 60


def reference_of_route(latitude: float, longitude: float, x: float, y: float) -> GeoReference:
    """The map's reference point, from one route node known in degrees and in the ROS map frame (m, y north).

    Solves Mercator's equation for the reference latitude. DataError where there is no answer.
    """

    def north(degrees: float) -> float:
        return math.log(math.tan(math.radians(90.0 + degrees) / 2.0))

    wanted = north(latitude)
    reference = latitude
    for _ in range(ITERATIONS):  # a contraction: maps are small against the earth
        moved = wanted - y / (EARTH_RADIUS_M * math.cos(math.radians(reference)))
        reference = math.degrees(2.0 * math.atan(math.exp(moved))) - 90.0
    scale = EARTH_RADIUS_M * math.cos(math.radians(reference))
    found = GeoReference(reference, longitude - math.degrees(x / scale))
    back = carla_to_ros_gnss(latitude, longitude, 0.0, found)
    if math.hypot(back[0] - x, back[1] - y) > 0.1:
        raise DataError(f"route: no reference fits node {(latitude, longitude)} at {(x, y)} m, best {found}")
    return found


class Positioning:
    """Fixes to places on the ROS map. Which projection the sensor uses is seen from which one stays on the route."""

    def __init__(self, reference: GeoReference, route: np.ndarray) -> None:
        """route: (N, 2) nodes in the ROS map frame (m)."""
        self._references = {projection: reference._replace(projection=projection) for projection in Projection}
        self._route = np.asarray(route, dtype=np.float64)
        self._misfit = dict.fromkeys(Projection, 0.0)

    @property
    def projection(self) -> Projection:
        """The one believed in now."""
        return min(self._misfit, key=lambda projection: self._misfit[projection])

    def place(self, fix: Sequence[float]) -> tuple[float, float] | None:
        """(x, y) m of a fix [latitude, longitude, altitude]; None if it is no place on earth."""
        latitude, longitude = float(fix[0]), float(fix[1])
        try:
            places = {p: carla_to_ros_gnss(latitude, longitude, 0.0, r) for p, r in self._references.items()}
        except DataError:
            return None
        for projection, (x, y, _) in places.items():
            self._misfit[projection] += distance_to_line(self._route, x, y)
        x, y, _ = places[self.projection]
        return x, y


def distance_to_line(line: np.ndarray, x: float, y: float) -> float:
    """Distance (m) of a place to a line of points (N, 2)."""
    if len(line) == 1:
        return float(math.hypot(x - line[0, 0], y - line[0, 1]))
    start, step = line[:-1], np.diff(line, axis=0)
    share = ((np.array([x, y]) - start) * step).sum(1) / np.maximum((step * step).sum(1), 1e-9)
    gap = np.array([x, y]) - start - np.clip(share, 0.0, 1.0)[:, None] * step
    return float(np.sqrt((gap * gap).sum(1)).min())
