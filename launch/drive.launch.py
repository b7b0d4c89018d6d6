"""The driver on a vehicle's or simulator's topics: `ros2 launch wamdiff2 drive.launch.py checkpoint:=DIR`."""

from pathlib import Path

from launch import LaunchDescription
from launch.actions import OpaqueFunction

from wamdiff2_ros import graph
from wamdiff2_ros.beforehand import set_in
from wamdiff2_ros.launching import actions, argument, default_parameters, value
from wamdiff2_ros.settings_report import file_parameters


def start(context):
    file = Path(value(context, "params"))
    given = file_parameters(file, "/wamdiff2")  # an argument wins over the file, the file over what comes along
    named, read = value(context, "cameras"), set_in(file)
    cameras = named.split(",") if named else list(read.cameras)
    checkpoint = value(context, "checkpoint") or read.checkpoint or graph.default_checkpoint()
    parameters = {**given, "checkpoint": Path(checkpoint).resolve(), "cameras": cameras}
    if value(context, "kernels"):
        parameters["kernels"] = value(context, "kernels")
    if value(context, "autostart"):
        parameters["autostart"] = value(context, "autostart") == "true"
    prefix = value(context, "prefix")
    nodes = [graph.driver(prefix, cameras, parameters)]
    if value(context, "follow") == "true":
        nodes.append(graph.follower(prefix))
    return actions(nodes, file, Path(value(context, "out")))


def generate_launch_description():
    return LaunchDescription(
        [
            argument("checkpoint", "", "checkpoint folder; empty: the parameter file's, or the one that comes along"),
            argument("prefix", "/vehicle", "inputs are PREFIX/<camera>/image/compressed, PREFIX/odometry ..."),
            argument("kernels", "", "what decodes: auto, lean, engine, ...; empty: the parameter file's"),
            argument("cameras", "", "camera names, a,b,c in the checkpoint's order; empty: the parameter file's"),
            argument("autostart", "", "false: `ros2 lifecycle set` configures and activates; empty: as the file says"),
            argument("follow", "true", "also run the follower, which sends PREFIX/control"),
            argument("params", default_parameters("drive.yaml"), "ROS parameter file"),
            argument("out", "out/launch", "folder for the parameters as used"),
            OpaqueFunction(function=start),
        ]
    )
