"""Raw images (sensor_msgs/Image) as (H, W, 3) uint8 RGB arrays: a table of encodings, and no guessing beside it.

Scales, stated because the messages do not: mono16, 16UC1 and the 16 bit colours run from black at 0 to white at 65535
(as cv_bridge has it); 32FC1 from 0.0 to 1.0, anything outside is refused. 8UC3 and its like say no order of colours and
are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from wamdiff2_core.errors import DataError

MAX_PIXELS = 1 << 26  # 64 million: beyond any camera, and still within memory


@dataclass(frozen=True)
class Encoding:
    """How an encoding lies in memory: values per pixel, their dtype, OpenCV's conversion to RGB (None: it is RGB).

    even: width (and for `rows` also height) must be even, because pixels share colours. rows: rows of bytes per two
    rows of pixels.
    """

    channels: int
    code: int | None
    dtype: str = "u1"
    even: bool = False
    rows: int = 2


_GREY = cv2.COLOR_GRAY2RGB
# ROS names a Bayer pattern by its first row, OpenCV by the second row's middle.
_BAYER = {
    "rggb": cv2.COLOR_BayerBG2RGB,
    "bggr": cv2.COLOR_BayerRG2RGB,
    "gbrg": cv2.COLOR_BayerGR2RGB,
    "grbg": cv2.COLOR_BayerGB2RGB,
}
ENCODINGS: dict[str, Encoding] = {
    "rgb8": Encoding(3, None),
    "bgr8": Encoding(3, cv2.COLOR_BGR2RGB),
    "rgba8": Encoding(4, cv2.COLOR_RGBA2RGB),
    "bgra8": Encoding(4, cv2.COLOR_BGRA2RGB),
    "rgb16": Encoding(3, None, "u2"),
    "bgr16": Encoding(3, cv2.COLOR_BGR2RGB, "u2"),
    "rgba16": Encoding(4, cv2.COLOR_RGBA2RGB, "u2"),
    "bgra16": Encoding(4, cv2.COLOR_BGRA2RGB, "u2"),
    "mono8": Encoding(1, _GREY),
    "8UC1": Encoding(1, _GREY),
    "mono16": Encoding(1, _GREY, "u2"),
    "16UC1": Encoding(1, _GREY, "u2"),
    "32FC1": Encoding(1, _GREY, "f4"),
    "uyvy": Encoding(2, cv2.COLOR_YUV2RGB_UYVY, even=True),
    "yuv422": Encoding(2, cv2.COLOR_YUV2RGB_UYVY, even=True),
    "yuyv": Encoding(2, cv2.COLOR_YUV2RGB_YUY2, even=True),
    "yuv422_yuy2": Encoding(2, cv2.COLOR_YUV2RGB_YUY2, even=True),
    "nv12": Encoding(1, cv2.COLOR_YUV2RGB_NV12, even=True, rows=3),
    "nv21": Encoding(1, cv2.COLOR_YUV2RGB_NV21, even=True, rows=3),
    **{f"bayer_{pattern}8": Encoding(1, code, even=True) for pattern, code in _BAYER.items()},
    **{f"bayer_{pattern}16": Encoding(1, code, "u2", even=True) for pattern, code in _BAYER.items()},
}


def raw_to_rgb(
    height: int, width: int, encoding: str, step: int, data: Any, is_bigendian: bool | int = False
) -> np.ndarray:
    """RGB picture of a raw image's fields. `step` is the length of a row in bytes, padding included.

    The last row may lack its padding. Raises DataError for an unknown encoding, and for a size, step and number of
    bytes that do not agree.
    """
    if encoding not in ENCODINGS:
        raise DataError(f"image encoding {encoding!r} is not supported; known are {', '.join(ENCODINGS)}")
    layout = ENCODINGS[encoding]
    dtype = np.dtype(layout.dtype)
    row = width * layout.channels * dtype.itemsize
    rows = height * layout.rows // 2
    flat = np.frombuffer(data, np.uint8)
    _check_size(height, width, encoding, layout)
    _check_bytes(flat.size, rows, row, step, f"{width}x{height} {encoding}")
    lines = np.lib.stride_tricks.as_strided(flat, (rows, row), (step, 1), writeable=False)
    values = np.ascontiguousarray(lines).view(dtype.newbyteorder(">" if is_bigendian else "<"))
    shape = (rows, width) if layout.channels == 1 else (rows, width, layout.channels)
    eight = to_8_bit(values.reshape(shape), encoding)
    return eight if layout.code is None else cv2.cvtColor(eight, layout.code)


def to_8_bit(values: np.ndarray, encoding: str) -> np.ndarray:
    """uint8 of uint8, uint16 (0..65535) or float (0..1) values; DataError for floats outside."""
    if values.dtype.itemsize == 1:
        return values
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    if native.dtype == np.uint16:
        return cv2.convertScaleAbs(native, alpha=255.0 / 65535.0)
    low, high = float(native.min()), float(native.max())
    if not 0.0 <= low <= high <= 1.0:  # also false for NaN
        raise DataError(f"{encoding} values from {low:g} to {high:g}; a picture has 0 to 1")
    return cv2.convertScaleAbs(native, alpha=255.0)


def _check_size(height: int, width: int, encoding: str, layout: Encoding) -> None:
    if width < 1 or height < 1:
        raise DataError(f"image of {width}x{height} pixels")
    if width * height > MAX_PIXELS:
        raise DataError(f"image of {width}x{height} pixels, at most {MAX_PIXELS} are taken")
    both = encoding.startswith(("nv", "bayer"))
    if layout.even and (width % 2 or (both and height % 2)):
        raise DataError(f"{encoding} image of {width}x{height} pixels; its sides must be even")


def _check_bytes(size: int, rows: int, row: int, step: int, what: str) -> None:
    if step < row:
        raise DataError(f"step of {step} bytes is shorter than a row of {row} bytes ({what})")
    least, most = step * (rows - 1) + row, step * rows
    if not least <= size <= most:
        needed = f"{most}" if least == most else f"{least} to {most}"
        raise DataError(f"image has {size} bytes; {what} with step {step} needs {needed}")
