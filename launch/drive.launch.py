"""The driver on a vehicle's or simulator's topics: `ros2 launch wamdiff2 drive.launch.py checkpoint:=DIR`."""

from pathlib import Path

from launch import LaunchDescription
from launch.actions import OpaqueFunction

from wamdiff2_ros import graph
from wamdiff2_ros.launching import actions, argument, default_parameters, value


def start(context):
    cameras = value(context, "cameras").split(",")
    checkpoint = Path(value(context, "checkpoint") or graph.default_checkpoint()).resolve()
    prefix = value(context, "prefix")
    nodes = [graph.driver(prefix, cameras, {"checkpoint": checkpoint, "cameras": cameras})]
    if value(context, "follow") == "true":
        nodes.append(graph.follower(prefix))
    return actions(nodes, Path(value(context, "params")), Path(value(context, "out")))


def generate_launch_description():
    return LaunchDescription([
        argument("checkpoint", "", "checkpoint folder; empty: the one that comes along"),
        argument("prefix", "/vehicle", "inputs are PREFIX/<camera>/image/compressed, PREFIX/odometry ..."),
        argument("cameras", "cam_front,cam_front_left,cam_front_right", "camera names, in the checkpoint's order"),
        argument("follow", "true", "also run the follower, which sends PREFIX/control"),
        argument("params", default_parameters("drive.yaml"), "ROS parameter file"),
        argument("out", "out/launch", "folder for the parameters as used"),
        OpaqueFunction(function=start),
    ])
