"""From a place in a 1600x900 picture to what the model sees, and back into the pixels of that picture."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

from wamdiff2_core.model.images import ImageFormat, fit  # noqa: E402
from wamdiff2_core.scene import Box, Detections  # noqa: E402
from wamdiff2_ros import conversions as cv  # noqa: E402

WIDTH, HEIGHT = 1600, 900


@pytest.mark.parametrize("size", [(320, 192), (640, 384), None])  # exact sizes, and Qwen's rule
@pytest.mark.parametrize("truth", [(0, 0, 400, 300), (800, 450, 1000, 600), (1200, 650, 1600, 900)])
def test_a_rectangle_comes_back_where_it_was(size: tuple[int, int] | None, truth: tuple[int, ...]) -> None:
    """The whole picture is resized, nothing is cut off or added: relative units mean the same before and after."""
    x1, y1, x2, y2 = truth
    picture = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    picture[y1:y2, x1:x2] = 255
    (seen,) = fit([picture], None if size is None else [size], ImageFormat())
    inside = seen[:, :, 0] > 127
    rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
    high, wide = inside.shape
    relative = np.array([
        columns[0] / wide, rows[0] / high, (columns[-1] + 1) / wide, (rows[-1] + 1) / high
    ]) * 1000.0  # fmt: skip
    box = Box("car", tuple(int(round(v)) for v in relative))  # type: ignore[arg-type]  # as the model writes it
    message = cv.boxes_message(Detections((box,)), 1.0, "cam_front", WIDTH, HEIGHT)
    assert (message.image_width, message.image_height) == (WIDTH, HEIGHT)
    found = message.boxes[0]
    near = 0.5 * WIDTH / wide + 0.5 * WIDTH / 1000 + 0.01  # half a pixel of the model's and half a unit of its answer
    assert (found.x1_px, found.y1_px, found.x2_px, found.y2_px) == pytest.approx(truth, abs=near)
