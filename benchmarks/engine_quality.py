"""What 8-bit weights and bfloat16 do to the plans of the trained checkpoint, measured on a CPU.

python -m benchmarks.engine_quality [--frames 192] [--seed 7] [--data DIR] [--out FILE.json]

Frames are natural driving of our own world in towns that no training frame comes from, each with a NAVSIM scene; they
are made in DIR (wamdiff2_sim.data.navsim_scenes, a quarter of a second each) unless they lie there. Every way to
decode answers every frame; margins are the plain decoder's in fp32, with all decided before the parting put in place.
`torch_fp8` is the plain twin of the GPU's 8-bit kernels: the same weights, another order of sums.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.quality_figures import Answer, mean_error, pair_figures, way_figures
from benchmarks.quality_margins import Asked, margin
from benchmarks.quality_ways import PAIRS, decoders
from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.decoder import BlockDecoder
from wamdiff2_core.decode.result import DecodeResult
from wamdiff2_core.driver import Driver
from wamdiff2_core.errors import DataError, Wamdiff2Error
from wamdiff2_core.evaluate.frames import Frame, read_frames
from wamdiff2_core.evaluate.machine import machine
from wamdiff2_core.evaluate.navsim.devkit import poses_of
from wamdiff2_core.evaluate.navsim.rows import read_json
from wamdiff2_core.evaluate.navsim.scene import Scene as NavsimScene
from wamdiff2_core.evaluate.navsim.scene import read_scene
from wamdiff2_core.evaluate.summary import write_json
from wamdiff2_core.scene import Cost, Plan
from wamdiff2_core.select.scores import SCORES, plan_scores
from wamdiff2_core.tasks.reading import read_answer

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT = ROOT / "checkpoints" / "tiny"
TOWNS = "Town01,Town02,Town03,Town10HD"
SHARD = 16
SETTINGS = {size: DecodingConfig(size, 3, "ordered", 0.6, max_new_tokens=96) for size in (32, 8)}


def answer_of(driver: Driver, frame: Frame, out: DecodeResult) -> Answer:
    """What a driver would make of a decoded plan."""
    text = driver.tokenizer.answer(out.tokens, out.confidences)
    form, scene = driver.formats["plan"], frame.scene(())
    read = read_answer("plan", form, out.status.value, text, scene, driver.limits, Cost())
    if isinstance(read, Plan):
        return Answer(tuple(out.tokens), read.points, forwards=out.forwards)
    return Answer(tuple(out.tokens), None, read.kind.value, out.forwards)  # type: ignore[union-attr]


def scored(scene: NavsimScene, speed_mps: float, answers: Sequence[Answer]) -> list[Answer]:
    """The answers with PDMS and EPDMS; a failure keeps its zeros."""
    valid = [k for k, one in enumerate(answers) if one.points is not None]
    plans = [poses_of(Plan(answers[k].points, np.ones(8)), speed_mps).astype(float) for k in valid]  # type: ignore[arg-type]
    table = plan_scores(scene, np.array([*plans, scene.plan]))
    columns = [SCORES.index(name) for name in ("v11_score", "v2_score")]
    told = list(answers)
    for k, (pdms, epdms) in zip(valid, table[:, columns].tolist()):
        told[k] = replace(told[k], pdms=pdms, epdms=epdms)
    return [*told, Answer((), None, "", 0, *table[-1, columns].tolist())]  # the last: the recorded drive


def measure(driver: Driver, ways: Mapping[str, BlockDecoder], frames: Sequence[Frame]) -> dict[str, Any]:
    """Figures of all ways and pairs at all block sizes. DataError if no frame has a scene."""
    keys = [(size, name) for size in SETTINGS for name in ways]
    answers: dict[tuple[int, str], list[Answer]] = {key: [] for key in keys}
    gaps: dict[tuple[int, str, str], list[float]] = {(size, *pair): [] for size in SETTINGS for pair in PAIRS}
    expert, truth, scaffold = [], [], driver.scaffold("plan")
    for number, frame in enumerate(frames, start=1):
        scene, asked = scene_of(frame), Asked.of(driver, frame)
        if scene is None:
            continue
        made = []
        for size, name in keys:
            out = ways[name].generate(asked.ids, asked.pixels, asked.grid, SETTINGS[size], scaffold)
            assert isinstance(out, DecodeResult)
            made.append(answer_of(driver, frame, out))
        *made, drive = scored(scene, frame.ego.speed, made)
        row = dict(zip(keys, made, strict=True))
        for key, one in row.items():
            answers[key].append(one)
        for size, first, second in gaps:
            gap = margin(driver, asked, row[size, first].tokens, row[size, second].tokens, SETTINGS[size])
            gaps[size, first, second] += [] if gap is None else [gap]
        expert.append(drive)
        truth.append(frame.points)
        if number % 16 == 0:
            print(f"{number}/{len(frames)}", file=sys.stderr, flush=True)
    if not truth:
        raise DataError("no frame has a scene: expected shards of wamdiff2_sim.data.navsim_scenes")
    blocks = {
        str(size): {
            "ways": {name: way_figures(answers[size, name], truth) for name in ways},
            "pairs": {
                f"{second} against {first}": pair_figures(
                    answers[size, first], answers[size, second], truth, gaps[size, first, second]
                )
                for first, second in PAIRS
            },
        }
        for size in SETTINGS
    }
    drives = {name: mean_error([100.0 * getattr(one, name) for one in expert]) for name in ("pdms", "epdms")}
    return {"frames": len(truth), "expert": drives, "block_sizes": blocks}


def scene_of(frame: Frame) -> NavsimScene | None:
    """The frame's NAVSIM scene; None where its drive was too young to have one."""
    record = _records(frame.images[0].parents[1]).get(frame.images[0].stem.partition("_cam_")[0])
    return None if record is None else read_scene(record)


@cache
def _records(shard: Path) -> dict[str, Any]:
    return {scene["id"]: scene for scene in read_json(shard / "scenes.json.gz")[0]["scenes"]}


def make_frames(data: Path, frames: int, seed: int) -> None:
    """Shards in `data`; those that are there stay."""
    from wamdiff2_sim.data import navsim_scenes

    counts = ["--frames", str(frames), "--seed", str(seed), "--shard-frames", str(SHARD), "--workers", "1"]
    navsim_scenes.main(["--out", str(data), *counts, "--maps", TOWNS])


def main(argv: Sequence[str] | None = None) -> int:
    """0: done; 1: an input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=192)
    parser.add_argument("--seed", type=int, default=7, help="of the frames; training took 1 and other towns")
    parser.add_argument("--data", type=Path, help="default: out/engine_quality/seedS")
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "bench" / "engine_quality.json")
    got = parser.parse_args(argv)
    data = got.data or ROOT / "out" / "engine_quality" / f"seed{got.seed}"
    facts = machine()  # now: the commit of the code that runs
    try:
        if got.data is None:
            make_frames(data, got.frames, got.seed)
        driver, ways = decoders(got.checkpoint)
        told = measure(driver, ways, read_frames(data, got.frames))
    except Wamdiff2Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    command = " ".join(["python -m benchmarks.engine_quality", *(sys.argv[1:] if argv is None else argv)])
    report = {
        "what": "engine_quality",
        "command": command,
        "settings": {
            "checkpoint": got.checkpoint.name, "seed": got.seed, "towns": TOWNS, "steps": 3, "rule": "ordered",
            "threshold": 0.6, "threads": torch.get_num_threads(),
        },
        "machine": facts,
        **told,
    }  # fmt: skip
    write_json(got.out, report)
    print(f"wrote {got.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
