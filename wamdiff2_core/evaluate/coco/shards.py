"""Labelled frames of our world as a COCO instances file.

`python -m wamdiff2_core.evaluate.coco.shards DATA --out FILE`

An image's `cameras` names the side cameras' pictures, which COCO does not know of. A result on it is our own world's.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import Wamdiff2Error
from wamdiff2_core.evaluate.frames import Frame, read_frames, read_image
from wamdiff2_core.evaluate.summary import write_json
from wamdiff2_core.tasks.detect import LABELS

SIDES = ("cam_front_left", "cam_front_right")


def instances(frames: Sequence[Frame], root: Path) -> dict[str, Any]:
    """Images, categories and annotations; file names start from `root`."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, frame in enumerate(frames, start=1):
        high, wide = read_image(frame.images[0]).shape[:2]
        names = [os.path.relpath(path, root) for path in frame.images]
        sides = dict(zip(SIDES, names[1:], strict=False))
        images.append({"id": number, "width": wide, "height": high, "file_name": names[0], "cameras": sides})
        for box in frame.boxes:
            x1, y1, x2, y2 = box.pixels(wide, high)
            annotations.append({
                "id": len(annotations) + 1, "image_id": number, "category_id": LABELS.index(box.label) + 1,
                "bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1), "iscrowd": 0,
            })  # fmt: skip
    categories = [{"id": k, "name": label} for k, label in enumerate(LABELS, start=1)]
    return {"info": {"description": "wamdiff2 world"}, "images": images, "categories": categories,
            "annotations": annotations}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """0: done; 1: an input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--frames", type=int, default=0, help="at most so many, spread evenly; 0: all")
    got = parser.parse_args(argv)
    try:
        write_json(got.out, instances(read_frames(got.data, got.frames), got.data))
    except Wamdiff2Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
