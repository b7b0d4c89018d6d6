"""Images between messages and arrays: every array here is (H, W, 3) uint8 RGB, row by row from the top.

An own table instead of cv_bridge (raw_images.py): the one on PyPI breaks with NumPy 2 and ignores row padding.
"""

from __future__ import annotations

import array
from typing import Any

import cv2
import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_ros.compressed_images import compressed_to_rgb
from wamdiff2_ros.raw_images import raw_to_rgb


def message_to_rgb(message: Any) -> np.ndarray:
    """RGB picture of a sensor_msgs/Image or sensor_msgs/CompressedImage. DataError says why there is none."""
    if hasattr(message, "format"):
        return compressed_to_rgb(message.data, message.format)
    return raw_to_rgb(message.height, message.width, message.encoding, message.step, message.data, message.is_bigendian)


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
