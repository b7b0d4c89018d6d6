"""The embedded world, the driver and the follower in a loop, recorded: `ros2 launch wamdiff2 demo.launch.py`."""

from pathlib import Path

from launch import LaunchDescription
from launch.actions import OpaqueFunction

from wamdiff2_core.rig import load_rig
from wamdiff2_ros import graph
from wamdiff2_ros.launching import actions, argument, default_parameters, value


def start(context):
    rig = Path(value(context, "rig")).resolve()
    cameras = [camera.name for camera in load_rig(rig)]
    checkpoint = Path(value(context, "checkpoint") or graph.default_checkpoint()).resolve()
    world = {"map": value(context, "map"), "seed": int(value(context, "seed")), "rig": rig}
    world["seconds"] = float(value(context, "seconds"))
    driver = {"checkpoint": checkpoint, "rig": rig, "cameras": cameras, "block_size": int(value(context, "block_size"))}
    if value(context, "kernels"):
        driver["kernels"] = value(context, "kernels")
    bag = Path(value(context, "bag")).resolve() if value(context, "bag") else None
    nodes = graph.demo(cameras, world, driver, bag)
    return actions(nodes, Path(value(context, "params")), Path(value(context, "out")))


def generate_launch_description():
    return LaunchDescription(
        [
            argument("checkpoint", "", "checkpoint folder; empty: the one that comes along"),
            argument("map", "Town10HD", "Town01 and the like, or procedural:SEED"),
            argument("seed", 0, "route, traffic and weather"),
            argument("seconds", 60.0, "simulated seconds to drive; 0: until the route ends"),
            argument("block_size", 32, "tokens decoded together"),
            argument("kernels", "", "what decodes: auto, lean, engine, ...; empty: the parameter file's"),
            argument("rig", graph.share_folder("config") / "rig_three.yaml", "camera rig file"),
            argument("params", default_parameters("demo.yaml"), "ROS parameter file"),
            argument("out", "out/launch", "folder for the parameters as used"),
            argument("bag", "", "folder for the bag; empty: no recording"),
            OpaqueFunction(function=start),
        ]
    )
