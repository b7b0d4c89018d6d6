"""Pictures for the fault test's cameras: rendered once by the embedded world, kept as JPEG files; and broken ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from wamdiff2_core.scene import Camera

FRAMES = 24
STEP_S = 0.1


def render(folder: Path, cameras: Sequence[Camera], seed: int = 0, frames: int = FRAMES) -> None:
    """Write `frames` pictures per camera of a car that sets off on a made-up map: FOLDER/<camera>/<number>.jpg."""
    from wamdiff2_ros.images import rgb_to_jpeg
    from wamdiff2_sim.types import VehicleControl
    from wamdiff2_sim.world import World

    for camera in cameras:
        (folder / camera.name).mkdir(parents=True, exist_ok=True)
    world = World("procedural:1", seed, tuple(cameras), traffic=(4, 2))
    for number in range(frames):
        for name, picture in world.render().items():
            (folder / name / f"{number:03d}.jpg").write_bytes(rgb_to_jpeg(picture).tobytes())
        world.step(VehicleControl(throttle=0.4), STEP_S)


def load(folder: Path, camera: str) -> list[bytes]:
    """The JPEG files of a camera, in their order. FileNotFoundError if there are none."""
    pictures = [path.read_bytes() for path in sorted((folder / camera).glob("*.jpg"))]
    if not pictures:
        raise FileNotFoundError(f"no pictures of {camera} in {folder}")
    return pictures


def broken(kind: str, jpeg: bytes, rng: random.Random) -> bytes:
    """`jpeg` as a broken camera sends it: random bytes, truncated at a random place, or empty."""
    if kind == "random":
        return rng.randbytes(rng.choice((3, 200, len(jpeg))))
    if kind == "truncated":
        return jpeg[: rng.randrange(len(jpeg) // 10, len(jpeg) * 9 // 10)]
    if kind == "empty":
        return b""
    raise ValueError(f"{kind!r} is not a way to break a picture")
