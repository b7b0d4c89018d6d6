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
    transport = value(context, "transport")
    settings = {"checkpoint": checkpoint, "cameras": cameras, "image_transport": transport, "use_sim_time": True}
    if value(context, "kernels"):
        settings["kernels"] = value(context, "kernels")
    nodes = [graph.driver(prefix, cameras, settings)]
    if value(context, "record"):
        nodes.append(graph.recorder(Path(value(context, "record")).resolve()))
    # Inputs only: the recorded answers stay in the bag. The delay lets discovery and loading end first.
    inputs = [name for _, name in graph.inputs_from(prefix, cameras, transport)]
    # A vehicle's bag has no /clock: the player makes one of the times of recording.
    clock = ["--clock", "100", "--topics", *inputs]
    if value(context, "clock") == "recorded":
        clock = ["--topics", *inputs, "/clock"]
    play = ExecuteProcess(
        cmd=["ros2", "bag", "play", value(context, "bag"), "--delay", value(context, "delay"), *clock],
        output="screen",
    )
    stop = EmitEvent(event=Shutdown(reason="the bag has ended"))
    ended = RegisterEventHandler(OnProcessExit(target_action=play, on_exit=[stop]))
    return [*actions(nodes, Path(value(context, "params")), Path(value(context, "out"))), play, ended]


def generate_launch_description():
    return LaunchDescription(
        [
            argument("bag", "", "bag folder to play"),
            argument("checkpoint", "", "checkpoint folder; empty: the one that comes along"),
            argument("prefix", "/world", "prefix of the recorded inputs"),
            argument("cameras", "cam_front,cam_front_left,cam_front_right", "camera names, in the checkpoint's order"),
            argument("transport", "compressed", "of the recorded pictures: compressed or raw"),
            argument("clock", "recorded", "recorded: the bag holds /clock; play: the player makes one"),
            argument("delay", 15.0, "seconds before the bag starts"),
            argument("record", "", "folder for a new bag; empty: no recording"),
            argument("kernels", "", "what decodes: auto, lean, engine, ...; empty: the parameter file's"),
            argument("params", default_parameters("drive.yaml"), "ROS parameter file"),
            argument("out", "out/launch", "folder for the parameters as used"),
            OpaqueFunction(function=start),
        ]
    )
