"""Plans of a checkpoint for scenes that say what their cameras saw, one line of JSON each, gone on with after an end.

A scene's `sensors`: {"images": {camera: file}, "instruction": words}, files as seen from the scene's own file. Motion
is the scene's `ego`. Plans are sampled from the smooth trajectory, as our node drives them (`devkit.poses_of`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wamdiff2_core.errors import CheckpointError, ConfigError, DataError
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_core.evaluate.kernels_used import key_part
from wamdiff2_core.evaluate.navsim import fields
from wamdiff2_core.evaluate.navsim.rows import read_json, scenes_of
from wamdiff2_core.evaluate.spread import spread
from wamdiff2_core.evaluate.text_answers import cost, read_rows

if TYPE_CHECKING:
    from wamdiff2_core.scene import Scene

Plans = dict[str, Any]


@dataclass(frozen=True)
class PlanJob:
    """Who plans and how. devices: workers get them in turn. kernels: see `pick.WORDS`; settled before rows are made."""

    checkpoint: Path
    setting: Setting = field(default_factory=Setting)
    devices: tuple[str, ...] = ("cpu",)
    dtype: str = "float32"
    workers: int = 1
    kernels: str = "auto"

    def __post_init__(self) -> None:
        if not (self.checkpoint / "config.json").is_file():
            raise CheckpointError(f"{self.checkpoint} is no checkpoint folder: it has no config.json")
        if self.workers < 1 or not self.devices:
            raise ConfigError(f"expected workers >= 1 and a device, got {self.workers}, {self.devices}")

    def key(self) -> str:
        """Weights by name, size and time, and decoding."""
        files = sorted(self.checkpoint.glob("*.safetensors"))
        weights = [[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in files]
        told = [str(self.checkpoint.resolve()), weights, asdict(self.setting), self.dtype]
        told += key_part(self.kernels, self.devices[0])  # the same kernels on all of them
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Planned:
    """plans: by scene id (8, 3), or {"failure": why}. latency_ms: median of a plan alone; forwards: mean of the text
    model's passes; None if no scene reached the model.
    """

    plans: Plans
    latency_ms: float | None
    forwards: float | None


def plan_scenes(job: PlanJob, files: Sequence[Path], rows: Path, tell: Callable[[str], None]) -> Planned:
    """Plans for all scenes. Files that cannot be read are left to whoever scores them."""
    key = job.key()
    done = {row["id"]: row for row in read_rows(rows) if row.get("key") == key and row.get("forwards")}
    asked = list(_scenes(files))
    wanted = [one for one in asked if done.get(one[0], {}).get("seen") != one[2]]
    with rows.open("a", encoding="utf-8") as sink:
        told = (job.checkpoint, job.setting, job.dtype, job.kernels)
        for count, row in enumerate(spread(_work, told, wanted, job.workers, job.devices), start=1):
            done[row["id"]] = row
            if row["forwards"]:  # scenes that did not reach the model are tried again by the next call
                sink.write(json.dumps({"key": key, **row}, allow_nan=False) + "\n")
                sink.flush()
            if count % 50 == 0:
                tell(f"{count} of {len(wanted)} scenes planned")
    made = [done[name] for name in dict.fromkeys(name for name, _, _ in asked)]
    plans = {row["id"]: row["plan"] if row["plan"] is not None else {"failure": row["failure"]} for row in made}
    return Planned(plans, *cost(made))


def _scenes(files: Sequence[Path]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(id, what the planner needs, fingerprint of it) of every scene that can be read."""
    for path in files:
        try:
            scenes = scenes_of(read_json(path)[0], path.name)
        except DataError:
            continue
        for scene in scenes:
            asked = {"ego": scene.get("ego"), "sensors": scene.get("sensors"), "folder": str(path.parent)}
            yield str(scene.get("id")), asked, hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


_drivers: dict[tuple, Any] = {}


def _work(told: tuple, device: str, item: tuple[str, Mapping[str, Any], str]) -> dict[str, Any]:
    import torch

    from wamdiff2_core.driver import Driver
    from wamdiff2_core.evaluate.navsim.devkit import poses_of

    checkpoint, setting, dtype, kernels = told
    key = (checkpoint, device, dtype, kernels, setting.block_size)  # an engine is made for its block sizes
    fresh = key not in _drivers
    if fresh:
        torch.set_num_threads(1)
        _drivers.clear()
        _drivers[key] = Driver.from_checkpoint(
            checkpoint, device, dtype, kernels=kernels, block_sizes=(setting.block_size,)
        )
    driver = _drivers[key]
    driver.decoding = setting.config()
    name, asked, seen = item
    row = {"id": name, "seen": seen, "plan": None, "failure": None, "forwards": 0, "total_ms": 0.0}
    try:
        scene = _shown(name, asked)
        if fresh:
            driver.plan(scene)  # the first call allocates and fills caches: not measured
        made = driver.plan(scene)
        row |= {"forwards": made.cost.forwards, "total_ms": round(made.cost.total_ms, 3)}
        return {**row, "plan": poses_of(made, scene.ego.speed).astype(float).tolist()}
    except DataError as error:
        return {**row, "failure": str(error)}


def _shown(name: str, asked: Mapping[str, Any]) -> Scene:
    """DataError where the scene cannot be shown."""
    from wamdiff2_core.evaluate.frames import read_image
    from wamdiff2_core.scene import EgoState, Scene

    sensors, ego = asked["sensors"], asked["ego"]
    images = fields.field(sensors, "images", f"{name}.sensors")
    if not isinstance(images, Mapping):
        raise DataError(f"{name}.sensors.images: expected files by camera, got {type(images).__name__}")
    shown = {str(camera): read_image(Path(asked["folder"]) / str(file)) for camera, file in images.items()}
    motion = [fields.numbers(fields.field(ego, key, f"{name}.ego"), (2,), f"{name}.ego.{key}").tolist()
              for key in ("velocity", "acceleration")]  # fmt: skip
    (vx, vy), (ax, ay) = motion
    return Scene(shown, fields.text(sensors, "instruction", f"{name}.sensors"), EgoState((vx, vy), (ax, ay)))
