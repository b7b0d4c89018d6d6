"""Images between messages and arrays: every array here is (H, W, 3) uint8 RGB, row by row from the top.

An own table instead of cv_bridge: the one on PyPI breaks with NumPy 2 and ignores row padding.
"""

from __future__ import annotations

import array
from typing import Any

import cv2
import numpy as np

from wamdiff2_core.errors import DataError

# encoding -> (channels, OpenCV conversion to RGB or None). All are 8 bit per channel.
ENCODINGS: dict[str, tuple[int, int | None]] = {
    "rgb8": (3, None),
    "bgr8": (3, cv2.COLOR_BGR2RGB),
    "8UC3": (3, cv2.COLOR_BGR2RGB),
    "rgba8": (4, cv2.COLOR_RGBA2RGB),
    "bgra8": (4, cv2.COLOR_BGRA2RGB),
    "mono8": (1, cv2.COLOR_GRAY2RGB),
    "8UC1": (1, cv2.COLOR_GRAY2RGB),
    "uyvy": (2, cv2.COLOR_YUV2RGB_UYVY),
    "yuv422": (2, cv2.COLOR_YUV2RGB_UYVY),
    "yuyv": (2, cv2.COLOR_YUV2RGB_YUY2),
    "yuv422_yuy2": (2, cv2.COLOR_YUV2RGB_YUY2),
    # ROS names a Bayer pattern by its first row, OpenCV by the second row's middle.
    "bayer_rggb8": (1, cv2.COLOR_BayerBG2RGB),
    "bayer_bggr8": (1, cv2.COLOR_BayerRG2RGB),
    "bayer_gbrg8": (1, cv2.COLOR_BayerGR2RGB),
    "bayer_grbg8": (1, cv2.COLOR_BayerGB2RGB),
}


def raw_to_rgb(height: int, width: int, encoding: str, step: int, data: Any) -> np.ndarray:
    """RGB picture of a raw image's fields. `step` is the length of a row in bytes, padding included.

    Raises DataError for an unknown encoding, a step shorter than a row, or too few bytes.
    """
    if encoding not in ENCODINGS:
        raise DataError(f"image encoding {encoding!r} is not supported; known are {', '.join(ENCODINGS)}")
    channels, code = ENCODINGS[encoding]
    row = width * channels
    if width < 1 or height < 1:
        raise DataError(f"image of {width}x{height} pixels")
    if step < row:
        raise DataError(f"step of {step} bytes is shorter than a row of {row} bytes ({width} px {encoding})")
    flat = np.frombuffer(data, np.uint8)
    needed = step * (height - 1) + row
    if flat.size < needed:
        raise DataError(f"image has {flat.size} bytes; {width}x{height} {encoding} with step {step} needs {needed}")
    shape = (height, width) if channels == 1 else (height, width, channels)
    strides = (step, 1) if channels == 1 else (step, channels, 1)
    view = np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False)
    return np.ascontiguousarray(view) if code is None else cv2.cvtColor(np.ascontiguousarray(view), code)


def compressed_to_rgb(data: Any) -> np.ndarray:
    """RGB picture of JPEG or PNG bytes. Raises DataError if they are neither, or cut off."""
    raw = np.frombuffer(data, np.uint8)
    picture = cv2.imdecode(raw, cv2.IMREAD_COLOR) if raw.size else None
    if picture is None:
        raise DataError(f"{raw.size} bytes are not a JPEG or PNG picture")
    return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)


def message_to_rgb(message: Any) -> np.ndarray:
    """RGB picture of a sensor_msgs/Image or sensor_msgs/CompressedImage."""
    if hasattr(message, "format"):
        return compressed_to_rgb(message.data)
    if message.is_bigendian and message.encoding.endswith("16"):
        raise DataError("big-endian 16 bit images are not supported")
    return raw_to_rgb(message.height, message.width, message.encoding, message.step, message.data)


def rgb_to_jpeg(picture: np.ndarray, quality: int = 90) -> array.array:
    """JPEG bytes of an RGB picture, as the array type that message fields take without a copy per element."""
    done, encoded = cv2.imencode(".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise DataError(f"a picture of shape {picture.shape} could not be written as JPEG")
    return array.array("B", encoded.tobytes())


def fill_compressed(message: Any, header: Any, picture: np.ndarray, quality: int = 90) -> Any:
    """Fill a sensor_msgs/CompressedImage with an RGB picture and return it."""
    message.header = header
    message.format = "jpeg"
    message.data = rgb_to_jpeg(picture, quality)
    return message


def fill_raw(message: Any, header: Any, picture: np.ndarray) -> Any:
    """Fill a sensor_msgs/Image (rgb8) with an RGB picture and return it."""
    height, width = picture.shape[:2]
    message.header = header
    message.height, message.width = int(height), int(width)
    message.encoding = "rgb8"
    message.is_bigendian = 0
    message.step = int(width) * 3
    message.data = array.array("B", np.ascontiguousarray(picture).tobytes())
    return message
