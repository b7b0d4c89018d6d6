"""A small made-up bag of a drive: straight on at 5 m/s for four seconds, written without ROS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from wamdiff2_ros.bag_writer import BagWriter, typestore

SPEED = 5.0
CAMERAS = {"cam_front": (64, 64), "cam_front_left": (32, 32), "cam_front_right": (32, 32)}
INSTRUCTION = "turn left in 40 m"
QUESTION, TRUTH = "what colour is the traffic light?", "the light is red."


class Messages:
    """Message objects by type name, with every field that is not named at its zero."""

    def __init__(self) -> None:
        self.store = typestore()

    def make(self, kind: str, **fields: Any) -> Any:
        cls = self.store.types[kind]
        definition = self.store.fielddefs[kind][1]
        values = {name: fields[name] if name in fields else self._zero(form) for name, form in definition}
        return cls(**values)

    def _zero(self, form: Any) -> Any:
        node, detail = int(form[0]), form[1]
        if node == 1:  # a basic type
            return "" if detail[0] == "string" else False if detail[0] == "bool" else 0
        if node == 2:
            return self.make(detail)
        (inner, name), length = detail
        if int(inner) == 1 and name[0] != "string":
            return np.zeros(length, np.dtype("float64" if name[0] == "float64" else name[0]))
        return []

    def header(self, ns: int, frame: str = "map") -> Any:
        stamp = self.make("builtin_interfaces/msg/Time", sec=ns // 10**9, nanosec=ns % 10**9)
        return self.make("std_msgs/msg/Header", stamp=stamp, frame_id=frame)


def straight(lateral: float = 0.0) -> dict[str, np.ndarray]:
    return {"x": SPEED * 0.5 * np.arange(1, 9), "y": np.full(8, lateral)}


Item = tuple[str, int, str, bytes]  # topic, time of recording in ns, type, CDR


def drive(seconds: float = 4.0, plans: bool = True, world: bool = True, start_ns: int = 10**9) -> list[Item]:
    """Messages; plans lie 0.3 m beside the expert's, the third of them is withheld."""
    m, items = Messages(), []

    def put(topic: str, ns: int, message: Any) -> None:
        kind = message.__msgtype__
        items.append((topic, ns, kind, bytes(m.store.serialize_cdr(message, kind))))

    for k in range(int(seconds * 10)):
        ns = start_ns + k * 10**8
        if k == 0:
            put("/world/instruction", ns, m.make("std_msgs/msg/String", data=INSTRUCTION))
            put("/world/question", ns, m.make("std_msgs/msg/String", data=QUESTION))
            if world:
                put("/world/route", ns, _route(m, ns))
        put("/world/odometry", ns, _odometry(m, ns, k * 0.1))
        for name, (width, height) in CAMERAS.items():
            put(f"/world/{name}/image/compressed", ns, _image(m, ns, width, height, k))
        if world:
            put("/world/status", ns, _status(m, ns, k))
            put("/world/ground_truth/boxes", ns, _boxes(m, ns, confidence=1.0))
        if plans and k % 5 == 0:
            _driver(m, ns, k, put)
    return items


def write_drive(path: Path, seconds: float = 4.0, plans: bool = True, world: bool = True) -> Path:
    """A bag as our recorder writes it."""
    return write_items(path, drive(seconds, plans, world))


def write_items(path: Path, items: Iterable[Item]) -> Path:
    """A bag of these messages by our own writer."""
    writer = BagWriter(path)
    known: set[str] = set()
    for topic, ns, kind, data in items:
        if topic not in known:
            writer.add_topic(topic, kind)
            known.add(topic)
        writer.write(topic, ns, data)
    writer.close()
    return path


def _driver(m: Messages, ns: int, k: int, put: Any) -> None:
    """What the driver says at one moment."""
    plan = straight(0.3)
    fields: Mapping[str, Any] = {"raw_x_m": plan["x"], "raw_y_m": plan["y"]} if k != 10 else {"status": 4}
    header = m.header(ns, "base_link")
    put(
        "/wamdiff2/output/trajectory",
        ns,
        m.make("wamdiff2/msg/Trajectory", header=header, instruction=INSTRUCTION, **fields),
    )
    stats = {"block_size": 32, "steps": 8, "rule": "dynamic", "threshold": 0.9, "forwards": 7, "total_ms": 150.0 + k}
    counts = {"failures_parse": int(k >= 10), "frames_dropped": k, "checkpoint": "checkpoints/tiny"}
    said = m.make("wamdiff2/msg/Stats", header=header, frame_age_ms=200.0, **stats, **counts)
    put("/wamdiff2/output/stats", ns, said)
    put("/wamdiff2/output/boxes", ns, _boxes(m, ns, confidence=0.9))
    if k == 5:
        answer = m.make("wamdiff2/msg/Answer", header=header, question=QUESTION, text=TRUTH, confidence=0.8)
        put("/wamdiff2/output/answer", ns, answer)


def _status(m: Messages, ns: int, k: int) -> Any:
    expert = straight()
    return m.make(
        "wamdiff2/msg/DriveStatus", header=m.header(ns), map_name="Town02", seed=7, time_s=k * 0.1,
        route_completion=k / 40, comfort=1.0, x_m=100.0 + k * 0.1 * SPEED, y_m=-100.0, speed_mps=SPEED,
        expert_x_m=expert["x"], expert_y_m=expert["y"], question=QUESTION, true_answer=TRUTH if k == 0 else "",
    )  # fmt: skip


def _boxes(m: Messages, ns: int, confidence: float) -> Any:
    corners = {"x1_px": 10.0, "y1_px": 20.0, "x2_px": 30.0, "y2_px": 40.0}
    box = m.make("wamdiff2/msg/Box2D", label="car", camera="cam_front", confidence=confidence, **corners)
    sizes = {"image_width": 64, "image_height": 64}
    return m.make("wamdiff2/msg/Boxes", header=m.header(ns), status=1, boxes=[box], **sizes)


def _image(m: Messages, ns: int, width: int, height: int, k: int) -> Any:
    picture = np.full((height, width, 3), (k * 5) % 256, np.uint8)
    data = cv2.imencode(".jpg", picture)[1].reshape(-1)
    return m.make("sensor_msgs/msg/CompressedImage", header=m.header(ns), format="jpeg", data=data)


def _odometry(m: Messages, ns: int, seconds: float) -> Any:
    point = m.make("geometry_msgs/msg/Point", x=100.0 + seconds * SPEED, y=-100.0)
    turn = m.make("geometry_msgs/msg/Quaternion", w=1.0)
    pose = m.make("geometry_msgs/msg/Pose", position=point, orientation=turn)
    twist = m.make("geometry_msgs/msg/Twist", linear=m.make("geometry_msgs/msg/Vector3", x=SPEED))
    return m.make(
        "nav_msgs/msg/Odometry", header=m.header(ns), child_frame_id="base_link",
        pose=m.make("geometry_msgs/msg/PoseWithCovariance", pose=pose),
        twist=m.make("geometry_msgs/msg/TwistWithCovariance", twist=twist),
    )  # fmt: skip


def _route(m: Messages, ns: int) -> Any:
    poses = []
    for x in range(100, 160):
        pose = m.make("geometry_msgs/msg/Pose", position=m.make("geometry_msgs/msg/Point", x=float(x), y=-100.0))
        poses.append(m.make("geometry_msgs/msg/PoseStamped", header=m.header(ns), pose=pose))
    return m.make("nav_msgs/msg/Path", header=m.header(ns), poses=poses)
