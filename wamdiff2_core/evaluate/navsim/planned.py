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
from typing import Any

from wamdiff2_core.errors import CheckpointError, ConfigError, DataError
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_core.evaluate.navsim import fields
from wamdiff2_core.evaluate.navsim.rows import read_json, scenes_of
from wamdiff2_core.evaluate.spread import spread
from wamdiff2_core.evaluate.text_answers import read_rows

Plans = dict[str, Any]


@dataclass(frozen=True)
class PlanJob:
    """Who plans and how. devices: workers get them in turn."""

    checkpoint: Path
    setting: Setting = field(default_factory=Setting)
    devices: tuple[str, ...] = ("cpu",)
    dtype: str = "float32"
    workers: int = 1

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
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def plan_scenes(job: PlanJob, files: Sequence[Path], rows: Path, tell: Callable[[str], None]) -> Plans:
    """By scene id: a plan (8, 3), or {"failure": why}. Files that cannot be read are left to whoever scores them."""
    key = job.key()
    done = {row["id"]: row for row in read_rows(rows) if row.get("key") == key}
    wanted = [one for one in _scenes(files) if done.get(one[0], {}).get("seen") != one[2]]
    with rows.open("a", encoding="utf-8") as sink:
        told = (job.checkpoint, job.setting, job.dtype)
        for count, row in enumerate(spread(_work, told, wanted, job.workers, job.devices), start=1):
            done[row["id"]] = row
            sink.write(json.dumps({"key": key, **row}, allow_nan=False) + "\n")
            sink.flush()
            if count % 50 == 0:
                tell(f"{count} of {len(wanted)} scenes planned")
    return {name: row["plan"] if row["plan"] is not None else {"failure": row["failure"]} for name, row in done.items()}


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

    checkpoint, setting, dtype = told
    if (checkpoint, device, dtype) not in _drivers:
        torch.set_num_threads(1)
        _drivers.clear()
        _drivers[checkpoint, device, dtype] = Driver.from_checkpoint(checkpoint, device, dtype)
    driver = _drivers[checkpoint, device, dtype]
    driver.decoding = setting.config()
    name, asked, seen = item
    try:
        return {"id": name, "seen": seen, "plan": _plan(driver, name, asked), "failure": None}
    except DataError as error:
        return {"id": name, "seen": seen, "plan": None, "failure": str(error)}


def _plan(driver: Any, name: str, asked: Mapping[str, Any]) -> list[list[float]]:
    """Poses (8, 3). DataError where the scene cannot be shown or the answer is no plan."""
    from wamdiff2_core.evaluate.frames import read_image
    from wamdiff2_core.evaluate.navsim.devkit import poses_of
    from wamdiff2_core.scene import EgoState, Scene

    sensors, ego = asked["sensors"], asked["ego"]
    images = fields.field(sensors, "images", f"{name}.sensors")
    if not isinstance(images, Mapping):
        raise DataError(f"{name}.sensors.images: expected files by camera, got {type(images).__name__}")
    shown = {str(camera): read_image(Path(asked["folder"]) / str(file)) for camera, file in images.items()}
    motion = [fields.numbers(fields.field(ego, key, f"{name}.ego"), (2,), f"{name}.ego.{key}").tolist()
              for key in ("velocity", "acceleration")]  # fmt: skip
    (vx, vy), (ax, ay) = motion
    state = EgoState((vx, vy), (ax, ay))
    scene = Scene(shown, fields.text(sensors, "instruction", f"{name}.sensors"), state)
    return poses_of(driver.plan(scene), state.speed).astype(float).tolist()
