"""How many ties the plain decoder meets in fp32: what any other rounding is likely to decide otherwise.

python -m benchmarks.quality_ties FRAMES [--frames 48] [--out FILE.json]    FRAMES: as engine_quality leaves them

A tie is a place of a plan whose two most probable tokens are less than 0.02 apart at the step that decides it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine_quality import CHECKPOINT, SETTINGS
from benchmarks.quality_figures import TIE
from benchmarks.quality_margins import Asked, probabilities
from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.result import DecodeResult
from wamdiff2_core.driver import Driver
from wamdiff2_core.errors import Wamdiff2Error
from wamdiff2_core.evaluate.frames import Frame, read_frames
from wamdiff2_core.evaluate.machine import machine
from wamdiff2_core.evaluate.summary import write_json


def leads(driver: Driver, asked: Asked, tokens: Sequence[int], config: DecodingConfig) -> Iterator[float]:
    """Of every open place of a plan: how far its most probable token is ahead of the next one when it is decided."""
    scaffold, size = driver.scaffold("plan"), config.block_size
    assert scaffold is not None
    places: dict[tuple[int, int], list[int]] = {}
    for place in range(len(tokens)):
        if scaffold.given[place] < 0:
            places.setdefault((place // size, scaffold.ranks[place]), []).append(place % size)
    for (block, rank), rows in sorted(places.items()):
        best = probabilities(driver, asked, tokens, block, rank, config)[rows].topk(2).values
        yield from (best[:, 0] - best[:, 1]).tolist()


def count(driver: Driver, frames: Sequence[Frame], config: DecodingConfig) -> dict[str, Any]:
    """Ties among all places, and in how many plans there is one."""
    ties, places = [], 0
    for frame in frames:
        asked = Asked.of(driver, frame)
        out = driver.decoder.generate(asked.ids, asked.pixels, asked.grid, config, driver.scaffold("plan"))
        assert isinstance(out, DecodeResult)
        found = list(leads(driver, asked, out.tokens, config))
        places += len(found)
        ties.append(sum(lead < TIE for lead in found))
    return {
        "plans": len(ties), "places": places, "ties": sum(ties), "ties_a_plan": sum(ties) / len(ties),
        "plans_with_a_tie": sum(one > 0 for one in ties),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """0: done; 1: an input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--frames", type=int, default=48)
    parser.add_argument("--out", type=Path)
    got = parser.parse_args(argv)
    try:
        driver = Driver.from_checkpoint(CHECKPOINT, "cpu", "float32")
        frames = read_frames(got.data, got.frames)
        told = {str(size): count(driver, frames, config) for size, config in SETTINGS.items()}
    except Wamdiff2Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(told)
    if got.out:
        write_json(got.out, {"what": "quality_ties", "tie_below": TIE, "machine": machine(), "block_sizes": told})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
