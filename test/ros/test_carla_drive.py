"""Bridge and follower around a junction on the stand-in server: routes in, the car's way out, both controllers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")
carla = pytest.importorskip("carla", reason="the carla wheel is an extra (Python 3.12 and older)")

from carla_harness import Bridge  # noqa: E402
from carla_stand_in import StandInServer  # noqa: E402
from geometry_msgs.msg import PoseStamped  # noqa: E402
from nav_msgs.msg import Odometry  # noqa: E402
from nav_msgs.msg import Path as PathMsg  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402

from wamdiff2.msg import Trajectory  # noqa: E402
from wamdiff2_core.scene import Plan  # noqa: E402
from wamdiff2_core.trajectory import smooth_trajectory  # noqa: E402
from wamdiff2_ros import conversions as cv  # noqa: E402
from wamdiff2_ros import graph  # noqa: E402
from wamdiff2_ros.follower_node import FollowerNode  # noqa: E402
from wamdiff2_ros.qos import LATCHED, OUTPUT, SENSOR_IN  # noqa: E402
from wamdiff2_sim.roads.route import Route  # noqa: E402

SPEED_MPS = 6.0


class Drive:
    """The launch file's graph without the model: the route itself is the plan, eight points at `SPEED_MPS`."""

    def __init__(self, server: StandInServer, folder: Path, controller: str, **parameters: object) -> None:
        near = carla.Transform(carla.Location(1.75, 35.0, 0.0), carla.Rotation(yaw=-90.0))
        server.spawn_points = [near]  # 25 m before the junction
        rig = folder / "rig.yaml"
        unit = {"full_steer_rad": 0.0} if controller == "waypoint_pid" else {}
        self.bridge = bridge = Bridge(server, folder, control_wait_s=20.0, **unit, **parameters)
        nodes = graph.carla({"role_name": "hero", "rig": rig}, {}, controller)
        (spec,) = (node for node in nodes if node.executable == "follower_node")
        arguments = [word for pair in spec.remappings for word in ("-r", f"{pair[0]}:={pair[1]}")]
        overrides = [Parameter(name, value=value) for name, value in spec.parameters.items()]
        overrides += [Parameter("on_odometry", value=True), Parameter("max_odometry_age_s", value=5.0)]
        self.follower = FollowerNode(
            context=bridge.context, parameter_overrides=overrides, cli_args=["--ros-args", *arguments]
        )
        bridge.executor.add_node(self.follower)
        self.route: Route | None = None
        self.routes = 0
        self.worst_m = self.progress_m = 0.0
        self.plans = bridge.probe.create_publisher(Trajectory, "/wamdiff2/output/trajectory", OUTPUT)
        bridge.listen("waypoints", PathMsg, LATCHED, then=self._route_arrived)
        bridge.probe.create_subscription(Odometry, "/carla/hero/odometry", self._plan, SENSOR_IN)  # the newest
        bridge.spin_until(lambda: self.plans.get_subscription_count() and self.route is not None)

    def close(self) -> None:
        self.bridge.executor.remove_node(self.follower)
        self.follower.destroy_node()
        self.bridge.close()

    @property
    def arrived(self) -> bool:
        return self.route is not None and self.progress_m > self.route.length - 8.0

    def _route_arrived(self, message: PathMsg) -> None:
        points = np.array([(pose.pose.position.x, pose.pose.position.y) for pose in message.poses])
        self.route, self.progress_m, self.worst_m = Route.from_points(points), 0.0, 0.0
        self.routes += 1

    def _plan(self, message: Odometry) -> None:
        if self.route is None:
            return
        now = cv.odometry_sample(message)
        self.progress_m, lateral = self.route.project(np.array([now.x, now.y]), self.progress_m)
        self.worst_m = max(self.worst_m, abs(lateral))
        ahead = self.route.points_at(self.progress_m + SPEED_MPS * 0.5 * np.arange(1, 9))[:, :2] - (now.x, now.y)
        c, s = math.cos(now.yaw), math.sin(now.yaw)
        points = ahead @ np.array([[c, -s], [s, c]])
        smooth = smooth_trajectory(points, max(now.velocity[0], 0.0))
        self.plans.publish(cv.trajectory_message(Plan(points, np.ones(8)), smooth, message.header.stamp, ""))


@pytest.fixture
def drives() -> Iterator[list[Drive]]:
    made: list[Drive] = []
    yield made
    for one in made:
        one.close()


@pytest.mark.parametrize(
    "controller, goal, side",
    [("follower", "-45,-1.75", 1), ("follower", "45,1.75", -1), ("waypoint_pid", "-45,-1.75", 1)],
)
def test_turns_are_driven_to_the_side_where_they_lead(
    drives: list[Drive], tmp_path: Path, controller: str, goal: str, side: int
) -> None:
    server = StandInServer()
    drive = Drive(server, tmp_path, controller, goal=goal)
    drives.append(drive)
    drive.bridge.spin_until(lambda: drive.arrived, "the end of the route")
    ego = drive.bridge.ego
    assert math.copysign(1.0, -ego.x) == side  # CARLA: west is left of a car that drove north
    most = max(abs(control.steer) for control in ego.controls)
    assert most == max(-side * control.steer for control in ego.controls)  # the strongest steering is that of the turn
    assert drive.worst_m < (1.0 if controller == "follower" else 3.0)


def test_a_new_goal_is_a_new_route(drives: list[Drive], tmp_path: Path) -> None:
    server = StandInServer()
    drive = Drive(server, tmp_path, "follower", goal="-45,-1.75")
    drives.append(drive)
    drive.bridge.spin_until(lambda: drive.progress_m > 5.0)
    goals = drive.bridge.probe.create_publisher(PoseStamped, "/carla/hero/goal_pose", OUTPUT)
    drive.bridge.spin_until(lambda: goals.get_subscription_count())
    goal = PoseStamped()
    goal.pose.position.x, goal.pose.position.y = 45.0, -1.75  # the ROS map frame: CARLA's (45, 1.75), to the right
    goals.publish(goal)
    drive.bridge.spin_until(lambda: drive.routes == 2)
    assert drive.route is not None and drive.route.points[-1][0] > 30.0
    drive.bridge.spin_until(lambda: drive.arrived, "the end of the route")
    assert drive.bridge.ego.x > 30.0
