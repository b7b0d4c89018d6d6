"""Camera images to the patches that Qwen3-VL's vision tower reads."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image

from wamdiff2_core.errors import CheckpointError, ConfigError, DataError
from wamdiff2_core.tasks.checks import image_problem

Size = tuple[int, int]  # (width, height) in pixels
Each = Callable[..., Iterable[Any]]  # like `map`
UPSTREAM_MIN_PIXELS = 12_544
UPSTREAM_MAX_PIXELS = 2_073_600


@dataclass(frozen=True)
class ImageFormat:
    """How a checkpoint wants its images: patches, normalisation, and the pixel limits where no exact size is set."""

    patch_size: int = 16
    merge_size: int = 2
    temporal_patch_size: int = 2
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    min_pixels: int = UPSTREAM_MIN_PIXELS
    max_pixels: int = UPSTREAM_MAX_PIXELS

    def __post_init__(self) -> None:
        counts = (self.patch_size, self.merge_size, self.temporal_patch_size)
        if min(counts) < 1 or min(self.std) <= 0 or not 0 < self.min_pixels <= self.max_pixels:
            raise ConfigError(f"image format: expected positive sizes, std and min_pixels <= max_pixels; got {self}")

    @property
    def unit(self) -> int:
        """Pixels along one side of what becomes one token."""
        return self.patch_size * self.merge_size

    def tokens(self, size: Size) -> int:
        """Text positions that an image of (width, height) takes."""
        return (size[0] // self.unit) * (size[1] // self.unit)

    @classmethod
    def from_folder(cls, folder: Path | str) -> ImageFormat:
        """Patch sizes from config.json, normalisation from preprocessor_config.json where there is one."""
        vision: Any = _read(Path(folder) / "config.json").get("vision_config", {})
        path = Path(folder) / "preprocessor_config.json"
        given = _read(path) if path.is_file() else {}
        try:
            return cls(
                patch_size=int(vision["patch_size"]),
                merge_size=int(vision["spatial_merge_size"]),
                temporal_patch_size=int(vision["temporal_patch_size"]),
                mean=_triple(given.get("image_mean", cls.mean)),
                std=_triple(given.get("image_std", cls.std)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{folder}: image settings of config.json / preprocessor_config.json: {error!r}"
            ) from error

    def preprocessor_config(self) -> dict[str, object]:
        """What goes into a checkpoint's preprocessor_config.json."""
        return {
            "image_processor_type": "Qwen2VLImageProcessor",
            "patch_size": self.patch_size,
            "merge_size": self.merge_size,
            "temporal_patch_size": self.temporal_patch_size,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
            "size": {"shortest_edge": self.min_pixels, "longest_edge": self.max_pixels},
        }


