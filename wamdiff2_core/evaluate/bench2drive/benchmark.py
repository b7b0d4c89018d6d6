"""Facts of the benchmark: its 220 routes, which scenarios test which ability, what infractions cost.

Source: Thinklab-SJTU/Bench2Drive, release 0.0.4, commit 7ec25d1c9f75 (`leaderboard/data/bench2drive220.xml`,
`tools/ability_benchmark.py`, `leaderboard/utils/statistics_manager.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

RELEASE = "Bench2Drive 0.0.4"
ROUTES = 220  # sums are divided by this, whatever was driven
SIGNS = "Traffic_Signs"

# Scenario types of several abilities, named once.
_CROSSING: tuple[str, ...] = ("BlockedIntersection", "OppositeVehicleTakingPriority", "OppositeVehicleRunningRedLight")
_CROSSING += ("PedestrianCrossing", "VehicleTurningRoute", "VehicleTurningRoutePedestrian")
_JOINING: tuple[str, ...] = ("CrossingBicycleFlow", "EnterActorFlow", "NonSignalizedJunctionLeftTurn")
_JOINING += ("NonSignalizedJunctionRightTurn", "NonSignalizedJunctionLeftTurnEnterFlow", "SignalizedJunctionLeftTurn")
_JOINING += ("SignalizedJunctionRightTurn", "SignalizedJunctionLeftTurnEnterFlow")

ABILITIES: dict[str, tuple[str, ...]] = {
    "Overtaking": (
        "Accident", "AccidentTwoWays", "ConstructionObstacle", "ConstructionObstacleTwoWays", "HazardAtSideLane",
        "HazardAtSideLaneTwoWays", "ParkedObstacle", "ParkedObstacleTwoWays", "VehicleOpensDoorTwoWays",
    ),
    "Merging": (
        *_JOINING, "HighwayCutIn", "HighwayExit", "InterurbanActorFlow", "InterurbanAdvancedActorFlow",
        "MergerIntoSlowTraffic", "MergerIntoSlowTrafficV2", "ParkingExit", "SequentialLaneChange",
    ),
    "Emergency_Brake": (
        *_CROSSING, "ControlLoss", "DynamicObjectCrossing", "HardBreakRoute", "ParkingCrossingPedestrian",
        "ParkingCutIn", "StaticCutIn",
    ),
    "Give_Way": ("InvadingTurn", "YieldToEmergencyVehicle"),
    SIGNS: (
        *_CROSSING, *_JOINING, "T_Junction", "VanillaNonSignalizedTurn", "VanillaNonSignalizedTurnEncounterStopsign",
        "VanillaSignalizedTurnEncounterGreenLight", "VanillaSignalizedTurnEncounterRedLight",
    ),
}  # fmt: skip

MIN_SPEED, STOP_SIGN, RED_LIGHT, OFF_LANE = (
    "min_speed_infractions", "stop_infraction", "red_light", "outside_route_lanes",
)  # fmt: skip
# What is left of the score after one infraction. Outside of lanes costs its share of the route; slowness costs nothing.
PENALTIES: dict[str, float] = {
    "collisions_pedestrian": 0.5,
    "collisions_vehicle": 0.6,
    "collisions_layout": 0.65,
    RED_LIGHT: 0.7,
    STOP_SIGN: 0.8,
    "scenario_timeouts": 0.7,
    "yield_emergency_vehicle_infractions": 0.7,
}
INFRACTIONS: tuple[str, ...] = (*PENALTIES, OFF_LANE, MIN_SPEED, "route_dev", "vehicle_blocked", "route_timeout")
FINISHED = ("Completed", "Perfect")


class Route(NamedTuple):
    """One of the 220: its number, its town, the type of its scenario."""

    id: str
    town: str
    scenario: str


@lru_cache(maxsize=1)
def routes() -> tuple[Route, ...]:
    """All routes in the order of the official file."""
    table = json.loads(files(__package__).joinpath("routes220.json").read_text(encoding="utf-8"))
    return tuple(Route(*row) for row in table["routes"])


@lru_cache(maxsize=1)
def routes_by_id() -> Mapping[str, Route]:
    """Routes by number, in the official order."""
    return {route.id: route for route in routes()}


def penalty(infractions: Mapping[str, Sequence[str]], off_lane_percent: float) -> float:
    """Product of the penalties of all infractions (0..1); `off_lane_percent` of the route was driven out of lane."""
    product = 1.0 - off_lane_percent / 100.0
    for name, factor in PENALTIES.items():
        product *= factor ** len(infractions.get(name, ()))
    return product
