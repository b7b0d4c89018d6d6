"""Bags in every storage and state, and a driver that answers at once, for replays in tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from bags import CAMERAS, Item
from rich.console import Console
from rosbags.interfaces import Connection
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import get_types_from_msg
from rosbags.typesys.store import Typestore

from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.rig import load_rig
from wamdiff2_core.scene import Answer, Box, Cost, Detections, Plan, Scene
from wamdiff2_ros.bag_writer import typestore
from wamdiff2_ros.replay_run import Request, finish, run_offline

RIG = load_rig(Path(__file__).parents[2] / "config" / "rig_three.yaml")
QUIET = Console(quiet=True)


class StraightDriver:
    """Plans straight on at 5 m/s, 0.1 m to the left for each unit of its block size; sees one car, says it is red."""

    cameras = tuple(CAMERAS)
    optional_cameras = ()

    def __init__(self) -> None:
        self.decoding = DecodingConfig(8, 8)
        self.scenes: list[Scene] = []

    def plan(self, scene: Scene) -> Plan:
        return self.answer(scene, ("plan",))["plan"]

    def answer(self, scene: Scene, tasks: Iterable[str]) -> dict[str, Any]:
        self.scenes.append(scene)
        left = np.full(8, 0.1 * self.decoding.block_size)
        cost = Cost(forwards=5, tokens=20, vision_ms=1.0, prefill_ms=2.0, decode_ms=3.0)
        plan = Plan(np.column_stack([2.5 * np.arange(1, 9), left]), np.ones(8), cost=cost)
        boxes = Detections((Box("car", (156, 312, 469, 625), 0.9),), cost=cost)
        every = {"plan": plan, "detect": boxes, "ask": Answer(scene.question or "", "the light is red.", cost=cost)}
        return {task: every[task] for task in tasks}


def replayed(bag: Path, out: Path, sizes: tuple[int, ...] = (8,), **options: Any) -> dict[str, Any]:
    """The report of a replay with the driver above."""
    request = Request(bag, **options)
    settings = [DecodingConfig(size, min(8, size)) for size in sizes]
    opened, replay = run_offline(request, StraightDriver(), settings, QUIET)  # type: ignore[arg-type]
    stated = {"bag": bag.name, "checkpoint": "none", "steps": 8, "threshold": 0.9, "rule": "dynamic", "device": "cpu"}
    return finish(request, opened, replay, sizes, stated, RIG, out)


def write_rosbag(
    path: Path,
    items: Iterable[Item],
    plugin: StoragePlugin = StoragePlugin.MCAP,
    compression: CompressionMode = CompressionMode.NONE,
    store: Typestore | None = None,
) -> Path:
    """A bag by the rosbags library, in the storages and compressions of `ros2 bag record`."""
    writer = Writer(path, version=9, storage_plugin=plugin)
    writer.set_compression(compression, CompressionFormat.ZSTD)
    connections: dict[str, Connection] = {}
    with writer:
        for topic, ns, kind, data in items:
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=store or typestore())
            writer.write(connections[topic], ns, data)
    return path


def only(items: Iterable[Item], keep: Callable[[str], bool]) -> list[Item]:
    """The messages of these topics."""
    return [item for item in items if keep(item[0])]


def changed_type(items: Iterable[Item], kind: str, definition: str, **values: Any) -> tuple[list[Item], Typestore]:
    """The messages, those of `kind` written by another definition; `values` of fields that are new in it."""
    today, then = typestore(), typestore()
    del then.fielddefs[kind], then.types[kind]
    then.register(get_types_from_msg(definition, kind))
    written = []
    for topic, ns, name, data in items:
        if name == kind:
            message = today.deserialize_cdr(data, kind)
            fields = {key: values.get(key, getattr(message, key, None)) for key, _ in then.fielddefs[kind][1]}
            data = bytes(then.serialize_cdr(then.types[kind](**fields), kind))
        written.append((topic, ns, name, data))
    return written, then


def restamped(items: Iterable[Item], wanted: Callable[[str], bool], ns: Callable[[int], int]) -> list[Item]:
    """The messages, the header's time of those on `wanted` topics replaced."""
    written = []
    for topic, log_ns, kind, data in items:
        if wanted(topic) and kind != "std_msgs/msg/String":
            stamp = ns(log_ns)
            head = data[:4] + (stamp // 10**9).to_bytes(4, "little") + (stamp % 10**9).to_bytes(4, "little")
            data = head + data[12:]
        written.append((topic, log_ns, kind, data))
    return written
