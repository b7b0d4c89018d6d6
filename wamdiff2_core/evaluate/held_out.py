"""Held-out frames as an evaluator of training: plans, boxes and answers decoded as on the road."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wamdiff2_core.driver import Driver
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_core.evaluate.frame_batches import FrameBatches, camera_sizes, names_cameras
from wamdiff2_core.evaluate.frame_figures import figures
from wamdiff2_core.evaluate.frame_table import FrameTable, table_of
from wamdiff2_core.evaluate.frames import Frame, answer_frame, read_frames

KEPT = (
    "ade_m",
    "fde_m",
    "map50",
    "answers_correct",
    "parse_failures_share",
    "failures_share",
    "forwards_per_plan",
)


@dataclass
class HeldOutFrames:
    """Figures of a checkpoint on at most `frames` frames of these folders, spread evenly; read once.

    holdout: of shards whose number it divides, those that the recipe does not train on; 0: of all shards, for folders
    that are kept for evaluation. Figures that cannot be had (mAP without faster-coco-eval) are left out. A checkpoint
    that names no cameras, such as one made from a plain Qwen3-VL, answers one frame after the other, which is slower.
    """

    folders: Sequence[Path]
    setting: Setting
    frames: int = 256
    holdout: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    _frames: list[Frame] = field(default_factory=list, repr=False)
    _table: FrameTable | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.folders or self.frames < 1:
            raise ConfigError(f"held-out frames: expected folders and at least one frame, got {self}")

    def __call__(self, checkpoint: Path, step: int) -> Mapping[str, float]:
        driver = Driver.from_checkpoint(checkpoint, self.device, self.dtype, kernels="lean")  # see FrameBatches
        self._frames = self._frames or self._read()
        found = self._together(driver) if names_cameras(driver) else self._one_by_one(driver)
        known = {name: found[name] for name in KEPT if found[name] is not None}
        return {name: float(value) for name, value in known.items()}  # type: ignore[arg-type]

    def _together(self, driver: Driver) -> Mapping[str, object]:
        if self._table is None:
            self._table = table_of(self._frames, camera_sizes(driver))
        return FrameBatches(driver, self._table).measure(self.setting).figures()

    def _one_by_one(self, driver: Driver) -> Mapping[str, object]:
        driver.decoding = self.setting.config()
        size = {"block_size": self.setting.block_size}
        (only,) = figures([{**size, **answer_frame(driver, frame)} for frame in self._frames])
        return only

    def _read(self) -> list[Frame]:
        """Equally many frames of each folder."""
        share = -(-self.frames // len(self.folders))
        found = [frame for folder in self.folders for frame in read_frames(folder, share, self.holdout)]
        return found[: self.frames]
