"""Camera data of the leaderboard as the model's pictures: re-encoded as the training pictures were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import Camera


def as_jpeg(bgra: np.ndarray, quality: int) -> np.ndarray:
    """BGRA (H, W, 4) uint8 to RGB (H, W, 3), once through JPEG of that quality. DataError if it cannot be encoded."""
    ok, data = cv2.imencode(".jpg", np.ascontiguousarray(bgra[..., :3]), [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not ok:
        raise DataError(f"camera: a picture of shape {bgra.shape} could not be encoded")
    return np.ascontiguousarray(np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR))[..., ::-1])


def pictures(
    data: Mapping[str, Any], cameras: Sequence[Camera], quality: int, gaps: Counter[str]
) -> dict[str, np.ndarray] | None:
    """RGB pictures by camera name, in rig order; None when one is missing or of another size, which `gaps` counts.

    data: {id: (frame, array)} as `run_step` gets it; ids are camera names.
    """
    found: dict[str, np.ndarray] = {}
    for camera in cameras:
        entry = data.get(camera.name)
        array = None if entry is None else np.asarray(entry[1])
        if array is None or array.dtype != np.uint8 or array.shape != (camera.height, camera.width, 4):
            gaps[camera.name] += 1
            continue
        found[camera.name] = array
    if len(found) < len(cameras):
        return None
    return {name: as_jpeg(array, quality) for name, array in found.items()}
