"""The agent against modules that stand in for the devkit: same names, same calls."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from wamdiff2_core.errors import CheckpointError, ConfigError, DataError
from wamdiff2_core.evaluate.navsim import devkit
from wamdiff2_core.scene import Failure, FailureKind, Plan

PICTURES = ("cam_f0", "cam_l0", "cam_l1", "cam_l2", "cam_r0", "cam_r1", "cam_r2", "cam_b0")


@dataclass
class TrajectorySampling:
    num_poses: int
    interval_length: float


@dataclass
class Trajectory:
    poses: np.ndarray
    trajectory_sampling: TrajectorySampling

    def __post_init__(self) -> None:
        assert self.poses.shape == (self.trajectory_sampling.num_poses, 3)


class SensorConfig:
    def __init__(self, **sensors: object) -> None:
        assert set(sensors) == {*PICTURES, "lidar_pc"}
        self.sensors = sensors


class AbstractAgent:
    def __init__(self, trajectory_sampling: TrajectorySampling, requires_scene: bool = False) -> None:
        self._trajectory_sampling = trajectory_sampling


@pytest.fixture
def fake_devkit(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {
        "navsim.agents.abstract_agent": {"AbstractAgent": AbstractAgent},
        "navsim.common.dataclasses": {"SensorConfig": SensorConfig, "Trajectory": Trajectory},
        "nuplan.planning.simulation.trajectory.trajectory_sampling": {"TrajectorySampling": TrajectorySampling},
    }
    for name, values in contents.items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
        module = types.ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)


def agent_input(command=(0, 1, 0, 0), velocity=(5.0, 0.1), loaded=PICTURES) -> types.SimpleNamespace:
    """Four frames; only the newest has pictures."""

    def frame(now: bool) -> types.SimpleNamespace:
        image = np.full((108, 192, 3), 90, dtype=np.uint8)
        have = {name: types.SimpleNamespace(image=image if now and name in loaded else None) for name in PICTURES}
        return types.SimpleNamespace(**have)

    status = types.SimpleNamespace(
        ego_velocity=np.array(velocity, np.float32),
        ego_acceleration=np.array([0.2, 0.0], np.float32),
        driving_command=np.array(command),
    )
    return types.SimpleNamespace(ego_statuses=[status] * 4, cameras=[frame(k == 3) for k in range(4)])


def test_the_agent_plans_or_says_that_there_is_no_plan(fake_devkit, micro: Path) -> None:
    agent = devkit.agent(micro)
    agent.initialize()
    assert isinstance(agent, AbstractAgent) and micro.name in agent.name()
    wanted = agent.get_sensor_config().sensors
    assert wanted["cam_f0"] == [3] and wanted["lidar_pc"] is False
    try:
        trajectory = agent.compute_trajectory(agent_input())
    except DataError as error:  # random weights may write no plan
        assert str(error).startswith("no plan: ")
    else:
        assert trajectory.poses.shape == (8, 3) and np.isfinite(trajectory.poses).all()


def test_the_agents_kernels_are_its_drivers(fake_devkit, micro: Path) -> None:
    agent = devkit.agent(micro, kernels="torch")
    agent.initialize()
    assert agent._driver.kernels == "engine torch"
    with pytest.raises(ConfigError, match="kernels triton: expected a CUDA device"):
        devkit.agent(micro, kernels="triton").initialize()


def test_a_scene_is_the_newest_frame() -> None:
    scene = devkit.scene_of(agent_input(command=(1, 0, 0, 0)), ("cam_front", "cam_front_left"))
    assert list(scene.images) == ["cam_front", "cam_front_left"] and scene.images["cam_front"].shape == (108, 192, 3)
    assert scene.instruction == "turn left in 20 m"
    assert scene.ego.velocity == pytest.approx((5.0, 0.1)) and scene.ego.acceleration == pytest.approx((0.2, 0.0))
    said = [devkit.scene_of(agent_input(tuple(row)), ("cam_front",)).instruction for row in np.eye(4, dtype=int)[1:]]
    assert said == ["go straight in 20 m", "turn right in 20 m", "follow the road"]


def test_poses_follow_the_plan() -> None:
    points = np.stack([3.0 * np.arange(1, 9), 0.05 * np.arange(1, 9) ** 2], axis=1)
    poses = devkit.poses_of(Plan(points, np.ones(8)), 6.0)
    assert poses.dtype == np.float32
    np.testing.assert_allclose(poses[:, :2], points, atol=0.2)
    assert poses[-1, 2] == pytest.approx(np.arctan2(0.75, 3.0), abs=0.08)


@pytest.mark.parametrize(
    "given, message",
    [
        (agent_input(loaded=("cam_l0",)), "no picture of cam_front"),
        (agent_input(velocity=(float("nan"), 0.0)), "finite velocity"),
        (agent_input(command=(0, 0, 0, 0)), "one-hot"),
        (agent_input(command=(1, 1, 0, 0)), "one-hot"),
        (agent_input(command=(1, 0, 0)), "one-hot"),
    ],
)
def test_broken_input_is_named(given, message) -> None:
    with pytest.raises(DataError, match=message):
        devkit.scene_of(given, ("cam_front",))


def test_failures_and_unknown_cameras_are_named() -> None:
    with pytest.raises(DataError, match="no plan: parse: a word"):
        devkit.poses_of(Failure(FailureKind.PARSE, "a word"), 1.0)
    with pytest.raises(CheckpointError, match="got cam_roof"):
        devkit.sensors(("cam_front", "cam_roof"))
