"""CARLA's real maps without a server: OpenDRIVE files read by the carla wheel's own map code."""

from __future__ import annotations

import gzip
from functools import lru_cache

import carla

from wamdiff2_core.errors import DataError
from wamdiff2_sim.leaderboard.package import prepare


@lru_cache(maxsize=2)
def town_map(town: str) -> carla.Map:
    """The map of "Town01" and the like. DataError when the data package has no such town."""
    file = prepare().maps / f"{town}.xodr.gz"
    if not file.is_file():
        raise DataError(f"town {town!r}: expected one of {', '.join(sorted(towns()))}")
    with gzip.open(file, "rt") as stream:
        return carla.Map(town, stream.read())


def towns() -> set[str]:
    """Names of all towns that there are OpenDRIVE files of."""
    return {file.name.removesuffix(".xodr.gz") for file in prepare().maps.glob("*.xodr.gz")}
