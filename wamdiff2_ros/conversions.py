"""Pure functions between messages and the values of wamdiff2_core. No node, no clock, no state.

Every number that enters a float field goes through float(): numpy scalars are silently misread there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from builtin_interfaces.msg import Time
from geometry_msgs.msg import PoseStamped, Quaternion
from nav_msgs.msg import Odometry, Path
from std_msgs.msg import Header

from wamdiff2.msg import Answer as AnswerMsg
from wamdiff2.msg import Box2D, Boxes, Stats, Trajectory, TrajectoryPoint
from wamdiff2.msg import VehicleControl as VehicleControlMsg
from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import PLAN_STEP_S, Answer, Box, Cost, Detections, Failure, FailureKind, Plan
from wamdiff2_core.trajectory import Trajectory as SmoothTrajectory
from wamdiff2_ros.odometry import OdometrySample

Stamp: TypeAlias = float | Time  # seconds, or a Time that is passed on to the nanosecond

BASE_FRAME = "base_link"
MAP_FRAME = "map"
TEXT_LIMIT = 2000  # characters of a raw answer that a message carries

PLAN_STATUS: dict[FailureKind, int] = {
    FailureKind.EMPTY: Trajectory.STATUS_EMPTY,
    FailureKind.TRUNCATED: Trajectory.STATUS_TRUNCATED,
    FailureKind.INVALID: Trajectory.STATUS_INVALID,
    FailureKind.PARSE: Trajectory.STATUS_PARSE,
    FailureKind.RANGE: Trajectory.STATUS_RANGE,
    FailureKind.INPUT: Trajectory.STATUS_INPUT,
    FailureKind.CONTRADICTION: Trajectory.STATUS_CONTRADICTION,
}


def time_message(stamp: Stamp) -> Time:
    """A Time as it is; or that of seconds >= 0, to the nanosecond as far as a float resolves it (200 ns today)."""
    if isinstance(stamp, Time):
        return stamp
    nanoseconds = int(round(stamp * 1e9))
    if nanoseconds < 0:
        raise DataError(f"a stamp cannot be negative: {stamp} s")
    return Time(sec=nanoseconds // 1_000_000_000, nanosec=nanoseconds % 1_000_000_000)


def stamp_seconds(stamp: Any) -> float:
    """Seconds of a builtin_interfaces/Time."""
    return stamp.sec + stamp.nanosec * 1e-9


def later(stamp: Stamp, seconds: float) -> Time:
    """A stamp moved on by seconds >= 0, to the nanosecond."""
    start = time_message(stamp)
    nanoseconds = start.sec * 1_000_000_000 + start.nanosec + round(seconds * 1e9)
    return Time(sec=nanoseconds // 1_000_000_000, nanosec=nanoseconds % 1_000_000_000)


def header(stamp: Stamp, frame_id: str) -> Header:
    return Header(stamp=time_message(stamp), frame_id=frame_id)


def optical_frame(camera: str) -> str:
    """REP-103 optical frame of a camera: z forward, x right, y down."""
    return f"{camera}_optical_frame"


def yaw_of(q: Any) -> float:
    """Heading (rad, left positive) of a quaternion; DataError if it is not one."""
    norm = q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w
    if not math.isfinite(norm) or norm < 1e-6:
        raise DataError(f"({q.x}, {q.y}, {q.z}, {q.w}) is no quaternion")
    return math.atan2(2.0 * (q.w * q.z + q.x * q.y), norm - 2.0 * (q.y * q.y + q.z * q.z))


def quaternion(yaw: float) -> Quaternion:
    return Quaternion(x=0.0, y=0.0, z=math.sin(yaw / 2.0), w=math.cos(yaw / 2.0))


def odometry_sample(message: Odometry) -> OdometrySample:
    """Pose in header.frame_id, twist in child_frame_id (base_link), as nav_msgs says. DataError if not finite."""
    position, twist = message.pose.pose.position, message.twist.twist
    values = (position.x, position.y, twist.linear.x, twist.linear.y, twist.angular.z)
    if not all(math.isfinite(v) for v in values):
        raise DataError(f"odometry holds a value that is not finite: {values}")
    return OdometrySample(
        stamp_s=stamp_seconds(message.header.stamp),
        x=position.x,
        y=position.y,
        yaw=yaw_of(message.pose.pose.orientation),
        velocity=(twist.linear.x, twist.linear.y),
        yaw_rate=twist.angular.z,
    )


def odometry_message(sample: OdometrySample, z: float = 0.0) -> Odometry:
    message = Odometry(header=header(sample.stamp_s, MAP_FRAME), child_frame_id=BASE_FRAME)
    pose, twist = message.pose.pose, message.twist.twist
    pose.position.x, pose.position.y, pose.position.z = float(sample.x), float(sample.y), float(z)
    pose.orientation = quaternion(float(sample.yaw))
    twist.linear.x, twist.linear.y = float(sample.velocity[0]), float(sample.velocity[1])
    twist.angular.z = float(sample.yaw_rate)
    return message


def trajectory_message(
    plan: Plan,
    smooth: SmoothTrajectory,
    stamp: Stamp,
    instruction: str,
    contradictions: Sequence[str] = (),
    compensated_s: float = 0.0,
) -> Trajectory:
    """A valid plan for the images of `stamp`: its raw points, and the smooth trajectory made of them.

    `compensated_s`: the smooth trajectory was moved on by so many seconds, and is in base_link as it stood then.
    """
    return Trajectory(
        header=header(later(stamp, compensated_s), BASE_FRAME),
        images_stamp=time_message(stamp),
        points=trajectory_points(smooth),
        compensated_s=float(compensated_s),
        raw_x_m=[float(x) for x in plan.points[:, 0]],
        raw_y_m=[float(y) for y in plan.points[:, 1]],
        confidence=[float(c) for c in plan.confidence],
        status=Trajectory.STATUS_VALID,
        contradictions=list(contradictions),
        instruction=instruction,
        text=plan.text[:TEXT_LIMIT],
    )


def trajectory_points(smooth: SmoothTrajectory) -> list[TrajectoryPoint]:
    return [
        TrajectoryPoint(
            time_from_start_s=float(smooth.time_s[k]),
            x_m=float(smooth.x_m[k]),
            y_m=float(smooth.y_m[k]),
            heading_rad=float(smooth.heading_rad[k]),
            speed_mps=float(smooth.speed_mps[k]),
            acceleration_mps2=float(smooth.acceleration_mps2[k]),
            curvature_1pm=float(smooth.curvature_1pm[k]),
        )
        for k in range(len(smooth.time_s))
    ]


def failed_trajectory(
    failure: Failure, stamp: Stamp, instruction: str, contradictions: Sequence[str] = ()
) -> Trajectory:
    """No plan, and why: nothing that could be driven."""
    return Trajectory(
        header=header(stamp, BASE_FRAME),
        images_stamp=time_message(stamp),
        contradictions=list(contradictions),
        status=PLAN_STATUS[failure.kind],
        instruction=instruction,
        text=(failure.text or failure.message)[:TEXT_LIMIT],
    )


def raw_points(message: Trajectory) -> np.ndarray | None:
    """(N, 2) points of a valid trajectory message, 0.5 s apart; None if it holds no plan or the lengths disagree."""
    if message.status != Trajectory.STATUS_VALID or len(message.raw_x_m) != len(message.raw_y_m) or not message.raw_x_m:
        return None
    points = np.column_stack([message.raw_x_m, message.raw_y_m]).astype(float)
    return points if np.isfinite(points).all() else None


def path_message(points: np.ndarray, stamp: Stamp) -> Path:
    """nav_msgs/Path in base_link: the car itself, then the plan's points (N, 2), stamped with the time they are due."""
    corners = np.vstack([[0.0, 0.0], np.asarray(points, float)])
    headings = np.arctan2(np.diff(corners[:, 1]), np.diff(corners[:, 0]))
    path = Path(header=header(stamp, BASE_FRAME))
    start_s = stamp_seconds(path.header.stamp)
    for k, (x, y) in enumerate(corners):
        pose = PoseStamped(header=header(stamp if k == 0 else start_s + k * PLAN_STEP_S, BASE_FRAME))
        pose.pose.position.x, pose.pose.position.y = float(x), float(y)
        pose.pose.orientation = quaternion(float(headings[min(k, len(headings) - 1)]))
        path.poses.append(pose)
    return path


