"""Our driver as an agent of the official NAVSIM devkit. The devkit is imported inside `agent` only.

In a Hydra file of the devkit: `_target_: wamdiff2_core.evaluate.navsim.devkit.agent`, `checkpoint: FOLDER`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wamdiff2_core.errors import CheckpointError, DataError
from wamdiff2_core.evaluate.navsim.vehicle import PLAN_POSES, PLAN_STEP_S, STEP_S
from wamdiff2_core.scene import Command, EgoState, Failure, Plan, Scene
from wamdiff2_core.tasks.navigation import navigation_text
from wamdiff2_core.trajectory import smooth_trajectory

# Our camera names and NAVSIM's. The pictures differ from our rigs in lens and pose.
CAMERAS = {
    "cam_front": "cam_f0", "cam_front_left": "cam_l0", "cam_front_right": "cam_r0", "cam_left": "cam_l1",
    "cam_right": "cam_r1", "cam_back_left": "cam_l2", "cam_back_right": "cam_r2", "cam_back": "cam_b0",
}  # fmt: skip
COMMANDS = (Command.LEFT, Command.STRAIGHT, Command.RIGHT, Command.FOLLOW)  # the devkit's one-hot, the last: unknown
SAID_M = 20.0  # NAVSIM tells no distance to the manoeuvre
HISTORY = 4  # frames of an agent's input; the last is now


def agent(
    checkpoint: str | Path, device: str = "cpu", dtype: str = "float32", said_m: float = SAID_M, kernels: str = "auto"
) -> Any:
    """An `AbstractAgent` that plans with a checkpoint. CheckpointError if it needs a camera that NAVSIM has not.

    kernels: what decodes, see `pick.WORDS`; `initialize` raises ConfigError for those that cannot run there.

    A scene without a valid plan raises DataError, which the devkit counts as a failed token.
    """
    from navsim.agents.abstract_agent import AbstractAgent
    from navsim.common.dataclasses import SensorConfig, Trajectory
    from nuplan.planning.simulation.trajectory.trajectory_sampling import TrajectorySampling

    class Wamdiff2Agent(AbstractAgent):
        """Loads the checkpoint in `initialize`, in the process that plans."""

        requires_scene = False

        def __init__(self) -> None:
            self._sampling = TrajectorySampling(num_poses=PLAN_POSES, interval_length=PLAN_STEP_S)
            super().__init__(self._sampling)
            self._driver: Any = None

        def name(self) -> str:
            return f"wamdiff2 {Path(checkpoint).name}"

        def initialize(self) -> None:
            from wamdiff2_core.driver import Driver
            from wamdiff2_core.expected import Expected

            driver = Driver.from_checkpoint(checkpoint, device=device, dtype=dtype, kernels=kernels)
            sensors(driver.cameras)
            driver.get_ready(Expected(("plan",), block_sizes=(driver.decoding.block_size,)))  # nothing captures later
            self._driver = driver

        def get_sensor_config(self) -> Any:
            if self._driver is None:
                self.initialize()
            return SensorConfig(**sensors(self._driver.cameras))

        def compute_trajectory(self, agent_input: Any) -> Any:
            scene = scene_of(agent_input, self._driver.cameras, said_m)
            return Trajectory(poses_of(self._driver.plan(scene), scene.ego.speed), self._sampling)

    return Wamdiff2Agent()


def sensors(cameras: Sequence[str]) -> dict[str, bool | list[int]]:
    """What the devkit has to load: the newest picture of each camera, no lidar."""
    unknown = [name for name in cameras if name not in CAMERAS]
    if unknown:
        raise CheckpointError(f"checkpoint: expected cameras of {', '.join(CAMERAS)}; got {', '.join(unknown)}")
    wanted = {CAMERAS[name] for name in cameras}
    loaded: dict[str, bool | list[int]] = {
        name: [HISTORY - 1] if name in wanted else False for name in CAMERAS.values()
    }
    return {**loaded, "lidar_pc": False}


def scene_of(agent_input: Any, cameras: Sequence[str], said_m: float = SAID_M) -> Scene:
    """The newest frame of an `AgentInput` as our scene. DataError on a missing picture, NaN, or no one-hot command."""
    ego, pictures = agent_input.ego_statuses[-1], agent_input.cameras[-1]
    images = {name: getattr(pictures, CAMERAS[name]).image for name in cameras}
    missing = [name for name, image in images.items() if image is None]
    if missing:
        raise DataError(f"agent input: no picture of {', '.join(missing)}")
    motion = np.asarray([ego.ego_velocity, ego.ego_acceleration], dtype=float)
    if motion.shape != (2, 2) or not np.isfinite(motion).all():
        raise DataError(f"agent input: expected finite velocity and acceleration of two values, got {motion.tolist()}")
    command = np.asarray(ego.driving_command, dtype=int)
    if command.shape != (len(COMMANDS),) or sorted(command.tolist()) != [0, 0, 0, 1]:
        raise DataError(f"agent input: expected a one-hot driving command of 4, got {command.tolist()}")
    (vx, vy), (ax, ay) = motion.tolist()
    return Scene(
        images={name: np.ascontiguousarray(image) for name, image in images.items()},
        instruction=navigation_text(COMMANDS[int(command.argmax())], said_m),
        ego=EgoState((vx, vy), (ax, ay)),
    )


def poses_of(plan: Plan | Failure, speed_mps: float) -> np.ndarray:
    """Poses (8, 3) float32 of a plan on its smooth trajectory, as our node drives it. DataError for a failure."""
    if isinstance(plan, Failure):
        raise DataError(f"no plan: {plan.kind.value}: {plan.message}")
    smooth = smooth_trajectory(plan.points, speed_mps)
    poses = np.column_stack([smooth.x_m, smooth.y_m, smooth.heading_rad])
    every = round(PLAN_STEP_S / STEP_S)
    return poses[every::every].astype(np.float32)
