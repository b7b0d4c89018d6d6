"""Which routes to drive: of the official 220, those whose towns our world has, spread over towns and abilities."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_sim.roads.roadmap import MAPS_DIR

# Light to load first, so that a few routes are quick; all abilities occur within the first ten.
TOWN_ORDER = ("Town02", "Town01", "Town10HD", "Town07", "Town03", "Town05", "Town04", "Town06")


class OfficialRoute(NamedTuple):
    """One line of the route file."""

    id: str
    town: str
    scenario: str


def read_routes(file: Path) -> list[OfficialRoute]:
    """All routes of the file, in its order. DataError when it is none."""
    try:
        root = ElementTree.parse(file).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise DataError(f"{file}: expected a leaderboard route file, got {error}") from error
    found = []
    for route in root.iter("route"):
        scenario = route.find("scenarios/scenario")
        kind = "" if scenario is None else scenario.get("type", "")
        found.append(OfficialRoute(route.get("id", ""), route.get("town", ""), kind))
    if not found:
        raise DataError(f"{file}: expected routes, found none")
    return found


def drivable(routes: list[OfficialRoute]) -> list[OfficialRoute]:
    """Those in towns that our world has a road map of."""
    towns = {file.stem for file in MAPS_DIR.glob("*.npz")}
    return [route for route in routes if route.town in towns]


def spread(routes: list[OfficialRoute], count: int) -> list[OfficialRoute]:
    """`count` routes, one of each town in turn and no scenario type twice before all have come. ConfigError if fewer.

    In the file's order, which is the order in which the leaderboard drives them.
    """
    if not 1 <= count <= len(routes):
        raise ConfigError(f"routes: expected 1..{len(routes)}, got {count}")
    order = [town for town in TOWN_ORDER if any(route.town == town for route in routes)]
    chosen: list[OfficialRoute] = []
    while len(chosen) < count:
        for town in order:
            rest = [route for route in routes if route.town == town and route not in chosen]
            seen = {route.scenario for route in chosen}
            rest.sort(key=lambda route: route.scenario in seen)
            if rest and len(chosen) < count:
                chosen.append(rest[0])
    return [route for route in routes if route in chosen]