def empty_path(stamp: Stamp) -> Path:
    """A path without poses: viewers drop what they showed."""
    return Path(header=header(stamp, BASE_FRAME))


def boxes_message(found: Detections | Failure, stamp: Stamp, camera: str, width: int, height: int) -> Boxes:
    """Detections in pixels of the camera's image, or UNKNOWN: an empty list alone never says that nothing is there."""
    message = Boxes(header=header(stamp, optical_frame(camera)), image_width=int(width), image_height=int(height))
    if isinstance(found, Failure):
        message.status = Boxes.STATUS_UNKNOWN
        return message
    message.boxes = [_box2d(box, width, height) for box in found.boxes]
    message.status = Boxes.STATUS_FOUND if message.boxes else Boxes.STATUS_NOTHING_THERE
    return message


def boxes_of(message: Boxes) -> tuple[Box, ...]:
    """Boxes of a message in relative units 0-1000 of its image."""
    width, height = max(int(message.image_width), 1), max(int(message.image_height), 1)
    return tuple(
        Box(
            label=b.label,
            xyxy=(
                round(b.x1_px * 1000 / width),
                round(b.y1_px * 1000 / height),
                round(b.x2_px * 1000 / width),
                round(b.y2_px * 1000 / height),
            ),
            confidence=float(b.confidence),
            camera=b.camera,
        )
        for b in message.boxes
    )


