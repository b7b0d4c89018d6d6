"""Raw image encodings, padded rows, byte order, sizes that contradict each other."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from wamdiff2_core.errors import DataError
from wamdiff2_ros.images import message_to_rgb
from wamdiff2_ros.raw_images import ENCODINGS, raw_to_rgb

PICTURE = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
ALPHA = np.full((6, 8, 1), 7, np.uint8)
GREY = PICTURE[:, :, 0]
GREY_RGB = np.repeat(GREY[:, :, None], 3, axis=2)
CASES = {
    "rgb8": (PICTURE, PICTURE),
    "bgr8": (PICTURE[:, :, ::-1], PICTURE),
    "rgba8": (np.concatenate([PICTURE, ALPHA], axis=2), PICTURE),
    "bgra8": (np.concatenate([PICTURE[:, :, ::-1], ALPHA], axis=2), PICTURE),
    "mono8": (GREY, GREY_RGB),
    "8UC1": (GREY, GREY_RGB),
    # 257 = 65535 / 255, so these come back exactly
    "rgb16": (PICTURE * np.uint16(257), PICTURE),
    "bgr16": (PICTURE[:, :, ::-1] * np.uint16(257), PICTURE),
    "bgra16": (np.concatenate([PICTURE[:, :, ::-1], ALPHA], axis=2) * np.uint16(257), PICTURE),
    "rgba16": (np.concatenate([PICTURE, ALPHA], axis=2) * np.uint16(257), PICTURE),
    "mono16": (GREY * np.uint16(257), GREY_RGB),
    "16UC1": (GREY * np.uint16(257), GREY_RGB),
    "32FC1": (GREY / np.float32(255), GREY_RGB),
}
YUV_GREY = {  # bytes of grey pixels, 90 in video range
    "uyvy": [128, 90, 128, 90],
    "yuv422": [128, 90, 128, 90],
    "yuyv": [90, 128, 90, 128],
    "yuv422_yuy2": [90, 128, 90, 128],
}


def padded(picture: np.ndarray, padding: int) -> tuple[int, bytes]:
    """(step, data) with that many bytes behind each row."""
    rows = np.ascontiguousarray(picture).reshape(picture.shape[0], -1).view(np.uint8)
    full = np.concatenate([rows, np.full((rows.shape[0], padding), 255, np.uint8)], axis=1)
    return full.shape[1], full.tobytes()


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("encoding", CASES)
def test_encodings(encoding: str, padding: int) -> None:
    sent, expected = CASES[encoding]
    step, data = padded(sent, padding)
    np.testing.assert_array_equal(raw_to_rgb(6, 8, encoding, step, data), expected)


@pytest.mark.parametrize("encoding", [name for name, (sent, _) in CASES.items() if sent.dtype.itemsize > 1])
def test_byte_order(encoding: str) -> None:
    sent, expected = CASES[encoding]
    step, data = padded(sent.byteswap(), 3)
    np.testing.assert_array_equal(raw_to_rgb(6, 8, encoding, step, data, is_bigendian=1), expected)


def test_mono16_big_endian_by_hand() -> None:
    data = bytes([0x00, 0x00, 0x80, 0x01, 0xFF, 0xFF, 0x01, 0x80])
    assert raw_to_rgb(2, 2, "mono16", 4, data, is_bigendian=True)[:, :, 0].tolist() == [[0, 128], [255, 1]]
    assert raw_to_rgb(2, 2, "mono16", 4, data, is_bigendian=False)[:, :, 0].tolist() == [[0, 1], [255, 128]]


@pytest.mark.parametrize(
    "pattern, first_row, second_row",
    [("rggb", "rg", "gb"), ("bggr", "bg", "gr"), ("gbrg", "gb", "rg"), ("grbg", "gr", "bg")],
)
@pytest.mark.parametrize("bits", [8, 16])
def test_bayer_patterns_of_one_colour(pattern: str, first_row: str, second_row: str, bits: int) -> None:
    colour = {"r": 200, "g": 100, "b": 50}
    tile = np.array([[colour[c] for c in first_row], [colour[c] for c in second_row]], np.uint8)
    mosaic = np.tile(tile, (4, 4))
    mosaic = mosaic if bits == 8 else mosaic * np.uint16(257)
    rgb = raw_to_rgb(8, 8, f"bayer_{pattern}{bits}", bits, mosaic.tobytes())
    np.testing.assert_allclose(rgb[3:5, 3:5], np.broadcast_to([200, 100, 50], (2, 2, 3)), atol=1)


@pytest.mark.parametrize("encoding", YUV_GREY)
def test_grey_in_packed_yuv(encoding: str) -> None:
    step, data = padded(np.tile(np.array(YUV_GREY[encoding], np.uint8), (4, 2)), 3)
    rgb = raw_to_rgb(4, 4, encoding, step, data)
    assert rgb.shape == (4, 4, 3) and rgb.std() == 0.0 and abs(int(rgb[0, 0, 0]) - 86) <= 2


@pytest.mark.parametrize("encoding, red", [("nv12", [90, 240]), ("nv21", [240, 90])])
def test_colour_in_planar_yuv(encoding: str, red: list[int]) -> None:
    planes = np.concatenate([np.full((4, 6), 81, np.uint8), np.tile(np.array(red, np.uint8), (2, 3))])
    step, data = padded(planes, 2)
    rgb = raw_to_rgb(4, 6, encoding, step, data)
    np.testing.assert_allclose(rgb, np.broadcast_to([254, 0, 0], (4, 6, 3)), atol=3)


@pytest.mark.parametrize(
    "height, width, encoding, step, size, named",
    [
        (4, 4, "8UC3", 12, 48, "8UC3"),
        (4, 4, "", 12, 48, "''"),
        (4, 4, "RGB8", 12, 48, "RGB8"),
        (4, 4, "rgb8", 11, 48, "step"),
        (4, 4, "rgb8", 0, 48, "step of 0 bytes"),
        (4, 4, "rgb8", 12, 47, "47 bytes"),
        (4, 4, "rgb8", 12, 49, "49 bytes"),
        (480, 1920, "rgb8", 5760, 110_592, "110592 bytes"),
        (480, 1920, "mono8", 1920, 110_592, "110592 bytes"),
        (4, 4, "mono16", 7, 32, "step of 7"),
        (0, 4, "rgb8", 12, 0, "4x0"),
        (4, 0, "rgb8", 0, 0, "0x4"),
        (2**32 - 1, 2**32 - 1, "rgb8", 2**32 - 1, 9, "4294967295x4294967295"),
        (4, 5, "uyvy", 10, 40, "even"),
        (3, 4, "nv12", 4, 18, "even"),
        (4, 4, "nv12", 4, 16, "16 bytes"),
        (3, 4, "bayer_rggb8", 4, 12, "even"),
    ],
)
def test_what_cannot_be_read_is_said(height: int, width: int, encoding: str, step: int, size: int, named: str) -> None:
    with pytest.raises(DataError, match=named):
        raw_to_rgb(height, width, encoding, step, bytes(size))


@pytest.mark.parametrize("wrong", [float("nan"), -0.1, 1.5, float("inf")])
def test_floats_that_are_no_picture_are_refused(wrong: float) -> None:
    values = np.full((2, 2), 0.5, np.float32)
    values[1, 0] = wrong
    with pytest.raises(DataError, match="32FC1"):
        raw_to_rgb(2, 2, "32FC1", 8, values.tobytes())


def test_rows_of_five_pixels_in_steps_of_sixteen() -> None:
    picture = PICTURE[:2, :5]
    step, data = padded(picture, 1)
    assert step == 16
    np.testing.assert_array_equal(raw_to_rgb(2, 5, "rgb8", 16, data), picture)
    np.testing.assert_array_equal(raw_to_rgb(2, 5, "rgb8", 16, data[:-1]), picture)  # the last row's padding is missing


def test_whatever_is_claimed_of_random_bytes_nothing_but_a_data_error_comes_out() -> None:
    rng = np.random.default_rng(1)
    read = 0
    for _ in range(2000):
        encoding = str(rng.choice([*ENCODINGS, "jpeg", "8UC4"]))
        height, width, step = (int(v) for v in rng.integers(0, [9, 9, 40]))
        data = rng.integers(0, 256, int(rng.choice([step * height, rng.integers(0, 400)])), np.uint8).tobytes()
        message = SimpleNamespace(height=height, width=width, encoding=encoding, step=step, data=data, is_bigendian=1)
        try:
            rgb = message_to_rgb(message)
        except DataError:
            continue
        read += 1
        assert rgb.shape == (height, width, 3) and rgb.dtype == np.uint8
    assert read > 50
