"""Latitude and longitude as CARLA makes them of its map, and the way back. Pure, no carla.

Two ways, by version: up to 0.9.15 a Mercator map about the reference point that the town's OpenDRIVE file names; 0.9.16
a transverse Mercator map of a sphere, with the scale 0.9996 whatever the file says, and y counted to the NORTH instead
of to the south, so that the latitude runs the wrong way. The leaderboard's own route coordinates are always Mercator.
"""

from __future__ import annotations

import math
import re
from enum import Enum
from typing import NamedTuple

from wamdiff2_core.carla_frames import Vector
from wamdiff2_core.errors import DataError

EARTH_RADIUS_M = 6_378_137.0
TRANSVERSE_SCALE = 0.9996
_REFERENCE = re.compile(r"\+(lat_0|lon_0)=([-+0-9.eE]+)")


class Projection(str, Enum):
    """How a version of CARLA makes latitudes of places."""

    MERCATOR = "mercator"  # up to 0.9.15, and the leaderboard's routes
    TRANSVERSE_FLIPPED = "transverse_flipped"  # the GNSS sensor and the map of 0.9.16

    @classmethod
    def of_version(cls, version: str) -> Projection:
        """The sensor's and the map's projection for a server or client version such as '0.9.16'."""
        return cls.TRANSVERSE_FLIPPED if version.strip().startswith("0.9.16") else cls.MERCATOR


class GeoReference(NamedTuple):
    """Degrees and metres of the map's origin, and the projection about it."""

    latitude: float
    longitude: float
    altitude: float = 0.0
    projection: Projection = Projection.MERCATOR


DEFAULT_REFERENCE = GeoReference(42.0, 2.0)  # CARLA's own, where a map names none


def geo_reference(opendrive: str, projection: Projection = Projection.MERCATOR) -> GeoReference:
    """The reference that an OpenDRIVE file (or its <geoReference> alone) names. DataError if it names none."""
    found = dict(_REFERENCE.findall(opendrive.split("</geoReference>")[0]))
    try:
        return GeoReference(float(found["lat_0"]), float(found["lon_0"]), 0.0, projection)
    except (KeyError, ValueError) as error:
        raise DataError(f"OpenDRIVE: expected a geoReference with +lat_0 and +lon_0, got {found}") from error


def ros_to_carla_gnss(position: Vector, reference: GeoReference) -> tuple[float, float, float]:
    """(latitude, longitude in degrees, altitude in m) of a place in the ROS map frame (x east, y north; m)."""
    x, y, z = position
    if reference.projection is Projection.MERCATOR:
        scale = math.cos(math.radians(reference.latitude)) * EARTH_RADIUS_M
        longitude = reference.longitude + math.degrees(x / scale)
        latitude = _latitude(_mercator(reference.latitude) + y / scale)
    else:
        radius = EARTH_RADIUS_M * TRANSVERSE_SCALE
        east, north = x / radius, math.radians(reference.latitude) - y / radius
        longitude = reference.longitude + math.degrees(math.atan2(math.sinh(east), math.cos(north)))
        latitude = math.degrees(math.asin(math.sin(north) / math.cosh(east)))
    return latitude, longitude, reference.altitude + z


def carla_to_ros_gnss(latitude: float, longitude: float, altitude: float, reference: GeoReference) -> Vector:
    """The place in the ROS map frame (m) of a GNSS fix. DataError unless all is finite and |latitude| < 90."""
    if not (math.isfinite(latitude) and math.isfinite(longitude) and math.isfinite(altitude) and abs(latitude) < 90.0):
        raise DataError(f"GNSS: expected finite numbers and |latitude| < 90, got {(latitude, longitude, altitude)}")
    turn = math.radians(longitude - reference.longitude)
    if reference.projection is Projection.MERCATOR:
        scale = math.cos(math.radians(reference.latitude)) * EARTH_RADIUS_M
        x, y = scale * turn, scale * (_mercator(latitude) - _mercator(reference.latitude))
    else:
        radius = EARTH_RADIUS_M * TRANSVERSE_SCALE
        x = radius * math.atanh(math.sin(turn) * math.cos(math.radians(latitude)))
        y = radius * (math.radians(reference.latitude) - math.atan2(math.tan(math.radians(latitude)), math.cos(turn)))
    return x, y, altitude - reference.altitude


def _mercator(latitude: float) -> float:
    """The Mercator map's north coordinate, on a sphere of radius 1."""
    return math.log(math.tan(math.radians(90.0 + latitude) / 2.0))


def _latitude(north: float) -> float:
    """The way back of _mercator, degrees."""
    return math.degrees(2.0 * math.atan(math.exp(north))) - 90.0
