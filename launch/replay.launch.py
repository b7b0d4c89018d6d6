"""A recorded drive through the driver again: `ros2 launch wamdiff2 replay.launch.py bag:=DIR`; nothing is driven."""

from pathlib import Path

from launch import LaunchDescription
from launch.actions import EmitEvent, ExecuteProcess, OpaqueFunction, RegisterEventHandler
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown

from wamdiff2_ros import graph
from wamdiff2_ros.launching import actions, argument, default_parameters, value


def start(context):
    cameras = value(context, "cameras").split(",")
    prefix = value(context, "prefix")
    checkpoint = Path(value(context, "checkpoint") or graph.default_checkpoint()).resolve()
    nodes = [graph.driver(prefix, cameras, {"checkpoint": checkpoint, "cameras": cameras, "use_sim_time": True})]
    if value(context, "record"):
        nodes.append(graph.recorder(Path(value(context, "record")).resolve()))
    # Inputs only: the recorded answers stay in the bag. The delay lets discovery and loading end first.
    inputs = [f"{prefix}/{name}/image/compressed" for name in cameras]
    inputs += [f"{prefix}/{name}" for name in ("odometry", "instruction", "question")] + ["/clock"]
    play = ExecuteProcess(
        cmd=["ros2", "bag", "play", value(context, "bag"), "--delay", value(context, "delay"), "--topics", *inputs],
        output="screen",
    )
    stop = EmitEvent(event=Shutdown(reason="the bag has ended"))
    ended = RegisterEventHandler(OnProcessExit(target_action=play, on_exit=[stop]))
    return [*actions(nodes, Path(value(context, "params")), Path(value(context, "out"))), play, ended]


def generate_launch_description():
    return LaunchDescription([
        argument("bag", "", "bag folder to play"),
        argument("checkpoint", "", "checkpoint folder; empty: the one that comes along"),
        argument("prefix", "/world", "prefix of the recorded inputs"),
        argument("cameras", "cam_front,cam_front_left,cam_front_right", "camera names, in the checkpoint's order"),
        argument("delay", 15.0, "seconds before the bag starts"),
        argument("record", "", "folder for a new bag; empty: no recording"),
        argument("params", default_parameters("drive.yaml"), "ROS parameter file"),
        argument("out", "out/launch", "folder for the parameters as used"),
        OpaqueFunction(function=start),
    ])
