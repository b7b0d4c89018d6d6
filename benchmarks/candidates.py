"""What choosing among candidates is worth, and what it costs. docs/candidates.md has the commands that make the files.

python -m benchmarks.candidates figures HELD.npz [--weights scorer.npz] [--out FILE.json]
python -m benchmarks.candidates latency CHECKPOINT SHARDS [--device cuda] [--frames 40] [--out FILE.json]

figures: PDMS and EPDMS of the plain plan, of the one that each scorer chooses, and of the best one (oracle).
latency: wall milliseconds of one plan and of proposing, scoring and choosing, by turns on the same frames; medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from wamdiff2_core import DecodingConfig, Driver
from wamdiff2_core.errors import Wamdiff2Error
from wamdiff2_core.evaluate.frames import read_frames
from wamdiff2_core.evaluate.machine import machine
from wamdiff2_core.select.choose import Selector
from wamdiff2_core.select.figures import Collected, figures
from wamdiff2_core.select.learned import LearnedScorer
from wamdiff2_core.select.propose import PACES, ProposalConfig
from wamdiff2_core.select.train import features_of

CONFIGS: dict[str, tuple[str, ProposalConfig]] = {
    "paces, learned": ("learned", ProposalConfig(paces=PACES)),
    "3 drawn, learned": ("learned", ProposalConfig(3, (0.5,), seed=0)),
    "3 drawn, paces, learned": ("learned", ProposalConfig(3, (0.5,), paces=PACES, seed=0)),
    "6 drawn, learned": ("learned", ProposalConfig(6, (0.5,), seed=0)),
    "6 drawn, likelihood": ("likelihood", ProposalConfig(6, (0.5,), seed=0)),
    "6 drawn, remasked": ("remasked", ProposalConfig(6, (0.5,), seed=0)),
    "6 drawn, rules": ("rules", ProposalConfig(6, (0.5,), seed=0)),
    "12 drawn, words, B=8": ("learned", ProposalConfig(6, (0.5, 1.0), ("follow the road",), (8,), seed=0)),
}


def report_figures(path: Path, weights: Path | None) -> dict[str, Any]:
    """Figures of all scorers on collected candidates."""
    data = Collected.read(path)
    scorers = {
        "likelihood": data.likelihood,
        "learned": LearnedScorer.load(weights).scores(features_of(data)),
        **data.further,
    }
    return figures(data, scorers)


def report_latency(checkpoint: Path, shards: Path, device: str, dtype: str, frames: int) -> dict[str, Any]:
    """Median milliseconds over frames, every way by turns on each frame."""
    decoding = DecodingConfig(block_size=32, steps=4, threshold=0.6)
    driver = Driver.from_checkpoint(checkpoint, device, dtype, decoding)
    scenes = [frame.scene(driver.cameras) for frame in read_frames(shards, frames)]
    selectors = {name: Selector(scorer, config) for name, (scorer, config) in CONFIGS.items()}
    plain: list[float] = []
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in selectors}
    before = os.getloadavg()[0]
    for number, scene in enumerate([*scenes[:2], *scenes]):  # the first two warm up
        took = _plan_ms(driver, scene, device)
        for name, selector in selectors.items():
            began = time.perf_counter()
            made = selector.plan(driver, scene)
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            if number >= 2:
                rows[name].append(((time.perf_counter() - began) * 1e3, made.propose_ms, made.score_ms))
        if number >= 2:
            plain.append(took)
    one = statistics.median(plain)
    ways = {
        name: {
            "ms": statistics.median(row[0] for row in part),
            "propose_ms": statistics.median(row[1] for row in part),
            "score_ms": statistics.median(row[2] for row in part),
            "times_one_plan": statistics.median(row[0] / base for row, base in zip(part, plain, strict=True)),
        }
        for name, part in rows.items()
    }
    return {
        "frames": len(scenes), "one_plan_ms": one, "ways": ways, "dtype": dtype,
        "machine": {**machine(device), "load_before": before, "load_after": os.getloadavg()[0],
                    "threads": torch.get_num_threads()},
    }  # fmt: skip


def _plan_ms(driver: Driver, scene: Any, device: str) -> float:
    began = time.perf_counter()
    driver.plan(scene)
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3


def main(argv: Sequence[str] | None = None) -> int:
    """0: done; 1: an input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("figures", "latency"))
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--out", type=Path)
    got = parser.parse_args(argv)
    wanted = {"figures": 1, "latency": 2}[got.what]
    if len(got.paths) != wanted:
        parser.error(f"{got.what}: expected {wanted} path(s): a collection, or a checkpoint and scenes")
    try:
        if got.what == "figures":
            report = report_figures(got.paths[0], got.weights)
        else:
            report = report_latency(got.paths[0], got.paths[1], got.device, got.dtype, got.frames)
    except Wamdiff2Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    text = json.dumps(report, indent=1)
    print(text)
    if got.out:
        got.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
