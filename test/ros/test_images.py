"""Image encodings, padded rows, broken data."""

from __future__ import annotations

import numpy as np
import pytest

from wamdiff2_core.errors import DataError
from wamdiff2_ros.images import compressed_to_rgb, raw_to_rgb, rgb_to_jpeg

PICTURE = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
ALPHA = np.full((6, 8, 1), 7, np.uint8)
GREY = PICTURE[:, :, 0]
CASES = {
    "rgb8": (PICTURE, PICTURE),
    "bgr8": (PICTURE[:, :, ::-1], PICTURE),
    "8UC3": (PICTURE[:, :, ::-1], PICTURE),
    "rgba8": (np.concatenate([PICTURE, ALPHA], axis=2), PICTURE),
    "bgra8": (np.concatenate([PICTURE[:, :, ::-1], ALPHA], axis=2), PICTURE),
    "mono8": (GREY, np.repeat(GREY[:, :, None], 3, axis=2)),
    "8UC1": (GREY, np.repeat(GREY[:, :, None], 3, axis=2)),
}


def padded(picture: np.ndarray, padding: int) -> tuple[int, bytes]:
    """(step, data) with that many bytes behind each row."""
    rows = np.ascontiguousarray(picture).reshape(picture.shape[0], -1)
    full = np.concatenate([rows, np.full((rows.shape[0], padding), 255, np.uint8)], axis=1)
    return full.shape[1], full.tobytes()


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("encoding", CASES)
def test_encodings(encoding: str, padding: int) -> None:
    sent, expected = CASES[encoding]
    step, data = padded(sent, padding)
    np.testing.assert_array_equal(raw_to_rgb(6, 8, encoding, step, data), expected)


@pytest.mark.parametrize(
    "pattern, first_row, second_row",
    [("rggb", "rg", "gb"), ("bggr", "bg", "gr"), ("gbrg", "gb", "rg"), ("grbg", "gr", "bg")],
)
def test_bayer_patterns_of_one_colour(pattern: str, first_row: str, second_row: str) -> None:
    colour = {"r": 200, "g": 100, "b": 50}
    tile = np.array([[colour[c] for c in first_row], [colour[c] for c in second_row]], np.uint8)
    mosaic = np.tile(tile, (4, 4))
    rgb = raw_to_rgb(8, 8, f"bayer_{pattern}8", 8, mosaic.tobytes())
    np.testing.assert_allclose(rgb[3:5, 3:5], np.broadcast_to([200, 100, 50], (2, 2, 3)), atol=1)


@pytest.mark.parametrize("encoding, pixel", [("uyvy", [128, 90, 128, 90]), ("yuyv", [90, 128, 90, 128])])
def test_grey_in_packed_yuv(encoding: str, pixel: list[int]) -> None:
    data = np.tile(np.array(pixel, np.uint8), (4, 2))
    rgb = raw_to_rgb(4, 4, encoding, 8, data.tobytes())
    assert rgb.std() == 0.0 and abs(int(rgb[0, 0, 0]) - 86) <= 2  # 90 in video range


@pytest.mark.parametrize(
    "height, width, encoding, step, size, named",
    [
        (4, 4, "32FC1", 16, 64, "32FC1"),
        (4, 4, "rgb8", 11, 48, "step"),
        (4, 4, "rgb8", 12, 47, "47 bytes"),
        (0, 4, "rgb8", 12, 0, "4x0"),
    ],
)
def test_what_cannot_be_read_is_said(height: int, width: int, encoding: str, step: int, size: int, named: str) -> None:
    with pytest.raises(DataError, match=named):
        raw_to_rgb(height, width, encoding, step, bytes(size))


def test_last_row_needs_no_padding() -> None:
    step, data = padded(PICTURE, 5)
    np.testing.assert_array_equal(raw_to_rgb(6, 8, "rgb8", step, data[:-5]), PICTURE)


def test_jpeg_there_and_back() -> None:
    smooth = np.tile(np.linspace(0, 255, 64, dtype=np.uint8)[None, :, None], (48, 1, 3))
    back = compressed_to_rgb(rgb_to_jpeg(smooth, 95))
    assert np.abs(back.astype(int) - smooth).max() <= 4


@pytest.mark.parametrize("data", [b"", b"not a picture", bytes(rgb_to_jpeg(PICTURE))[:20]])
def test_broken_pictures_are_refused(data: bytes) -> None:
    with pytest.raises(DataError):
        compressed_to_rgb(data)
