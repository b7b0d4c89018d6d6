"""JPEG and PNG with all that `format` may say, and bytes that are neither, or not whole."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from wamdiff2_core.errors import DataError
from wamdiff2_ros.compressed_images import compressed_to_rgb
from wamdiff2_ros.images import rgb_to_jpeg

SMOOTH = np.stack([np.tile(np.linspace(a, b, 64), (48, 1)) for a, b in ((250, 200), (10, 60), (0, 90))], axis=2).astype(
    np.uint8
)
JPEG = bytes(rgb_to_jpeg(SMOOTH, 95))
PNG = cv2.imencode(".png", SMOOTH[:, :, ::-1])[1].tobytes()
SWAPPED = bytes(rgb_to_jpeg(np.ascontiguousarray(SMOOTH[:, :, ::-1]), 95))
DEEP = (np.arange(48 * 64, dtype=np.uint16) * 21).reshape(48, 64)
PNG16 = cv2.imencode(".png", DEEP)[1].tobytes()


@pytest.mark.parametrize("text", ["jpeg", "jpg", "", "JPEG", *(f"{c}; jpeg compressed bgr8" for c in ("bgr8", "rgb8"))])
@pytest.mark.parametrize("padding", [b"", bytes(100)])
def test_jpeg_under_all_its_names(text: str, padding: bytes) -> None:
    assert np.abs(compressed_to_rgb(JPEG + padding, text).astype(int) - SMOOTH).max() <= 6


@pytest.mark.parametrize("text", ["png", "", "bgr8; png compressed bgr8", "rgb8; png compressed bgr8", "rgb8"])
def test_png_under_all_its_names(text: str) -> None:
    np.testing.assert_array_equal(compressed_to_rgb(PNG, text), SMOOTH)


def test_colours_that_image_transport_says_it_swapped() -> None:
    assert np.abs(compressed_to_rgb(SWAPPED, "rgb8; jpeg compressed rgb8").astype(int) - SMOOTH).max() <= 6


@pytest.mark.parametrize("text", ["16UC1; png compressed ", "mono16; png compressed ", "png", ""])
def test_png_of_sixteen_bits(text: str) -> None:
    rgb = compressed_to_rgb(PNG16, text)
    np.testing.assert_array_equal(rgb[:, :, 0], np.rint(DEEP / 257.0).astype(np.uint8))
    np.testing.assert_array_equal(rgb[:, :, 0], rgb[:, :, 2])


def test_grey_and_transparent_pictures() -> None:
    grey = np.ascontiguousarray(SMOOTH[:, :, 0])
    grey_jpeg = cv2.imencode(".jpg", grey, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()
    assert np.abs(compressed_to_rgb(grey_jpeg, "mono8; jpeg compressed ")[:, :, 1].astype(int) - grey).max() <= 6
    clear = np.concatenate([SMOOTH[:, :, ::-1], np.full((48, 64, 1), 9, np.uint8)], axis=2)
    np.testing.assert_array_equal(compressed_to_rgb(cv2.imencode(".png", clear)[1].tobytes(), "png"), SMOOTH)


@pytest.mark.parametrize(
    "data, text, named",
    [
        (b"", "jpeg", "0 bytes"),
        (b"not a picture", "", "neither|not a JPEG or PNG"),
        (JPEG, "png", "but the bytes are JPEG"),
        (PNG, "bgr8; jpeg compressed bgr8", "but the bytes are PNG"),
        (PNG, "16UC1; png compressed ", "8 bits"),
        (PNG16, "16UC1; compressedDepth png", "compressedDepth"),
        (bytes(12) + PNG16, "32FC1; compressedDepth", "compressedDepth"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "webp", "WebP"),
        (b"\x00\x00\x00\x01\x67\x42", "h264", "H.264"),
        (b"\xff\xd8\xff" + bytes(60) + b"\xff\xd9", "jpeg", "broken"),
        (PNG[:16] + (2**31 - 1).to_bytes(4, "big") * 2 + PNG[24:], "png", "at most"),
        (PNG[:16] + bytes(8) + PNG[24:], "png", "0x0"),
    ],
)
def test_what_does_not_fit_is_named(data: bytes, text: str, named: str) -> None:
    with pytest.raises(DataError, match=named):
        compressed_to_rgb(data, text)


@pytest.mark.parametrize("whole", [JPEG, PNG], ids=["jpeg", "png"])
def test_whatever_is_cut_off_is_refused(whole: bytes) -> None:
    end = len(whole) - (1 if whole is JPEG else 8)  # the PNG's last 8 bytes hold nothing of the picture
    for size in [*range(0, end, 37), end]:
        with pytest.raises(DataError):
            compressed_to_rgb(whole[:size], "")


def test_random_bytes_within_a_jpeg_are_never_fatal() -> None:
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(300):
        data = np.frombuffer(JPEG, np.uint8).copy()
        data[rng.integers(3, data.size, 20)] = rng.integers(0, 256, 20)
        try:
            assert compressed_to_rgb(data.tobytes(), "jpeg").shape[2] == 3
        except DataError:
            refused += 1
        with pytest.raises(DataError):
            compressed_to_rgb(b"\xff\xd8\xff" + rng.integers(0, 256, 300, np.uint8).tobytes(), "")
    assert refused > 0
