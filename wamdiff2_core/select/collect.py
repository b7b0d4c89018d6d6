"""Candidates of many frames with NAVSIM scenes, and what each of them scores: what scorers learn from and are measured
by. `python -m wamdiff2_core.select.collect CHECKPOINT DATA --out FILE.npz`

DATA: shards with `scenes.json.gz` (`python -m wamdiff2_sim.data.navsim_scenes`). Many frames share a batch, so a GPU
goes through thousands in a minute; candidates are those that `propose` makes for one scene, with other random draws.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.attention import sdpa_kernel

from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.decoder import Prefix
from wamdiff2_core.decode.likelihood import STRIDE, remasked_log_likelihood
from wamdiff2_core.decode.result import DecodeResult
from wamdiff2_core.driver import Driver
from wamdiff2_core.errors import DataError, Wamdiff2Error
from wamdiff2_core.evaluate.frame_batches import KERNELS, camera_sizes, fingerprint
from wamdiff2_core.evaluate.frame_table import FrameTable, table_of
from wamdiff2_core.evaluate.frames import Frame, read_frames
from wamdiff2_core.model.prompt import chat_prompt, human_text
from wamdiff2_core.rig import load_rig
from wamdiff2_core.scene import Camera, Cost, Detections, Failure, Plan, Scene
from wamdiff2_core.select.ground import things_of
from wamdiff2_core.select.propose import ProposalConfig, at_pace
from wamdiff2_core.select.rules import Thing
from wamdiff2_core.select.scores import SCORES, score_shard
from wamdiff2_core.tasks import detect
from wamdiff2_core.tasks import plan as task
from wamdiff2_core.tasks.reading import read_answer

GROUP = 256  # frames whose pictures are encoded together
DECODING = DecodingConfig(block_size=32, steps=4, threshold=0.6)


class Collector:
    """Candidates of groups of frames with one checkpoint."""

    def __init__(self, driver: Driver, config: ProposalConfig, camera: Camera, batch: int) -> None:
        """camera: the front camera, which the frames' boxes are of."""
        self.driver, self.config, self.camera, self.batch = driver, config, camera, batch
        self.sizes = camera_sizes(driver)
        self._tokens = [driver.image_format.tokens(size) for size in self.sizes.values()]

    def prompt(self, frame: Frame, words: str | None = None) -> tuple[int, ...]:
        scene = Scene({}, words or frame.instruction, frame.ego)
        return chat_prompt(self.driver.tokenizer, human_text(task.prompt(scene), len(self._tokens)), self._tokens).ids

    def group(self, frames: Sequence[Frame]) -> tuple[list[list[Plan | Failure]], np.ndarray, list[tuple[Thing, ...]]]:
        """Of frames whose prompts have one length: candidates (F lists), re-masked likelihoods (F, 1 + drawn) of the
        plain and the drawn ones, detected things.
        """
        config = self.config
        table = table_of(frames, self.sizes).to(self.driver.loaded.device)
        drawn = [0.0, *(t for t in config.temperatures for _ in range(config.drawn))]
        with sdpa_kernel(KERNELS):
            prefix = self._prefix(table, [self.prompt(frame) for frame in frames])
            found = self._rows(prefix, frames, None, drawn, None)
            remasked = self._remasked(prefix, frames, found)
            things = self._detected(table, frames)
            for size in config.block_sizes:
                _extend(found, self._rows(prefix, frames, None, [0.0], size))
            for words in config.instructions:
                other = self._prefix(table, [self.prompt(frame, words) for frame in frames])
                _extend(found, self._rows(other, frames, words, [0.0], None))
        order = _as_sources(len(drawn), len(config.block_sizes), len(config.instructions))
        found = [[plans[k] for k in order] for plans in found]
        for plans in found:
            plans += [at_pace(plans[0], pace) for pace in config.paces]
        return found, remasked, things

    def _remasked(
        self, prefix: Prefix, frames: Sequence[Frame], found: Sequence[Sequence[Plan | Failure]]
    ) -> np.ndarray:
        driver, values = self.driver, np.full((len(frames), len(found[0])), np.nan)
        places = [(k, j) for k, plans in enumerate(found) for j, one in enumerate(plans) if isinstance(one, Plan)]
        for low in range(0, len(places), self.batch // 2):
            part = places[low : low + self.batch // 2]
            answers = [driver.tokenizer.encode(found[k][j].text) for k, j in part]
            rests = [torch.tensor(self.prompt(frames[k])[-1:]) for k, _ in part]
            own = prefix.rows([k for k, _ in part for _ in range(STRIDE)])
            got = remasked_log_likelihood(
                driver.decoder, own, rests, answers, driver.decoding.block_size, driver.scaffold("plan")
            )
            for place, value in zip(part, got, strict=True):
                values[place] = value
        return values

    def _detected(self, table: FrameTable, frames: Sequence[Frame]) -> list[tuple[Thing, ...]]:
        driver = self.driver
        ids = chat_prompt(driver.tokenizer, human_text(detect.prompt(), len(self._tokens)), self._tokens).ids
        prefix = self._prefix(table, [ids] * len(frames))
        count = len(frames)
        scaffold, limit = driver.scaffold("detect"), driver.max_new_tokens["detect"]
        out = driver.decoder.generate(
            [torch.tensor(ids[-1:])] * count, None, None, driver.decoding, [scaffold] * count, prefix, [limit] * count
        )
        found = []
        for output in [out] if isinstance(out, DecodeResult) else out:
            answer = driver.tokenizer.answer(output.tokens, output.confidences)
            form, status = driver.formats["detect"], output.status.value
            read = read_answer("detect", form, status, answer, Scene({}), driver.limits, Cost())
            found.append(things_of(read.boxes, self.camera) if isinstance(read, Detections) else ())
        return found

    def _prefix(self, table: FrameTable, prompts: Sequence[tuple[int, ...]]) -> Prefix:
        pixels, grid = table.patches(slice(0, len(prompts)), self.driver.image_format)
        rows = [torch.tensor(ids[:-1]) for ids in prompts]
        size = self.driver.decoding.block_size
        return self.driver.decoder.prefill(rows, pixels.to(self.driver.loaded.model.dtype), grid, size)

    def _rows(
        self, prefix: Prefix, frames: Sequence[Frame], words: str | None, heat: Sequence[float], size: int | None
    ) -> list[list[Plan | Failure]]:
        """Plans of every frame: one for each temperature."""
        per, found = len(heat), []
        step = max(self.batch // per, 1)
        for low in range(0, len(frames), step):
            part = range(low, min(low + step, len(frames)))
            rests = [torch.tensor(self.prompt(frames[k], words)[-1:]) for k in part for _ in heat]
            outputs = self._decode(prefix.rows([k for k in part for _ in heat]), rests, [*heat] * len(part), size)
            read = [self._read(frames[part[k // per]], output) for k, output in enumerate(outputs)]
            found += [read[k * per : (k + 1) * per] for k in range(len(part))]
        return found

    def _decode(
        self, prefix: Prefix, rests: list[torch.Tensor], heat: list[float], size: int | None
    ) -> list[DecodeResult]:
        driver, count = self.driver, len(rests)
        config = replace(driver.decoding, block_size=size or driver.decoding.block_size, seed=self.config.seed)
        config = replace(config, steps=min(config.steps, config.block_size))
        limit, scaffold = driver.max_new_tokens["plan"], driver.scaffold("plan")
        out = driver.decoder.generate(
            rests, None, None, config, [scaffold] * count, prefix, [limit] * count, temperatures=heat
        )
        return [out] if isinstance(out, DecodeResult) else list(out)

    def _read(self, frame: Frame, output: DecodeResult) -> Plan | Failure:
        driver, scene = self.driver, Scene({}, frame.instruction, frame.ego)
        answer = driver.tokenizer.answer(output.tokens, output.confidences)
        sure = np.log(np.clip(np.asarray(output.confidences), 1e-30, 1.0)).sum()
        read = read_answer("plan", driver.formats["plan"], output.status.value, answer, scene, driver.limits, Cost())
        return replace(read, log_likelihood=float(sure)) if isinstance(read, Plan) else read  # type: ignore[return-value]


def collect(
    driver: Driver,
    data: Path,
    config: ProposalConfig,
    camera: Camera,
    batch: int = 512,
    workers: int = 2,
    most: int = 0,
) -> dict[str, Any]:
    """Arrays over F frames and K candidates: see `SCORES` and the keys below. DataError if no frame has a scene."""
    pool = ProcessPoolExecutor(workers)
    collector = Collector(driver, config, camera, batch)
    frames = [frame for frame in read_frames(data, most) if _scene_id(frame) in _ids(frame.images[0].parents[1])]
    if not frames:
        raise DataError(f"{data}: no frame has a scene: expected shards of wamdiff2_sim.data.navsim_scenes")
    by_length: dict[int, list[Frame]] = {}
    for frame in frames:
        by_length.setdefault(len(collector.prompt(frame)), []).append(frame)
    rows: list[dict[str, Any]] = []
    for alike in by_length.values():
        for low in range(0, len(alike), GROUP):
            part = alike[low : low + GROUP]
            rows += [_row(*one) for one in zip(part, *collector.group(part), strict=True)]
            print(f"{len(rows)}/{len(frames)}", file=sys.stderr, flush=True)
    rows.sort(key=lambda row: row["name"])
    by_shard: dict[Path, list[dict]] = {}
    for row in rows:
        by_shard.setdefault(row.pop("shard"), []).append(row)
    jobs = [
        pool.submit(score_shard, shard, [(r["id"], r["points"], r.pop("motion"), r.pop("things")) for r in part])
        for shard, part in by_shard.items()
    ]
    scored = [one for job in jobs for one in job.result()]
    pool.shutdown()
    ordered = [row for part in by_shard.values() for row in part]
    arrays = {key: np.array([row[key] for row in ordered]) for key in ordered[0]}
    for name, value in zip(COLUMNS, zip(*scored, strict=True), strict=True):
        arrays[name] = np.array(value, dtype=np.float32)
    return arrays


def _row(
    frame: Frame, plans: Sequence[Plan | Failure], remasked: np.ndarray, things: tuple[Thing, ...]
) -> dict[str, Any]:
    none = np.full((8, 2), np.nan)
    padded = np.full(len(plans), np.nan, dtype=np.float32)
    padded[: len(remasked)] = remasked
    return {
        "name": frame.name,
        "id": _scene_id(frame),
        "shard": frame.images[0].parents[1],
        "map": str(frame.meta.get("map_name", "")),
        "instruction": frame.instruction,
        "motion": frame.ego,
        "things": things,
        "by_remasked": padded,
        "ego": np.array([frame.ego.speed, *frame.ego.acceleration], dtype=np.float32),
        "points": np.array([one.points if isinstance(one, Plan) else none for one in plans], dtype=np.float32),
        "sure": np.array([one.confidence if isinstance(one, Plan) else none[:, 0] for one in plans], dtype=np.float32),
        "likelihood": np.array(
            [one.log_likelihood if isinstance(one, Plan) else np.nan for one in plans], dtype=np.float32
        ),
    }


COLUMNS = ("scores", "expert", "l2", "by_rules", "by_rules_without_map", "by_rules_detected")
_known: dict[Path, set[str]] = {}


def _ids(shard: Path) -> set[str]:
    if shard not in _known:
        file = shard / "scenes.json.gz"
        content = json.loads(gzip.decompress(file.read_bytes())) if file.is_file() else {"scenes": []}
        _known[shard] = {scene["id"] for scene in content["scenes"]}
    return _known[shard]


def _scene_id(frame: Frame) -> str:
    return frame.images[0].stem.partition("_cam_")[0]


def _extend(found: list[list[Plan | Failure]], more: list[list[Plan | Failure]]) -> None:
    for plans, others in zip(found, more, strict=True):
        plans += others


def _as_sources(drawn: int, sizes: int, words: int) -> list[int]:
    """Places in the order of `ProposalConfig.sources`: instructions before block sizes."""
    return [*range(drawn), *range(drawn + sizes, drawn + sizes + words), *range(drawn, drawn + sizes)]


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring. 0: done; 1: an input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--rig", type=Path, default=Path("config/rig_three.yaml"), help="its first camera saw the boxes"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--frames", type=int, default=0, help="at most so many, spread evenly; 0: all")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--workers", type=int, default=2, help="processes that score")
    parser.add_argument("--drawn", type=int, default=6)
    parser.add_argument("--temperatures", default="0.5,1")
    parser.add_argument("--words", default="follow the road", help="other instructions, separated by ;")
    parser.add_argument("--block-sizes", default="8")
    parser.add_argument("--paces", default="0,0.5,0.7,0.85,1.1,1.2,1.4")
    parser.add_argument("--seed", type=int, default=0)
    got = parser.parse_args(argv)
    try:
        config = ProposalConfig(
            got.drawn, _numbers(got.temperatures), tuple(word for word in got.words.split(";") if word),
            tuple(int(size) for size in _numbers(got.block_sizes)), _numbers(got.paces), got.seed,
        )  # fmt: skip
        driver = Driver.from_checkpoint(got.checkpoint, got.device, got.dtype, DECODING, "lean")  # many rows
        arrays = collect(driver, got.data, config, load_rig(got.rig)[0], got.batch, got.workers, got.frames)
    except Wamdiff2Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    np.savez_compressed(
        got.out, **arrays, sources=np.array(config.sources), columns=np.array(SCORES),
        weights=np.array(fingerprint(got.checkpoint)),
    )  # fmt: skip
    return 0


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(",") if part)


if __name__ == "__main__":
    raise SystemExit(main())
