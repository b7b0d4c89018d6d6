"""Who may enter a junction: first come, first served among paths that cross, on top of what the lights say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wamdiff2_sim.fleet import CYCLIST, QUEUE, Fleet
from wamdiff2_sim.lane_graph import LaneGraph
from wamdiff2_sim.types import LightState

CLEARANCE_M = 0.5
IMPATIENT_S = 8.0  # then those who are let in but stand outside do not count any more
BLOCK_EXIT_S = 30.0
NOT_IN_YET_M = -5.0
FAIR_S = 7.0
MOVING_MPS = 2.5  # faster holders are trusted to go on: one may arrive just after them
SWIFT_MPS2 = 2.0
SPARE_S = 1.2
GIVE_BACK_S = 5.0
SLOW_MPS = 0.5
BESIDE_BIKE_M = 12.0  # a bicycle beside a turning vehicle is given this much of the junction first


class Holder(NamedTuple):
    """Someone who uses or is allowed to use a junction lane: its rear bumper is at `rear_s` of that lane (negative:
    not yet there)."""

    vehicle: int  # -1 for the ego
    lane: int
    rear_s: float
    speed: float
    bike: bool = False


@dataclass
class Entries:
    """The next junction on each vehicle's path: `slot` in its lane queue (0 none), free metres to the line, light (-1
    none)."""

    slot: np.ndarray
    distance: np.ndarray
    light: np.ndarray


def next_entries(fleet: Fleet, graph: LaneGraph, lights: np.ndarray) -> Entries:
    """Next junction entry of every vehicle; distances are from the front bumper to the stop line."""
    path = fleet.path
    inside = (path >= 0) & (graph.junction[path] >= 0)
    enters = inside[:, 1:] & (graph.junction[path[:, 1:]] != graph.junction[path[:, :-1]])
    slot = np.where(enters.any(axis=1), enters.argmax(axis=1) + 1, 0)
    rows = np.arange(len(fleet))
    before = path[rows, np.maximum(slot - 1, 0)]
    stop = fleet.cum[rows, np.maximum(slot - 1, 0)] + graph.stop_s[before] - fleet.s - fleet.length / 2.0
    group = np.where(slot > 0, graph.light[before], -1)
    state = np.where(group >= 0, lights[group], -1) if len(lights) else np.full(len(fleet), -1)
    return Entries(slot, stop, state)


def must_stop(entries: Entries, speed: np.ndarray) -> np.ndarray:
    """(N,) bool: the light demands a stop that can still be made."""
    can = entries.distance > np.where(speed > 1.0, -0.2, -1.5)
    comfortable = entries.distance > speed * speed / (2.0 * 3.5)
    red = (entries.light == LightState.RED) & can & (entries.distance > speed * speed / (2.0 * 7.5) - 0.5)
    return (entries.slot > 0) & (red | ((entries.light == LightState.YELLOW) & can & comfortable))


class RightOfWay:
    """Grants entry to junctions. Keeps its memory in the fleet's `granted` and `asked_at`."""

    def __init__(self, graph: LaneGraph) -> None:
        self.graph = graph

    def update(
        self, fleet: Fleet, entries: Entries, stop: np.ndarray, gap: np.ndarray, ego: list[Holder], t: float
    ) -> None:
        """Grant or take back. `stop` (N,) light says stop; `gap` (N,) free metres to the leader; `ego`: lanes the ego
        claims."""
        fleet.granted &= ~stop & ~((fleet.still > GIVE_BACK_S) & (entries.distance > 0.3))
        decide = np.maximum(6.0, fleet.speed * fleet.speed / 4.4 + 0.6 * fleet.speed + 2.0)
        asks = fleet.active & (entries.slot > 0) & ~fleet.granted & ~stop & (entries.distance < decide)
        fleet.asked_at[~asks & ~fleet.granted] = np.inf
        candidates = np.flatnonzero(asks & (gap > entries.distance - 0.5))
        if len(candidates) == 0:
            return
        fleet.asked_at[candidates] = np.minimum(fleet.asked_at[candidates], t)
        holders = self._holders(fleet) + ego
        for i in candidates[np.lexsort((candidates, fleet.asked_at[candidates]))].tolist():
            waited = t - fleet.asked_at[i]
            lanes = self._junction_lanes(fleet, i, int(entries.slot[i]))
            claims = self._claims(fleet, i, lanes)
            blocked = self._blocked(claims, float(fleet.length[i]), holders, impatient=waited > IMPATIENT_S)
            leaves = waited > BLOCK_EXIT_S or self._exit_free(fleet, i, lanes)
            fleet.granted[i] = leaves and not blocked
            if leaves and (not blocked or waited > FAIR_S):  # whoever waited long keeps newcomers out
                holders += claims

    def _claims(self, fleet: Fleet, i: int, lanes: list[tuple[int, float]]) -> list[Holder]:
        rear, bike = fleet.s[i] - fleet.length[i] / 2.0, bool(fleet.kind[i] == CYCLIST)
        return [Holder(int(i), lane, float(rear - cum), float(fleet.speed[i]), bike) for lane, cum in lanes]

    def _junction_lanes(self, fleet: Fleet, i: int, slot: int) -> list[tuple[int, float]]:
        """(lane, metres from the current lane's start) of the lanes of one junction on the path of vehicle `i`."""
        junction = self.graph.junction[fleet.path[i, slot]]
        found: list[tuple[int, float]] = []
        while slot < QUEUE and fleet.path[i, slot] >= 0 and self.graph.junction[fleet.path[i, slot]] == junction:
            found.append((int(fleet.path[i, slot]), float(fleet.cum[i, slot])))
            slot += 1
        return found

    def _holders(self, fleet: Fleet) -> list[Holder]:
        graph, found = self.graph, []
        rear = fleet.s - fleet.length / 2.0
        now = fleet.path[:, 0]
        inside = fleet.active & (now >= 0) & (graph.junction[now] >= 0)
        leaving = fleet.active & (fleet.previous >= 0) & (graph.junction[fleet.previous] >= 0) & (rear < CLEARANCE_M)
        for i in np.flatnonzero(inside | leaving | (fleet.granted & fleet.active)).tolist():
            speed, bike = float(fleet.speed[i]), bool(fleet.kind[i] == CYCLIST)
            if leaving[i]:
                lane = int(fleet.previous[i])
                found.append(Holder(int(i), lane, float(rear[i] + graph.length[lane]), speed, bike))
            slots = [0] if inside[i] else []
            slots += [k for k in range(1, QUEUE) if self._continues(fleet, i, k, bool(inside[i]))]
            found += [
                Holder(int(i), int(fleet.path[i, k]), float(rear[i] - fleet.cum[i, k]), speed, bike) for k in slots
            ]
        return found

    def _continues(self, fleet: Fleet, i: int, k: int, inside: bool) -> bool:
        """Whether slot `k` of vehicle `i` is a lane of the junction that it is in (or is granted, when not in one)."""
        junction = self.graph.junction[fleet.path[i, : k + 1]]
        if fleet.path[i, k] < 0 or junction[k] < 0:
            return False
        if inside:
            return bool((junction == junction[0]).all())
        first = int(np.argmax(junction >= 0))
        return bool(fleet.granted[i]) and bool((junction[first:] == junction[first]).all())

    def _blocked(self, claims: list[Holder], length: float, holders: list[Holder], impatient: bool) -> bool:
        """Whether a vehicle of that length that wants `claims` has to wait for any of `holders`."""
        return any(
            self._in_the_way(claim, length, holder)
            for holder in holders
            if holder.vehicle != claims[0].vehicle
            and not (impatient and holder.speed < SLOW_MPS and holder.rear_s < NOT_IN_YET_M)
            for claim in claims
        )

    def _in_the_way(self, claim: Holder, length: float, holder: Holder) -> bool:
        """Whether `holder` still needs ground that the lane of `claim` crosses when the claimant could be there."""
        graph = self.graph
        if graph.junction[claim.lane] != graph.junction[holder.lane]:
            return False
        zone = graph.conflict(claim.lane, holder.lane)
        if zone is None:
            beside = (claim.bike or holder.bike) and claim.lane != holder.lane
            return beside and holder.rear_s < BESIDE_BIKE_M and graph.begin_together(claim.lane, holder.lane)
        left = zone[3] + CLEARANCE_M - holder.rear_s
        if left <= 0.0:
            return False
        if holder.speed < MOVING_MPS:
            return True
        way = max(zone[0] - CLEARANCE_M - claim.rear_s - length, 0.0)
        arrival_s = (math.sqrt(claim.speed**2 + 2.0 * SWIFT_MPS2 * way) - claim.speed) / SWIFT_MPS2
        return arrival_s < left / holder.speed + SPARE_S

    def _exit_free(self, fleet: Fleet, i: int, lanes: list[tuple[int, float]]) -> bool:
        """Whether vehicle `i` finds room behind the junction, so that it does not stop inside."""
        lane, _ = lanes[-1]
        after = np.flatnonzero(fleet.path[i] == lane)
        exit_slot = int(after[-1]) + 1 if len(after) else QUEUE
        if exit_slot >= QUEUE or fleet.path[i, exit_slot] < 0:
            return True
        on_exit = fleet.active & (fleet.path[:, 0] == fleet.path[i, exit_slot]) & (fleet.speed < 1.5)
        room = (fleet.s - fleet.length / 2.0)[on_exit].min(initial=np.inf)
        return bool(room > fleet.length[i] + 2.0)
