"""Which nodes run together, with which parameters and connections: one source for launch files and supervisor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wamdiff2_core.controllers import FOLLOWER, WAYPOINT_PID
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.rig import load_rig


@dataclass(frozen=True)
class NodeSpec:
    """One node process. `executable` is a module of wamdiff2_ros and, installed, a script of the package.

    ends_run: when it ends with exit code 0, the run is over. parameters win over the parameter file's.
    module: another Python module to run instead of wamdiff2_ros.<executable>; the supervisor only.
    """

    name: str
    executable: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    remappings: Sequence[tuple[str, str]] = ()
    ends_run: bool = False
    module: str = ""


def share_folder(name: str) -> Path:
    """`config`, `launch` or `checkpoints` of this project: in the source tree, or in an installed share/wamdiff2."""
    here = Path(__file__).resolve()
    for parent in here.parents:
        for folder in (parent / name, parent / "share" / "wamdiff2" / name):
            if folder.is_dir() and (parent / "wamdiff2_ros" == here.parent or "share" in folder.parts):
                return folder
    raise ConfigError(f"folder {name!r} of wamdiff2 was not found above {here}")


def default_checkpoint() -> Path:
    """The checkpoint that comes with the project. ConfigError, with what to do, if there is none."""
    for folder in sorted(share_folder("checkpoints").glob("*")) if _exists("checkpoints") else ():
        if (folder / "config.json").is_file():
            return folder
    raise ConfigError("no checkpoint comes with this copy: name one with --checkpoint DIR")


def inputs_from(prefix: str, cameras: Sequence[str], transport: str = "compressed") -> list[tuple[str, str]]:
    """Remappings that connect the driver's inputs with topics below `prefix` (/world, /vehicle)."""
    end = "image/compressed" if transport == "compressed" else "image"
    images = [(f"~/input/{name}/{end}", f"{prefix}/{name}/{end}") for name in cameras]
    others = [(f"~/input/{name}", f"{prefix}/{name}") for name in ("odometry", "instruction", "question")]
    return images + others


def driver(prefix: str, cameras: Sequence[str], parameters: Mapping[str, Any]) -> NodeSpec:
    transport = str(parameters.get("image_transport", "compressed"))
    return NodeSpec("wamdiff2", "driver_node", parameters, inputs_from(prefix, cameras, transport))


def follower(prefix: str, parameters: Mapping[str, Any] | None = None) -> NodeSpec:
    connections = [
        ("~/input/trajectory", "/wamdiff2/output/trajectory"),
        ("~/input/odometry", f"{prefix}/odometry"),
        ("~/output/control", f"{prefix}/control"),
    ]
    return NodeSpec("follower", "follower_node", parameters or {}, connections)


def recorder(path: Path, parameters: Mapping[str, Any] | None = None) -> NodeSpec:
    return NodeSpec("recorder", "recorder_node", {"path": str(path), **(parameters or {})})


def demo(
    cameras: Sequence[str], world: Mapping[str, Any], driver_parameters: Mapping[str, Any], bag: Path | None
) -> list[NodeSpec]:
    """World, driver and follower in a loop; the recorder where a bag is wanted. In the order of starting."""
    nodes = [] if bag is None else [recorder(bag)]
    nodes += [follower("/world"), driver("/world", cameras, driver_parameters)]
    listeners = {"wait_for": [node.name for node in nodes]}
    nodes.append(NodeSpec("world", "world_node", {**listeners, **world}, ends_run=True))
    return nodes


def carla(
    bridge: Mapping[str, Any], driver_parameters: Mapping[str, Any], controller: str = FOLLOWER, bag: Path | None = None
) -> list[NodeSpec]:
    """A CARLA server's bridge, the driver on the rig's cameras, and the follower; the recorder where a bag is wanted.

    The waypoint PID steers as published: a share of the car's own full lock.
    """
    cameras = [camera.name for camera in load_rig(str(bridge["rig"]))]
    prefix = f"/carla/{bridge['role_name']}"
    unit = {"full_steer_rad": 0.0} if controller == WAYPOINT_PID else {}
    transport = {"image_transport": "raw"} if bridge.get("native") else {}
    nodes = [] if bag is None else [recorder(bag)]
    nodes.append(follower(prefix, {"controller": controller, **unit}))
    nodes.append(driver(prefix, cameras, {"cameras": cameras, **transport, **driver_parameters}))
    nodes.append(NodeSpec("carla_bridge", "carla_bridge_node", {**bridge, **unit}))
    return nodes


def _exists(name: str) -> bool:
    try:
        share_folder(name)
    except ConfigError:
        return False
    return True
