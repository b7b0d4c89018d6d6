"""Traffic lights: every junction runs its phases in turn, by the clock alone (no state to keep)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wamdiff2_sim.types import LightState

if TYPE_CHECKING:
    from wamdiff2_sim.roads.roadmap import RoadMap

YELLOW_S = 3.0
ALL_RED_S = 2.0
GREEN_RANGE_S = (9.0, 16.0)
SINGLE_PHASE_RED_S = 8.0  # a junction with one phase only still stops its traffic at times


class Lights:
    """Colours of all light groups of a map as a function of time.

    A phase lasts green + 3 s yellow + 2 s all-red; groups of one junction with equal phase are green together. Green
    times and offsets are drawn from `seed` and the junction's id alone, so that two worlds with one seed agree
    whatever else they do.
    """

    def __init__(self, road_map: RoadMap, seed: int) -> None:
        self.group_ids = sorted(road_map.light_groups)
        self.index = {group: i for i, group in enumerate(self.group_ids)}
        n = len(self.group_ids)
        self._start, self._green, self._cycle = np.zeros(n), np.ones(n), np.ones(n)
        junctions: dict[int, list[int]] = {}
        for group in self.group_ids:
            junctions.setdefault(road_map.light_groups[group].junction_id, []).append(group)
        for junction, groups in junctions.items():
            self._program(road_map, junction, groups, seed)

    def _program(self, road_map: RoadMap, junction: int, groups: list[int], seed: int) -> None:
        """Fill in start, green time and cycle of the groups of one junction."""
        rng = np.random.default_rng([seed, junction & 0xFFFFFFFF, 0x11947])
        phases = sorted({road_map.light_groups[g].phase for g in groups})
        green = rng.uniform(*GREEN_RANGE_S, size=len(phases))
        lengths = green + YELLOW_S + ALL_RED_S
        cycle = float(lengths.sum()) + (SINGLE_PHASE_RED_S if len(phases) == 1 else 0.0)
        starts = np.concatenate([[0.0], np.cumsum(lengths)[:-1]]) - rng.uniform(0.0, cycle)
        for group in groups:
            i, k = self.index[group], phases.index(road_map.light_groups[group].phase)
            self._start[i], self._green[i], self._cycle[i] = starts[k], green[k], cycle

    def array(self, t: float) -> np.ndarray:
        """States of all groups at time `t` (s), in the order of `group_ids`: (G,) int8 of LightState values."""
        into = np.mod(t - self._start, self._cycle)
        state = np.full(len(self.group_ids), int(LightState.RED), dtype=np.int8)
        state[into < self._green + YELLOW_S] = int(LightState.YELLOW)
        state[into < self._green] = int(LightState.GREEN)
        return state

    def state_of(self, group: int, t: float) -> LightState:
        """Colour of one group at time `t` (s)."""
        return LightState(int(self.array(t)[self.index[group]]))

    def states(self, t: float) -> dict[int, LightState]:
        """Colours of all groups at time `t` (s), by group id."""
        return {group: LightState(int(v)) for group, v in zip(self.group_ids, self.array(t), strict=True)}
