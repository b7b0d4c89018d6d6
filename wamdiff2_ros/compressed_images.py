"""Compressed images (sensor_msgs/CompressedImage) as (H, W, 3) uint8 RGB arrays.

`format` is free text: "jpeg", "png", "", or image_transport's "<encoding>; <codec> compressed <encoding of the codec>".
Where it names a codec the bytes must be of it; where it names none the first bytes decide. What was cut off is refused,
although OpenCV may fill the missing part with grey.
"""

from __future__ import annotations

import re
from typing import Any

import cv2
import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_ros.raw_images import MAX_PIXELS, to_8_bit

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_OTHERS = {
    b"RIFF": "WebP",
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"II*\x00": "TIFF",
    b"MM\x00*": "TIFF",
    b"\x00\x00\x00\x01": "H.264 or H.265 video",
    b"\x00\x00\x01": "H.264 or H.265 video",
}
_SIXTEEN_BITS = re.compile(r"^(?:mono16|16uc1|rgba?16|bgra?16|bayer_\w{4}16)\s*;")
# JPEG segments that hold the size of the picture: all SOF but DHT, JPG and DAC.
_SIZE_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, b"\xff\xd9"


def compressed_to_rgb(data: Any, text: str = "") -> np.ndarray:
    """RGB picture of JPEG or PNG bytes whose message has `text` as format.

    Raises DataError if they are neither, contradict the text, are cut off or too large. Pixels come as they are stored:
    a rotation noted in EXIF is not applied, since camera calibrations do not know it.
    """
    raw = bytes(data)
    words = text.lower()
    if "compresseddepth" in words:
        raise DataError(f"format {text!r}: depth images of compressedDepth are not pictures")
    codec = _codec(raw, text)
    for named, pattern in (("JPEG", r"\bjpe?g\b"), ("PNG", r"\bpng\b")):
        if re.search(pattern, words) and named != codec:
            raise DataError(f"format {text!r}, but the bytes are {codec}")
    width, height = _jpeg_size(raw) if codec == "JPEG" else _png_size(raw)
    if not 0 < width * height <= MAX_PIXELS:
        raise DataError(f"{codec} of {width}x{height} pixels, at most {MAX_PIXELS} are taken")
    picture = _decoded(raw, codec)
    if _SIXTEEN_BITS.match(words) and codec == "PNG" and picture.dtype != np.uint16:
        raise DataError(f"format {text!r}, but the PNG has 8 bits per value")
    rgb = _as_rgb(picture, text)
    # image_transport may have compressed RGB as if it were BGR; then its text ends so.
    return np.ascontiguousarray(rgb[:, :, ::-1]) if re.search(r"compressed rgb", words) else rgb


def _codec(raw: bytes, text: str) -> str:
    """JPEG or PNG by the first bytes."""
    for magic, name in ((_JPEG, "JPEG"), (_PNG, "PNG")):
        if raw.startswith(magic):
            return name
    if not raw:
        raise DataError(f"0 bytes are not a JPEG or PNG picture (format {text!r})")
    known = next((f" but {name}" for magic, name in _OTHERS.items() if raw.startswith(magic)), "")
    raise DataError(f"{len(raw)} bytes are not a JPEG or PNG picture{known} (format {text[:80]!r}, {raw[:4].hex()}...)")


def _decoded(raw: bytes, codec: str) -> np.ndarray:
    # A PNG as it is, for its 16 bits; a JPEG as colour, for CMYK and grey ones.
    flag = cv2.IMREAD_UNCHANGED if codec == "PNG" else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        picture = cv2.imdecode(np.frombuffer(raw, np.uint8), flag)
    except cv2.error as error:
        raise DataError(f"{codec} of {len(raw)} bytes cannot be decoded: {error.err}") from error
    if picture is None:
        raise DataError(f"{codec} of {len(raw)} bytes cannot be decoded: it is broken; not a JPEG or PNG picture")
    return picture


def _as_rgb(picture: np.ndarray, text: str) -> np.ndarray:
    eight = to_8_bit(picture, text)
    codes = {1: cv2.COLOR_GRAY2RGB, 3: cv2.COLOR_BGR2RGB, 4: cv2.COLOR_BGRA2RGB}
    channels = 1 if eight.ndim == 2 else eight.shape[2]
    if channels not in codes:
        raise DataError(f"picture of {channels} channels")
    return cv2.cvtColor(eight, codes[channels])


def _jpeg_size(raw: bytes) -> tuple[int, int]:
    """(width, height) of a whole JPEG. DataError if its segments are broken or its end is missing."""
    at, size = 2, (0, 0)
    while at + 4 <= len(raw) and raw[at] == 0xFF:
        marker, length = raw[at + 1], int.from_bytes(raw[at + 2 : at + 4], "big")
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if marker in _SIZE_MARKERS and at + 9 <= len(raw):
            size = int.from_bytes(raw[at + 7 : at + 9], "big"), int.from_bytes(raw[at + 5 : at + 7], "big")
        if marker == _START_OF_SCAN:
            # Within a scan 0xFF is stuffed, so this is no chance find; cameras pad behind it.
            if raw.rfind(_END_OF_IMAGE, at) < 0:
                raise DataError(f"JPEG of {len(raw)} bytes is cut off: not a JPEG or PNG picture to its end")
            return size
        at += 2 + max(length, 2)
    raise DataError(f"JPEG of {len(raw)} bytes is broken before its picture begins: not a JPEG or PNG picture")


def _png_size(raw: bytes) -> tuple[int, int]:
    if len(raw) < 33 or raw[12:16] != b"IHDR" or raw.rfind(b"IEND", 33) < 0:
        raise DataError(f"PNG of {len(raw)} bytes is cut off: not a JPEG or PNG picture to its end")
    return int.from_bytes(raw[16:20], "big"), int.from_bytes(raw[20:24], "big")
