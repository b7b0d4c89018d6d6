"""Bridge, driver and follower on a running CARLA server: `ros2 launch wamdiff2 carla.launch.py town:=Town10HD`."""

from pathlib import Path

from launch import LaunchDescription
from launch.actions import OpaqueFunction

from wamdiff2_ros import graph
from wamdiff2_ros.launching import actions, argument, default_parameters, value


def start(context):
    bridge = {name: value(context, name) for name in ("host", "town", "role_name", "spawn", "goal", "tick_owner")}
    bridge |= {"port": int(value(context, "port")), "seed": int(value(context, "seed"))}
    bridge |= {"rig": Path(value(context, "rig")).resolve(), "native": value(context, "native") == "true"}
    checkpoint = Path(value(context, "checkpoint") or graph.default_checkpoint()).resolve()
    driver = {"checkpoint": checkpoint, "block_size": int(value(context, "block_size"))}
    if value(context, "kernels"):
        driver["kernels"] = value(context, "kernels")
    bag = Path(value(context, "bag")).resolve() if value(context, "bag") else None
    nodes = graph.carla(bridge, driver, value(context, "controller"), bag)
    return actions(nodes, Path(value(context, "params")), Path(value(context, "out")))


def generate_launch_description():
    return LaunchDescription(
        [
            argument("host", "127.0.0.1", "where the CARLA server is"),
            argument("port", 2000, "its port"),
            argument("town", "", "town to load, e.g. Town10HD; empty: the one that is there"),
            argument("role_name", "hero", "of the car; topics are below /carla/ROLE_NAME"),
            argument("rig", graph.share_folder("config") / "carla_three.yaml", "file with the car and its cameras"),
            argument("spawn", "random", "random, an index of the map's spawn points, x,y,z,yaw or attach"),
            argument("goal", "", "x,y in CARLA's metres; empty: a random route"),
            argument("seed", 0, "of random places and routes"),
            argument("tick_owner", "bridge", "bridge: synchronous, we tick; other: somebody else does, or nobody"),
            argument("native", "false", "true: the server (started with --ros2) publishes clock and sensors itself"),
            argument("controller", "follower", "follower or waypoint_pid"),
            argument("checkpoint", "", "checkpoint folder; empty: the one that comes along"),
            argument("block_size", 32, "tokens decoded together"),
            argument("kernels", "", "what decodes: auto, lean, engine, ...; empty: the parameter file's"),
            argument("params", default_parameters("carla.yaml"), "ROS parameter file"),
            argument("out", "out/launch", "folder for the parameters as used"),
            argument("bag", "", "folder for the bag; empty: no recording"),
            OpaqueFunction(function=start),
        ]
    )
