"""The official scenario types and the acts of ours in their place. Behaviour is ours: only the purpose is theirs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wamdiff2_core.errors import ConfigError
from wamdiff2_sim.scenarios import acts_junction as junction
from wamdiff2_sim.scenarios import acts_road as road
from wamdiff2_sim.scenarios.acts import Act
from wamdiff2_sim.scenarios.paths import along, through
from wamdiff2_sim.scenarios.stage import Stage
from wamdiff2_sim.types import LightState, Pose

Parameters = dict[str, str]
Maker = Callable[[Stage, float, Parameters], Act]
SLOW_MPS = 4.0
TWO_WAY_CARS = 3


def make_act(kind: str, stage: Stage, trigger: Pose, parameters: Parameters) -> Act:
    """The act of an official type whose trigger point is `trigger` (our map frame). ConfigError for an unknown type."""
    if kind not in MAKERS:
        raise ConfigError(f"scenario type {kind!r}: expected one of {', '.join(sorted(MAKERS))}")
    s, _ = stage.route.project(np.array([trigger.x, trigger.y]))
    return MAKERS[kind](stage, s, parameters)


def _number(parameters: Parameters, name: str, default: float) -> float:
    """A parameter's value; of a range the lower end."""
    return float(parameters.get(name) or parameters.get(f"{name}.from") or default)


def _crossing(hidden: bool, distance_m: float) -> Maker:
    return lambda stage, s, p: road.Crossing(s, _number(p, "distance", distance_m), hidden)


def _at_junction_crossing(stage: Stage, s: float, p: Parameters) -> Act:
    """People cross right behind the junction."""
    found = junction.next_junction(stage.route, s)
    return road.Crossing(s, (found.end_s - s + 4.0) if found else 20.0, hidden=False)


def _blocking(what: str, two_ways: bool) -> Maker:
    return lambda stage, s, p: road.Blocking(s, _number(p, "distance", 40.0), what, TWO_WAY_CARS if two_ways else 0)


def _cut_in(distance_m: float) -> Maker:
    def make(stage: Stage, s: float, p: Parameters) -> Act:
        side = 1 if p.get("direction") == "left" else -1
        return road.CutIn(s, _number(p, "distance", distance_m), side)

    return make


def _flow(stage: Stage, s: float, p: Parameters) -> Act:
    speed = _number(p, "flow_speed", 9.0)
    return junction.Flow(stage, s, speed, _number(p, "source_dist_interval", 24.0))


def _named_flow(stage: Stage, s: float, p: Parameters) -> Act:
    """The way of the flow is given by its two ends."""
    start = np.array([_number(p, "start_actor_flow.x", 0.0), -_number(p, "start_actor_flow.y", 0.0)])
    lane = stage.map.nearest_lane(start).lane_id
    points = through(stage.map, lane, 0.0, junction.UPSTREAM_M + junction.DOWNSTREAM_M)
    speed = _number(p, "flow_speed", 9.0)
    return junction.Flow(stage, s, speed, _number(p, "source_dist_interval", 24.0), points)


def _slow_ahead(stage: Stage, s: float, p: Parameters) -> Act:
    points = along(stage.route, s + 50.0, 300.0)
    return junction.Flow(stage, s, SLOW_MPS, 12.0, points)


def _plain(light: LightState | None) -> Maker:
    return lambda stage, s, p: junction.AtJunction(stage, s, light)


MAKERS: dict[str, Maker] = {
    "DynamicObjectCrossing": _crossing(True, 44.0),
    "ParkingCrossingPedestrian": _crossing(True, 45.0),
    "PedestrianCrossing": _at_junction_crossing,
    "VehicleTurningRoutePedestrian": _at_junction_crossing,
    "VehicleTurningRoute": _at_junction_crossing,
    "HardBreakRoute": lambda stage, s, p: road.LeadBrakes(s, stage.state.route_s),
    "ControlLoss": lambda stage, s, p: road.ControlLoss(s, 0.0),
    "Accident": _blocking("accident", False),
    "AccidentTwoWays": _blocking("accident", True),
    "ParkedObstacle": _blocking("parked", False),
    "ParkedObstacleTwoWays": _blocking("parked", True),
    "VehicleOpensDoorTwoWays": _blocking("parked", True),
    "ConstructionObstacle": _blocking("works", False),
    "ConstructionObstacleTwoWays": _blocking("works", True),
    "HazardAtSideLane": _blocking("bicycles", False),
    "HazardAtSideLaneTwoWays": _blocking("bicycles", True),
    "ParkingCutIn": _cut_in(35.0),
    "StaticCutIn": _cut_in(40.0),
    "HighwayCutIn": _cut_in(40.0),
    "ParkingExit": lambda stage, s, p: road.ParkingExit(
        s, _number(p, "front_vehicle_distance", 9.0), _number(p, "behind_vehicle_distance", 9.0)
    ),
    "YieldToEmergencyVehicle": lambda stage, s, p: road.Ambulance(s, _number(p, "distance", 30.0)),
    "OppositeVehicleRunningRedLight": lambda stage, s, p: junction.RunsRed(stage, s),
    "OppositeVehicleTakingPriority": lambda stage, s, p: junction.RunsRed(stage, s),
    "BlockedIntersection": lambda stage, s, p: junction.Blocked(stage, s),
    "NonSignalizedJunctionLeftTurn": _flow,
    "NonSignalizedJunctionLeftTurnEnterFlow": _flow,
    "NonSignalizedJunctionRightTurn": _flow,
    "SignalizedJunctionLeftTurn": _flow,
    "SignalizedJunctionLeftTurnEnterFlow": _flow,
    "SignalizedJunctionRightTurn": _flow,
    "EnterActorFlow": _named_flow,
    "InterurbanActorFlow": _named_flow,
    "InterurbanAdvancedActorFlow": _named_flow,
    "CrossingBicycleFlow": _named_flow,
    "MergerIntoSlowTraffic": _slow_ahead,
    "MergerIntoSlowTrafficV2": _slow_ahead,
    "HighwayExit": _slow_ahead,
    "T_Junction": _plain(None),
    "InvadingTurn": _plain(None),
    "SequentialLaneChange": _plain(None),
    "VanillaNonSignalizedTurn": _plain(None),
    "VanillaNonSignalizedTurnEncounterStopsign": _plain(None),
    "VanillaSignalizedTurnEncounterGreenLight": _plain(LightState.GREEN),
    "VanillaSignalizedTurnEncounterRedLight": lambda stage, s, p: junction.RedFirst(stage, s),
}
TYPES: tuple[str, ...] = tuple(sorted(MAKERS))
