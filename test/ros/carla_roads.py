"""A junction in OpenDRIVE for tests with the real client's map: a road from the south that goes on in three directions.

One lane each, driven northwards (OpenDRIVE's y, which is CARLA's -y) into a junction around the origin.
"""

from __future__ import annotations

import math

_ARM_M = 100.0


def crossing(latitude: float = 0.0) -> str:
    """The OpenDRIVE text."""
    right = math.pi / 2.0
    roads = [
        _road(1, (0.0, -10.0 - _ARM_M, right), _ARM_M, successor=("junction", 100)),
        _road(2, (0.0, 10.0, right), _ARM_M, predecessor=("junction", 100)),
        _road(3, (-10.0, 0.0, math.pi), _ARM_M, predecessor=("junction", 100)),
        _road(4, (10.0, 0.0, 0.0), _ARM_M, predecessor=("junction", 100)),
    ]
    for number, target, curvature in ((10, 2, 0.0), (11, 3, 0.1), (12, 4, -0.1)):
        length = 20.0 if curvature == 0.0 else 10.0 * right
        roads.append(_road(number, (0.0, -10.0, right), length, ("road", 1), ("road", target), 100, curvature))
    connections = "".join(
        f'<connection id="{k}" incomingRoad="1" connectingRoad="{number}" contactPoint="start">'
        f'<laneLink from="-1" to="-1"/></connection>'
        for k, number in enumerate((10, 11, 12))
    )
    reference = f"<![CDATA[+proj=tmerc +lat_0={latitude} +lon_0=8.0 +k=1 +x_0=0 +y_0=0 +datum=WGS84 +units=m]]>"
    return (
        f'<?xml version="1.0"?><OpenDRIVE><header revMajor="1" revMinor="4" name="" version="1">'
        f"<geoReference>{reference}</geoReference></header>{''.join(roads)}"
        f'<junction id="100" name="">{connections}</junction></OpenDRIVE>'
    )


def _road(
    number: int,
    start: tuple[float, float, float],
    length: float,
    predecessor: tuple[str, int] | None = None,
    successor: tuple[str, int] | None = None,
    junction: int = -1,
    curvature: float = 0.0,
) -> str:
    x, y, heading = start
    links = ""
    lane_links = ""
    for name, other, contact in (("predecessor", predecessor, "end"), ("successor", successor, "start")):
        if other is not None:
            point = f' contactPoint="{contact}"' if other[0] == "road" else ""
            links += f'<{name} elementType="{other[0]}" elementId="{other[1]}"{point}/>'
            lane_links += f'<{name} id="-1"/>' if other[0] == "road" else ""
    shape = f'<arc curvature="{curvature}"/>' if curvature else "<line/>"
    return (
        f'<road name="" length="{length}" id="{number}" junction="{junction}"><link>{links}</link>'
        f'<planView><geometry s="0.0" x="{x}" y="{y}" hdg="{heading}" length="{length}">{shape}</geometry></planView>'
        f'<elevationProfile/><lateralProfile/><lanes><laneSection s="0.0">'
        f'<center><lane id="0" type="none" level="false"><link/></lane></center>'
        f'<right><lane id="-1" type="driving" level="false"><link>{lane_links}</link>'
        f'<width sOffset="0.0" a="3.5" b="0.0" c="0.0" d="0.0"/></lane></right></laneSection></lanes></road>'
    )
