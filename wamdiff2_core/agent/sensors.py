"""The sensors that the agent asks the leaderboard for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wamdiff2_core.carla_frames import ros_to_carla_pose
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.scene import Camera

GNSS, IMU, SPEED = "GPS", "IMU", "SPEED"
TICK_HZ = 20
MOST_CAMERAS = 8
MOST_REACH_M = 3.0  # from the vehicle's middle; a run for pictures (SAVE_PATH at import) allows more


def sensor_list(cameras: Sequence[Camera], base_link_x_m: float) -> list[dict[str, Any]]:
    """Cameras, GNSS, IMU and speedometer as the leaderboard takes them: metres and degrees in the vehicle's frame.

    Camera ids are the rig's names. ConfigError for a rig that the leaderboard would reject.
    """
    if len(cameras) > MOST_CAMERAS:
        raise ConfigError(f"rig: at most {MOST_CAMERAS} cameras are allowed, got {len(cameras)}")
    made = [_camera(camera, base_link_x_m) for camera in cameras]
    place = {"x": base_link_x_m, "y": 0.0, "z": 0.0, "roll": 0.0, "pitch": 0.0, "yaw": 0.0}
    made.append({"type": "sensor.other.imu", **place, "sensor_tick": 1.0 / TICK_HZ, "id": IMU})
    made.append({"type": "sensor.other.gnss", **place, "sensor_tick": 0.01, "id": GNSS})
    made.append({"type": "sensor.speedometer", "reading_frequency": TICK_HZ, "id": SPEED})
    return made


def _camera(camera: Camera, base_link_x_m: float) -> dict[str, Any]:
    x, y, z = camera.position
    (cx, cy, cz), rotation = ros_to_carla_pose((x + base_link_x_m, y, z), (0.0, camera.pitch, camera.yaw))
    reach = (cx * cx + cy * cy + cz * cz) ** 0.5
    if reach > MOST_REACH_M:
        raise ConfigError(
            f"rig: {camera.name} is {reach:.2f} m from the vehicle's middle, allowed are {MOST_REACH_M:.0f} m"
        )
    return {
        "type": "sensor.camera.rgb", "x": cx, "y": cy, "z": cz, "roll": rotation.roll, "pitch": rotation.pitch,
        "yaw": rotation.yaw, "width": camera.width, "height": camera.height, "fov": camera.fov_deg, "id": camera.name,
    }  # fmt: skip
