"""Procedural towns: `generate(seed)` gives a RoadMap for training, the real CARLA towns stay held out.

Deterministic by seed; about a tenth of a second per map.
"""

from __future__ import annotations

import numpy as np

from wamdiff2_core.errors import Wamdiff2Error
from wamdiff2_sim.roads.builder import build
from wamdiff2_sim.roads.network import STYLES, is_clear, make_network
from wamdiff2_sim.roads.roadmap import RoadMap

ATTEMPTS = 12


def generate(seed: int) -> RoadMap:
    """The procedural town of this seed. The style (small town, old town, city, suburb) is drawn from the seed too."""
    rng = np.random.default_rng([20261, seed])
    style = STYLES[int(rng.integers(len(STYLES)))]
    for attempt in range(ATTEMPTS):
        network = make_network(style, rng, jitter=1.0 - attempt / ATTEMPTS)
        if is_clear(network):
            return build(network, f"procedural:{seed}", rng)
    raise Wamdiff2Error(f"procedural:{seed}: no network of style {style.name} without overlapping roads was found")
