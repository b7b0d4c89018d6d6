"""The five abilities: success rate over the scenarios that test one (`tools/ability_benchmark.py`, release 0.0.4).

Per route of the 220 the FIRST record in the merged order counts. Routes without a record are left out of the
denominators and listed as crashed. A failed route of a Traffic_Signs scenario still counts there if it went past its
first junction (completion above `junction_completion`, strictly) without a stop-sign or red-light message: only the
map can tell where that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.bench2drive.benchmark import ABILITIES, RED_LIGHT, SIGNS, STOP_SIGN, Route, routes
from wamdiff2_core.evaluate.bench2drive.records import Record, number

BEYOND_JUNCTION = 8  # waypoints (1 m apart) behind the junction's first one, for the scenario's trigger


@dataclass
class Tally:
    """Routes with a record, the successful ones, and those that only a map can decide."""

    routes: int = 0
    successes: int = 0
    undecided: int = 0

    def share(self) -> float | None:
        """Success rate; None without a route, or while a route is undecided."""
        return self.successes / self.routes if self.routes and not self.undecided else None

    def bounds(self) -> list[float] | None:
        """The success rate if no or every undecided route were a success; None without a route."""
        return [(self.successes + k) / self.routes for k in (0, self.undecided)] if self.routes else None


@dataclass
class Abilities:
    """Tallies by ability, [scenario, route] of the routes without a record, routes for which a map is needed."""

    tallies: dict[str, Tally] = field(default_factory=lambda: {name: Tally() for name in ABILITIES})
    crashed: list[list[str]] = field(default_factory=list)
    map_needed: list[str] = field(default_factory=list)

    def shares(self) -> dict[str, Any]:
        """Success rates by ability, `mean` over the five (None if one is), and `crashed`."""
        shares = {name: tally.share() for name, tally in self.tallies.items()}
        known = [share for share in shares.values() if share is not None]
        mean = sum(known) / len(shares) if len(known) == len(shares) else None
        return {**shares, "mean": mean, "crashed": self.crashed}

    def detail(self) -> dict[str, dict[str, Any]]:
        """What the shares were made from, with bounds where a map is needed."""
        return {
            name: {
                "routes": tally.routes,
                "successes": tally.successes,
                "undecided": tally.undecided,
                "bounds": tally.bounds(),
            }
            for name, tally in self.tallies.items()
        }


def abilities(merged: Sequence[Record], map_lookups: Mapping[str, Any] | None) -> Abilities:
    """Tally the 220 routes, towns in alphabetical order. DataError for a lookup that is none."""
    made = Abilities()
    first = first_records(merged)
    lookups = {str(key): value for key, value in (map_lookups or {}).items()}
    for route in sorted(routes(), key=lambda route: route.town):
        if route.id in first:
            _count(made, route, first[route.id], lookups)
        else:
            made.crashed.append([route.scenario, route.id])
    return made


def first_records(merged: Sequence[Record]) -> dict[str, Record]:
    """By route number: the first record in the merged order."""
    first: dict[str, Record] = {}
    for record in merged:
        first.setdefault(record.number, record)
    return first


def _count(made: Abilities, route: Route, record: Record, lookups: Mapping[str, Any]) -> None:
    for name, scenarios in ABILITIES.items():
        if route.scenario not in scenarios:
            continue
        tally = made.tallies[name]
        tally.routes += 1
        success: bool | None = record.success
        if name == SIGNS and not success:
            success = _obeyed_signs(route.id, record, lookups)
        if success is None:
            tally.undecided += 1
            made.map_needed.append(route.id)
        else:
            tally.successes += success


def _obeyed_signs(route: str, record: Record, lookups: Mapping[str, Any]) -> bool | None:
    """Whether a failed route passed its first junction within the rules; None if that needs a map."""
    if record.infractions.get(STOP_SIGN) or record.infractions.get(RED_LIGHT) or record.score_route <= 0.0:
        return False
    if route not in lookups:
        return None
    return record.score_route / 100.0 > junction_completion(route, lookups[route])


def junction_completion(route: str, lookup: object) -> float:
    """Share of the route from which on its first junction counts as passed: (to the junction + 8) / whole route.

    A lookup may state the share alone, as `junction_completion`. DataError for a malformed lookup.
    """
    if not isinstance(lookup, Mapping):
        raise DataError(f"map_lookups[{route}]: expected an object, got {type(lookup).__name__}")
    if "waypoints_to_first_junction" not in lookup and "junction_completion" in lookup:
        return number(lookup["junction_completion"], f"map_lookups[{route}].junction_completion")
    first = number(lookup.get("waypoints_to_first_junction"), f"map_lookups[{route}].waypoints_to_first_junction")
    count = number(lookup.get("route_waypoints"), f"map_lookups[{route}].route_waypoints")
    if not 1 <= first <= count:
        raise DataError(f"map_lookups[{route}]: expected 1 <= {first:g} (to the junction) <= {count:g} (route)")
    return (first + BEYOND_JUNCTION) / count