def preprocess(
    images: Sequence[np.ndarray],
    sizes: Sequence[Size] | None = None,
    form: ImageFormat | None = None,
    each: Each = map,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (H, W, 3) uint8 RGB -> pixel_values (patches, 3 * T * P * P) float32, grid_thw (images, 3) int64.

    `sizes`: (width, height) of each image for the model, by area averaging when smaller. None: each image keeps its
    proportions within the format's pixel limits (Qwen's rule). Raises DataError for anything that is not such an image.
    `each`: goes through the images; an executor's map takes several at a time.
    """
    form = form or ImageFormat()
    targets, how = _targets(images, sizes, form)
    grids = [(1, high // form.patch_size, wide // form.patch_size) for wide, high in targets]
    counts = [high * wide for _, high, wide in grids]
    patches = torch.empty(sum(counts), 3 * form.temporal_patch_size * form.patch_size**2)

    def one(image: np.ndarray, size: Size, rows: np.ndarray) -> None:
        _write_patches(_resized(image, size, how), form, rows)

    for _ in each(one, images, targets, [rows.numpy() for rows in patches.split(counts)]):
        pass
    return patches, torch.tensor(grids, dtype=torch.int64).reshape(-1, 3)


def fit(images: Sequence[np.ndarray], sizes: Sequence[Size] | None, form: ImageFormat) -> list[np.ndarray]:
    """The resizing half of `preprocess`: (H, W, 3) uint8 images of the sizes that the model sees, in own memory."""
    targets, how = _targets(images, sizes, form)
    return [_resized(image, size, how) for image, size in zip(images, targets, strict=True)]


def _targets(
    images: Sequence[np.ndarray], sizes: Sequence[Size] | None, form: ImageFormat
) -> tuple[list[Size], Image.Resampling]:
    for image in images:
        _require_image(image)
    targets = [fitting_size(image.shape[1], image.shape[0], form) for image in images] if sizes is None else list(sizes)
    if len(targets) != len(images):
        raise DataError(f"expected a size for each of {len(images)} images, got {len(targets)}")
    for width, height in targets:
        if width % form.unit or height % form.unit or not height * width:
            raise DataError(f"expected image sides that are multiples of {form.unit}, got {width} x {height}")
    return targets, Image.Resampling.BICUBIC if sizes is None else Image.Resampling.BOX


def patchify(images: torch.Tensor, form: ImageFormat) -> torch.Tensor:
    """(N, H, W, 3) uint8 of one size -> (N, patches, 3 * T * P * P) float32, those of one token side by side."""
    n, height, width, _ = images.shape
    p, m, t = form.patch_size, form.merge_size, form.temporal_patch_size
    if height % form.unit or width % form.unit or not height * width:
        raise DataError(f"expected image sides that are multiples of {form.unit}, got {width} x {height}")
    mean = (torch.tensor(form.mean, device=images.device) * 255.0).view(3, 1, 1)
    std = (torch.tensor(form.std, device=images.device) * 255.0).view(3, 1, 1)
    pixels = images.view(n, height // form.unit, m, p, width // form.unit, m, p, 3)
    pixels = pixels.permute(0, 1, 4, 2, 5, 7, 3, 6).contiguous()  # (N, gh, gw, m, m, 3, p, p), moved while still bytes
    pixels = ((pixels.float() - mean) / std).unsqueeze(6)  # the still image is repeated in time
    return pixels.expand(-1, -1, -1, -1, -1, -1, t, -1, -1).reshape(n, (height // p) * (width // p), 3 * t * p * p)


def _write_patches(image: np.ndarray, form: ImageFormat, rows: np.ndarray) -> None:
    """`patchify` of one image (H, W, 3) into `rows` (patches, 3 * T * P * P) float32, to the bit, in any thread."""
    height, width, _ = image.shape
    p, m, t = form.patch_size, form.merge_size, form.temporal_patch_size
    pixels = image.reshape(height // form.unit, m, p, width // form.unit, m, p, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    normal = _normal(np.ascontiguousarray(pixels), form.mean, form.std)
    rows.reshape(*normal.shape[:5], t, p, p)[...] = normal[:, :, :, :, :, None]


def _normal(pixels: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """(..., 3, P, P) uint8 -> float32 of the same shape; looked up where the three colours are treated alike."""
    means, stds = (np.array(values, np.float32) * np.float32(255.0) for values in (mean, std))
    if len(set(mean)) > 1 or len(set(std)) > 1:
        return (pixels.astype(np.float32) - means.reshape(3, 1, 1)) / stds.reshape(3, 1, 1)
    table = (np.arange(256, dtype=np.float32) - means[0]) / stds[0]
    return cv2.LUT(pixels.reshape(-1, pixels.shape[-1]), table).reshape(pixels.shape)


def fitting_size(width: int, height: int, form: ImageFormat) -> Size:
    """Qwen's rule: sides rounded to whole tokens, proportions kept, pixel count within the format's limits."""
    unit = form.unit
    wide, high = round(width / unit) * unit, round(height / unit) * unit
    if wide * high > form.max_pixels:
        shrink = math.sqrt(width * height / form.max_pixels)
        wide, high = (max(unit, math.floor(side / shrink / unit) * unit) for side in (width, height))
    elif wide * high < form.min_pixels:
        grow = math.sqrt(form.min_pixels / (width * height))
        wide, high = (math.ceil(side * grow / unit) * unit for side in (width, height))
    return wide, high


def _resized(image: np.ndarray, size: Size, how: Image.Resampling) -> np.ndarray:
    if (image.shape[1], image.shape[0]) == tuple(size):
        return np.array(image)  # own memory: callers may hand read-only or strided views
    half = (image.shape[1], image.shape[0]) == (2 * size[0], 2 * size[1])
    if half and size[0] % 2 == 0 and how is Image.Resampling.BOX:
        return _halved(np.ascontiguousarray(image))
    return np.array(Image.fromarray(image).resize(size, how))


def _halved(image: np.ndarray) -> np.ndarray:
    """(2H, 2W, 3) -> (H, W, 3), W even: what Pillow's BOX gives, to the bit, in a third of the time.

    Pillow rounds half up after each direction.
    """
    even = cv2.resize(image, None, fx=0.5, fy=1.0, interpolation=cv2.INTER_NEAREST)
    odd = cv2.resize(image[:, 1:], None, fx=0.5, fy=1.0, interpolation=cv2.INTER_NEAREST)
    wide = _mean(even, odd)
    return _mean(wide[0::2], wide[1::2])


def _mean(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(a + b + 1) // 2 of uint8, within uint8."""
    return (a | b) - ((a ^ b) >> 1)


def _require_image(image: np.ndarray) -> None:
    problem = image_problem(image)
    if problem:
        raise DataError(problem)


def _triple(values: object) -> tuple[float, float, float]:
    if not isinstance(values, (list, tuple)) or len(values) != 3:
        raise ValueError(f"expected three numbers, got {values!r}")
    first, second, third = (float(value) for value in values)
    return first, second, third


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: expected a JSON file, got {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content