def pixel_box(label: str, camera: str, xyxy: Sequence[float], confidence: float) -> Box2D:
    """A Box2D from pixel corners."""
    x1, y1, x2, y2 = (float(v) for v in xyxy)
    return Box2D(label=label, camera=camera, x1_px=x1, y1_px=y1, x2_px=x2, y2_px=y2, confidence=float(confidence))


def answer_message(answer: Answer | Failure, question: str, stamp: Stamp) -> AnswerMsg:
    message = AnswerMsg(header=header(stamp, BASE_FRAME), question=question)
    if isinstance(answer, Failure):
        message.status = AnswerMsg.STATUS_UNKNOWN
        message.text = answer.message[:TEXT_LIMIT]
        return message
    message.status = AnswerMsg.STATUS_VALID
    message.text = answer.text[:TEXT_LIMIT]
    message.confidence = float(answer.confidence)
    return message


def control_message(control: Any, stamp: Stamp) -> VehicleControlMsg:
    """Message of a core VehicleControl."""
    return VehicleControlMsg(
        header=header(stamp, BASE_FRAME),
        steer=float(control.steer),
        throttle=float(control.throttle),
        brake=float(control.brake),
        reverse=bool(control.reverse),
        hand_brake=bool(control.hand_brake),
    )


def fill_cost(message: Stats, costs: Iterable[Cost]) -> Stats:
    """What the answers of one scene took together: they are decoded in one batch, whose cost each of them states."""
    for cost in costs:
        message.forwards = max(message.forwards, int(cost.forwards))
        message.tokens += int(cost.tokens)
        message.vision_ms = max(message.vision_ms, float(cost.vision_ms))
        message.prefill_ms = max(message.prefill_ms, float(cost.prefill_ms))
        message.decode_ms = max(message.decode_ms, float(cost.decode_ms))
    return message


def fill_failures(message: Stats, counts: Mapping[FailureKind, int]) -> Stats:
    """Failure counters by kind into the fields failures_<kind>."""
    for kind in FailureKind:
        setattr(message, f"failures_{kind.value}", int(counts.get(kind, 0)))
    return message


def _box2d(box: Box, width: int, height: int) -> Box2D:
    return pixel_box(box.label, box.camera, box.pixels(width, height), box.confidence)
