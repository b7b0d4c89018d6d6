"""Latitudes and longitudes: round trips, the file's reference, and the real client's own projection."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wamdiff2_core import carla_gnss as cg
from wamdiff2_core.errors import DataError

METRES = st.floats(-8000.0, 8000.0)
ROAD = """<?xml version="1.0"?><OpenDRIVE><header revMajor="1" revMinor="4" name="" version="1">
<geoReference><![CDATA[+proj=tmerc +lat_0={lat} +lon_0={lon} +k=1 +x_0=0 +y_0=0 +datum=WGS84 +units=m]]></geoReference>
</header><road name="r" length="50.0" id="1" junction="-1"><link/>
<planView><geometry s="0.0" x="0.0" y="0.0" hdg="0.0" length="50.0"><line/></geometry></planView>
<elevationProfile/><lateralProfile/><lanes><laneSection s="0.0"><center><lane id="0" type="none" level="false">
<link/></lane></center><right><lane id="-1" type="driving" level="false"><link/>
<width sOffset="0.0" a="3.5" b="0.0" c="0.0" d="0.0"/></lane></right></laneSection></lanes></road></OpenDRIVE>"""


@pytest.mark.parametrize("projection", list(cg.Projection))
@given(METRES, METRES, st.floats(-60.0, 60.0))
def test_places_come_back(projection: cg.Projection, x: float, y: float, latitude: float) -> None:
    reference = cg.GeoReference(latitude, 8.0, 100.0, projection)
    there = cg.ros_to_carla_gnss((x, y, 3.0), reference)
    assert there[2] == 103.0
    assert cg.carla_to_ros_gnss(*there, reference) == pytest.approx((x, y, 3.0), abs=1e-5)


def test_north_and_east_are_positive_and_a_degree_is_a_degree() -> None:
    equator = cg.GeoReference(0.0, 0.0)
    metres = math.radians(1.0) * cg.EARTH_RADIUS_M
    assert cg.ros_to_carla_gnss((metres, 0.0, 0.0), equator) == pytest.approx((0.0, 1.0, 0.0))
    assert cg.ros_to_carla_gnss((0.0, 100.0, 0.0), equator)[0] > 0.0  # y is north: CARLA's -y
    flipped = equator._replace(projection=cg.Projection.TRANSVERSE_FLIPPED)
    assert cg.ros_to_carla_gnss((0.0, 100.0, 0.0), flipped)[0] < 0.0


@pytest.mark.parametrize("version, name", [("0.9.15", "MERCATOR"), ("0.9.16", "TRANSVERSE_FLIPPED"), ("", "MERCATOR")])
def test_the_version_says_which_projection(version: str, name: str) -> None:
    assert cg.Projection.of_version(version).name == name


def test_the_files_reference() -> None:
    assert cg.geo_reference(ROAD.format(lat="41.5", lon="-8.25e0")) == (41.5, -8.25, 0.0, cg.Projection.MERCATOR)
    with pytest.raises(DataError, match="geoReference"):
        cg.geo_reference("<OpenDRIVE><header/></OpenDRIVE>")
    with pytest.raises(DataError, match="geoReference"):
        cg.geo_reference(ROAD.format(lat="1-2", lon="0"))


@pytest.mark.parametrize("fix", [(math.nan, 0.0, 0.0), (90.0, 0.0, 0.0), (0.0, math.inf, 0.0)])
def test_what_is_no_fix_is_refused(fix: tuple[float, float, float]) -> None:
    with pytest.raises(DataError, match="GNSS"):
        cg.carla_to_ros_gnss(*fix, cg.DEFAULT_REFERENCE)


@pytest.mark.parametrize("latitude, longitude", [(0.0, 0.0), (41.5, 2.1), (-33.0, 151.0)])
def test_against_the_clients_own_map(latitude: float, longitude: float) -> None:
    carla = pytest.importorskip("carla", reason="the carla wheel is an extra (Python 3.12 and older)")
    opendrive = ROAD.format(lat=latitude, lon=longitude)
    world = carla.Map("road", opendrive)
    reference = cg.geo_reference(opendrive, cg.Projection.TRANSVERSE_FLIPPED)  # the wheel is 0.9.16
    for x, y, z in ((0.0, 0.0, 0.0), (1500.0, -700.0, 5.0), (-2000.0, 3000.0, -1.0)):
        seen = world.transform_to_geolocation(carla.Location(x, y, z))
        mine = cg.ros_to_carla_gnss((x, -y, z), reference)
        assert (seen.latitude, seen.longitude, seen.altitude) == pytest.approx(mine, abs=1e-8)  # a millimetre
