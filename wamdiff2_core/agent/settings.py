"""The agent's settings file, and the string that the leaderboard hands to `setup`."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from wamdiff2_core.controllers import CONTROLLERS, FOLLOWER
from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.errors import ConfigError

MODES = ("in_process", "ros")
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class AgentSettings:
    """config/bench2drive_agent.yaml explains the entries. Paths that are not absolute count from this repository."""

    checkpoint: str = "checkpoints/tiny"
    mode: str = "in_process"
    device: str = "cpu"
    dtype: str = "float32"
    kernels: str = "auto"
    block_size: int = 32
    steps: int = 3
    threshold: float = 0.6
    rule: str = "ordered"
    rig: str = "config/rig_three.yaml"
    base_link_x_m: float = -1.4  # base_link in the CARLA actor's frame
    controller: str = FOLLOWER
    full_steer_deg: float = 70.0  # wheel angle of steer 1; 0: steer as published (waypoint PID only)
    plan_period_s: float = 0.25
    latency_s: float | None = 0.0  # None ("measured" in the file): as long as the plan took
    max_plan_age_s: float = 1.0
    jpeg_quality: int = 20
    ros_prefix: str = "/bench2drive"
    ros_wait_s: float = 20.0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"agent settings: mode: expected one of {', '.join(MODES)}, got {self.mode!r}")
        if self.controller not in CONTROLLERS:
            raise ConfigError(
                f"agent settings: controller: expected one of {', '.join(CONTROLLERS)}, got {self.controller!r}"
            )
        if not 1 <= self.jpeg_quality <= 100:
            raise ConfigError(f"agent settings: jpeg_quality: expected 1..100, got {self.jpeg_quality}")
        if not 0.0 < self.plan_period_s <= self.max_plan_age_s:
            raise ConfigError(
                "agent settings: expected 0 < plan_period_s <= max_plan_age_s, "
                f"got {self.plan_period_s} and {self.max_plan_age_s}"
            )
        if self.latency_s is not None and not 0.0 <= self.latency_s < math.inf:
            raise ConfigError(f"agent settings: latency_s: expected a number >= 0 or measured, got {self.latency_s}")
        self.decoding()  # says what is wrong with its part

    @property
    def checkpoint_folder(self) -> Path:
        return ROOT / self.checkpoint

    @property
    def rig_file(self) -> Path:
        return ROOT / self.rig

    def decoding(self) -> DecodingConfig:
        """How answers are decoded. ConfigError when the numbers do not fit together."""
        steps = min(self.steps, self.block_size)
        return DecodingConfig(block_size=self.block_size, steps=steps, threshold=self.threshold, rule=self.rule)


def split_config(text: str) -> tuple[str, str]:
    """(settings file, save name) of what `setup` is given: the leaderboard appends '+NAME' anew with every route."""
    parts = text.split("+")
    return parts[0], parts[-1] if len(parts) > 1 else ""


def load_settings(file: Path | str) -> AgentSettings:
    """Read a settings file; "" or "none": all defaults. ConfigError names the file and the entry."""
    if str(file) in ("", "none"):
        return AgentSettings()
    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: expected a YAML file of agent settings, got {error}") from error
    known = {item.name: item.default for item in fields(AgentSettings)}
    if not isinstance(content, dict) or not content.keys() <= known.keys():
        raise ConfigError(f"{file}: expected entries among {', '.join(known)}; got {content!r}")
    return AgentSettings(**{name: _value(name, value, known[name], file) for name, value in content.items()})


def _value(name: str, value: Any, default: Any, file: Path | str) -> Any:
    if name == "latency_s" and value == "measured":
        return None
    kind = type(default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"{file}: {name}: expected {kind.__name__}, got {value!r}")
    return value
