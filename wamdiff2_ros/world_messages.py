"""Messages of the embedded world: pure functions of its state."""

from __future__ import annotations

from typing import Any

from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Path
from sensor_msgs.msg import CameraInfo
from std_msgs.msg import Header

from wamdiff2.msg import Boxes, DriveStatus
from wamdiff2_core.scene import Camera
from wamdiff2_ros import conversions as cv
from wamdiff2_ros.odometry import OdometrySample
from wamdiff2_sim.types import GtBox, WorldState
from wamdiff2_sim.world import World


def odometry_sample(state: WorldState, stamp_s: float) -> OdometrySample:
    """Where the ego is, and how it moves in its own frame."""
    return OdometrySample(
        stamp_s=stamp_s,
        x=state.ego.x,
        y=state.ego.y,
        yaw=state.ego.yaw,
        velocity=(state.speed, 0.0),
        yaw_rate=state.yaw_rate,
    )


def camera_info(camera: Camera, header: Header) -> CameraInfo:
    """Pinhole without distortion, principal point in the middle."""
    f, cx, cy = float(camera.focal_px), camera.width / 2.0, camera.height / 2.0
    return CameraInfo(
        header=header,
        width=int(camera.width),
        height=int(camera.height),
        distortion_model="plumb_bob",
        d=[0.0] * 5,
        k=[f, 0.0, cx, 0.0, f, cy, 0.0, 0.0, 1.0],
        r=[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        p=[f, 0.0, cx, 0.0, 0.0, f, cy, 0.0, 0.0, 0.0, 1.0, 0.0],
    )


def truth_message(boxes: list[GtBox], stamp_s: float, camera: Camera) -> Boxes:
    """True boxes of one camera; confidence is the visible fraction."""
    message = Boxes(
        header=cv.header(stamp_s, cv.optical_frame(camera.name)),
        image_width=int(camera.width),
        image_height=int(camera.height),
        boxes=[cv.pixel_box(b.label, camera.name, b.xyxy, b.visible) for b in boxes],
    )
    message.status = Boxes.STATUS_FOUND if message.boxes else Boxes.STATUS_NOTHING_THERE
    return message


def route_message(world: World, stamp_s: float) -> Path:
    """The whole route in the map frame, a pose each metre."""
    path = Path(header=cv.header(stamp_s, cv.MAP_FRAME))
    for x, y in world.route.points[:, :2]:
        pose = PoseStamped(header=path.header)
        pose.pose.position.x, pose.pose.position.y = float(x), float(y)
        path.poses.append(pose)
    return path


def status_message(world: World, stamp_s: float) -> DriveStatus:
    """Score and pose, with the expert's plan from here."""
    state, score = world.state, world.score
    expert: Any = world.expert_plan()
    return DriveStatus(
        header=cv.header(stamp_s, cv.MAP_FRAME),
        time_s=float(state.time),
        distance_m=float(score.distance),
        route_completion=float(score.route_completion),
        collisions=int(score.collisions),
        red_lights=int(score.red_lights),
        off_road_s=float(score.off_road_s),
        comfort=float(score.comfort),
        x_m=float(state.ego.x),
        y_m=float(state.ego.y),
        yaw_rad=float(state.ego.yaw),
        speed_mps=float(state.speed),
        expert_x_m=[float(x) for x in expert[:, 0]],
        expert_y_m=[float(y) for y in expert[:, 1]],
    )
