"""Parameters of the driver node as one frozen value: checked together, applied together, or not at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from wamdiff2_core.errors import ConfigError

RULES = ("dynamic", "static", "sequential")
TASKS = ("plan", "detect", "ask")
TRANSPORTS = ("compressed", "raw")
# Decide what is loaded and subscribed, so they are fixed from configure until cleanup.
FIXED_AFTER_CONFIGURE = frozenset({"checkpoint", "device", "dtype", "threads", "cameras", "image_transport", "rig"})


@dataclass(frozen=True)
class Settings:
    """All settings of the driver node. Field names are the parameter names; `describe` gives their help."""

    checkpoint: str = ""
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 0
    cameras: tuple[str, ...] = ("cam_front", "cam_front_left", "cam_front_right")
    image_transport: str = "compressed"
    rig: str = ""
    block_size: int = 32
    steps: int = 8
    rule: str = "dynamic"
    threshold: float = 0.9
    time_limit_s: float = 0.0
    tasks: tuple[str, ...] = TASKS
    plan_rate_hz: float = 0.0
    detect_rate_hz: float = 1.0
    ask_rate_hz: float = 0.5
    batch_tasks: bool = False
    sync_tolerance_s: float = 0.05
    max_frame_age_s: float = 0.5
    odometry_max_age_s: float = 0.5
    default_instruction: str = "follow the road"
    overlay: bool = True

    def __post_init__(self) -> None:
        """Raises ConfigError naming every field that is out of its range."""
        problems = [problem for problem in self._problems() if problem]
        if problems:
            raise ConfigError("; ".join(problems))

    def rate_hz(self, task: str) -> float:
        """Most answers per second of a task; 0 means one for every group of frames."""
        return {"plan": self.plan_rate_hz, "detect": self.detect_rate_hz, "ask": self.ask_rate_hz}[task]

    def _problems(self) -> list[str]:
        return [
            _within("block_size", self.block_size, 1, 256),
            _within("steps", self.steps, 1, 256),
            _within("threshold", self.threshold, 0.0, 1.0),
            _within("time_limit_s", self.time_limit_s, 0.0, 60.0),
            _within("threads", self.threads, 0, 256),
            *(_within(f"{task}_rate_hz", self.rate_hz(task), 0.0, 100.0) for task in TASKS),
            _within("sync_tolerance_s", self.sync_tolerance_s, 0.0, 1.0),
            _within("max_frame_age_s", self.max_frame_age_s, 0.02, 10.0),
            _within("odometry_max_age_s", self.odometry_max_age_s, 0.02, 10.0),
            _one_of("rule", self.rule, RULES),
            _one_of("image_transport", self.image_transport, TRANSPORTS),
            _one_of("dtype", self.dtype, ("auto", "float32", "bfloat16", "float16")),
            *(_one_of("tasks", task, TASKS) for task in self.tasks),
            "" if self.tasks else "tasks: at least one is needed",
            "" if len(set(self.tasks)) == len(self.tasks) else f"tasks: {list(self.tasks)} names one twice",
            "" if self.cameras else "cameras: at least one is needed",
            "" if len(set(self.cameras)) == len(self.cameras) else f"cameras: {list(self.cameras)} names one twice",
            *("" if name.isidentifier() else f"cameras: {name!r} is no topic name" for name in self.cameras),
        ]


@dataclass(frozen=True)
class Description:
    """Help text of a parameter, and its range where it is a number (low, high)."""

    text: str
    low: float | None = None
    high: float | None = None


DESCRIPTIONS: dict[str, Description] = {
    "checkpoint": Description("Folder of the checkpoint; fixed after configure"),
    "device": Description("Where the model runs: cpu, cuda, cuda:1; fixed after configure"),
    "dtype": Description(
        "Number format of the weights: float32, bfloat16, float16, or auto (bfloat16 where fast); fixed after configure"
    ),
    "threads": Description("CPU threads of the model, 0: leave it to PyTorch; fixed after configure", 0, 256),
    "cameras": Description("Cameras in the order that the checkpoint was trained with; fixed after configure"),
    "image_transport": Description("compressed (JPEG or PNG) or raw images; fixed after configure"),
    "rig": Description("Rig file that says where the cameras are; needed to draw the overlay; fixed after configure"),
    "block_size": Description("Tokens decoded together; 1 is autoregressive", 1, 256),
    "steps": Description("Most denoising steps per block", 1, 256),
    "rule": Description("Which tokens a step accepts: dynamic, static, sequential"),
    "threshold": Description("Probability from which the dynamic rule accepts a token", 0.0, 1.0),
    "time_limit_s": Description("Most seconds for an answer, 0: no limit", 0.0, 60.0),
    "tasks": Description("What to answer: plan, detect, ask"),
    "plan_rate_hz": Description("Most plans per second, 0: one for every group of frames", 0.0, 100.0),
    "detect_rate_hz": Description("Most detections per second, 0: every group", 0.0, 100.0),
    "ask_rate_hz": Description("Most answers to the open question per second, 0: every group", 0.0, 100.0),
    "batch_tasks": Description("Decode all tasks that are due in one batch (good on a GPU), not the plan by itself"),
    "sync_tolerance_s": Description("Most seconds between the stamps of one group's frames", 0.0, 1.0),
    "max_frame_age_s": Description("Frames older than this are not planned from", 0.02, 10.0),
    "odometry_max_age_s": Description("Odometry older than this is not planned from", 0.02, 10.0),
    "default_instruction": Description("What to do until an instruction comes"),
    "overlay": Description("Publish what was seen and decided, drawn into the first camera's image"),
}


def changed(settings: Settings, values: Mapping[str, Any], configured: bool) -> Settings:
    """`settings` with `values` (by parameter name) put in, checked as a whole.

    Raises ConfigError, leaving everything as it was, if a value is out of range or fixed after configure.
    """
    known = {f.name: f for f in fields(Settings)}
    mine = {name: _as_field(name, getattr(settings, name), value) for name, value in values.items() if name in known}
    for name, value in mine.items():
        if configured and name in FIXED_AFTER_CONFIGURE and value != getattr(settings, name):
            raise ConfigError(f"{name}: fixed after configure; clean up the node first")
    return replace(settings, **mine)


def parameter_value(value: Any) -> Any:
    """A setting as rclpy takes it: lists for tuples."""
    return list(value) if isinstance(value, tuple) else value


def _as_field(name: str, current: Any, value: Any) -> Any:
    """`value` in the type of the field; ConfigError if it has another one (whole numbers serve as floats)."""
    if isinstance(current, tuple):
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
            raise ConfigError(f"{name}: expected a list of names, got {value!r}")
        return tuple(value)
    if isinstance(current, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(current):
        raise ConfigError(f"{name}: expected {type(current).__name__}, got {value!r}")
    return value


def _within(name: str, value: float, low: float, high: float) -> str:
    if math.isfinite(value) and low <= value <= high:
        return ""
    return f"{name}: {value} is not within {low}..{high}"


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    return "" if value in allowed else f"{name}: {value!r} is not one of {', '.join(allowed)}"
