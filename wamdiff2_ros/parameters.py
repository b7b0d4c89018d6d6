"""Parameters of the driver node as one frozen value: checked together, applied together, or not at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from wamdiff2_core.decode.config import RULES
from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.tasks.checks import MAX_INSTRUCTION, MAX_QUESTION
from wamdiff2_ros.deadline import parse_dial
from wamdiff2_ros.frame_groups import MISSING_CAMERA
from wamdiff2_ros.texts import plain_text

TASKS = ("plan", "detect", "ask")
TRANSPORTS = ("compressed", "raw")
RELIABILITIES = ("best_effort", "reliable")
ON_STALE_PLAN = ("stop", "silence")
# wamdiff2_core.decode.pick.WORDS, which would load PyTorch; a test compares them.
KERNELS = ("auto", "lean", "plain", "engine", "torch", "torch_fp8", "triton", "triton_fp8", "flashinfer")
SCORERS = ("none", "likelihood", "remasked", "learned")  # of wamdiff2_core.select; "rules" wants recorded boxes
MOST_CANDIDATES = 64  # of wamdiff2_core.readiness.ROWS: more at once than an engine is made for
MOST_SCORED = 32
# Decide what is loaded and subscribed, so they are fixed from configure until cleanup.
FIXED_AFTER_CONFIGURE = frozenset({
    "checkpoint", "device", "dtype", "kernels", "threads", "cameras", "image_transport", "rig",
    "image_reliability", "missing_camera", "dry_run", "twin_vision_msgs", "twin_autoware",
})  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """All settings of the driver node. Field names are the parameter names; `describe` gives their help."""

    checkpoint: str = ""
    device: str = "cpu"
    dtype: str = "float32"
    kernels: str = "auto"
    threads: int = 0
    cameras: tuple[str, ...] = ("cam_front", "cam_front_left", "cam_front_right")
    image_transport: str = "compressed"
    image_reliability: str = "best_effort"
    missing_camera: str = "stop"
    rig: str = ""
    block_size: int = 32
    steps: int = 8
    rule: str = "dynamic"
    threshold: float = 0.9
    time_limit_s: float = 0.0
    deadline_ms: float = 0.0
    deadline_dials: tuple[str, ...] = ("8x8", "16x8", "32x8", "32x4", "32x2")
    deadline_calibration_s: float = 5.0
    tasks: tuple[str, ...] = TASKS
    plan_rate_hz: float = 0.0
    detect_rate_hz: float = 1.0
    ask_rate_hz: float = 0.5
    batch_tasks: bool = False
    sync_tolerance_s: float = 0.05
    camera_late_s: float = 0.25
    max_frame_age_s: float = 0.5
    odometry_max_age_s: float = 0.5
    default_instruction: str = "follow the road"
    max_instruction_length: int = MAX_INSTRUCTION
    max_question_length: int = 300
    overlay: bool = True
    markers: bool = True
    candidates: int = 0
    candidate_temperature: float = 1.0
    candidate_paces: bool = True
    scorer: str = "none"
    max_plan_age_s: float = 1.0
    on_stale_plan: str = "stop"
    stop_deceleration_mps2: float = 4.0
    max_acceleration_mps2: float = 3.5
    max_deceleration_mps2: float = 8.0
    max_jerk_mps3: float = 12.0
    max_curvature_1pm: float = 0.24
    compensate_delay: bool = False
    withhold_contradictions: bool = False
    dry_run: bool = False
    twin_vision_msgs: bool = False
    twin_autoware: bool = False

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
            _within("deadline_ms", self.deadline_ms, 0.0, 60e3),
            _within("deadline_calibration_s", self.deadline_calibration_s, 0.0, 120.0),
            "" if self.deadline_dials else "deadline_dials: at least one is needed",
            *(_dial_problem(dial) for dial in self.deadline_dials),
            *(_within(f"{task}_rate_hz", self.rate_hz(task), 0.0, 100.0) for task in TASKS),
            _within("sync_tolerance_s", self.sync_tolerance_s, 0.0, 1.0),
            _within("camera_late_s", self.camera_late_s, 0.0, 10.0),
            _within("max_instruction_length", self.max_instruction_length, 1, MAX_INSTRUCTION),
            _within("max_question_length", self.max_question_length, 1, MAX_QUESTION),
            _within("max_frame_age_s", self.max_frame_age_s, 0.02, 10.0),
            _within("odometry_max_age_s", self.odometry_max_age_s, 0.02, 10.0),
            *self._output_problems(),
            _one_of("rule", self.rule, RULES),
            _one_of("image_transport", self.image_transport, TRANSPORTS),
            _one_of("image_reliability", self.image_reliability, RELIABILITIES),
            _one_of("missing_camera", self.missing_camera, MISSING_CAMERA),
            _text_within("default_instruction", self.default_instruction, self.max_instruction_length),
            _one_of("kernels", self.kernels, KERNELS),
            _one_of("dtype", self.dtype, ("auto", "float32", "bfloat16", "float16")),
            *(_one_of("tasks", task, TASKS) for task in self.tasks),
            "" if self.tasks else "tasks: at least one is needed",
            "" if len(set(self.tasks)) == len(self.tasks) else f"tasks: {list(self.tasks)} names one twice",
            "" if self.cameras else "cameras: at least one is needed",
            "" if len(set(self.cameras)) == len(self.cameras) else f"cameras: {list(self.cameras)} names one twice",
            *("" if name.isidentifier() else f"cameras: {name!r} is no topic name" for name in self.cameras),
        ]

    def _output_problems(self) -> list[str]:
        return [
            _within("candidates", self.candidates, 0, MOST_CANDIDATES),
            _within("candidate_temperature", self.candidate_temperature, 0.01, 10.0),
            _one_of("scorer", self.scorer, SCORERS),
            "" if self.scorer == "none" else _within("candidates (with a scorer)", self.candidates, 0, MOST_SCORED),
            _within("max_plan_age_s", self.max_plan_age_s, 0.1, 10.0),
            _within("stop_deceleration_mps2", self.stop_deceleration_mps2, 0.5, 10.0),
            _within("max_acceleration_mps2", self.max_acceleration_mps2, 0.1, 15.0),
            _within("max_deceleration_mps2", self.max_deceleration_mps2, 0.1, 15.0),
            _within("max_jerk_mps3", self.max_jerk_mps3, 0.1, 100.0),
            _within("max_curvature_1pm", self.max_curvature_1pm, 0.001, 1.0),
            _one_of("on_stale_plan", self.on_stale_plan, ON_STALE_PLAN),
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
    "kernels": Description(
        "What decodes: auto (the captured engine with Triton's kernels where they can run, else lean), lean, plain, "
        "engine, or the engine with one set: torch, torch_fp8, triton, triton_fp8, flashinfer; fixed after configure"
    ),
    "threads": Description("CPU threads of the model, 0: leave it to PyTorch; fixed after configure", 0, 256),
    "cameras": Description("Cameras in the order that the checkpoint was trained with; fixed after configure"),
    "image_transport": Description("compressed (JPEG or PNG) or raw images; fixed after configure"),
    "image_reliability": Description(
        "How images are asked for: best_effort (fits every sender) or reliable; fixed after configure"
    ),
    "missing_camera": Description(
        "When one camera is late, silent or broken: stop (no answers), hold (its last frame, up to max_frame_age_s), "
        "drop (go without it, where the checkpoint allows that); fixed after configure"
    ),
    "rig": Description("Rig file that says where the cameras are; needed to draw the overlay; fixed after configure"),
    "block_size": Description(
        "Tokens decoded together; 1 is autoregressive. Once configured, an engine takes 1, 4, 8, 16, 32, the "
        "checkpoint's, and those that block_size and deadline_dials named before",
        1,
        256,
    ),
    "steps": Description("Most denoising steps per block", 1, 256),
    "rule": Description("Which tokens a step accepts: dynamic, static, sequential, ordered"),
    "threshold": Description("Probability from which the dynamic rule accepts a token", 0.0, 1.0),
    "time_limit_s": Description("Most seconds for an answer, 0: no limit", 0.0, 60.0),
    "deadline_ms": Description(
        "Budget of an answer in milliseconds: block size and steps are chosen to meet it; 0: as they are set", 0.0, 60e3
    ),
    "deadline_dials": Description(
        "Block size x steps to choose from in deadline mode, such as 16x8; with an engine as for block_size"
    ),
    "deadline_calibration_s": Description("Most seconds that configure measures them for", 0.0, 120.0),
    "tasks": Description("What to answer: plan, detect, ask"),
    "plan_rate_hz": Description("Most plans per second, 0: one for every group of frames", 0.0, 100.0),
    "detect_rate_hz": Description("Most detections per second, 0: every group", 0.0, 100.0),
    "ask_rate_hz": Description("Most answers to the open question per second, 0: every group", 0.0, 100.0),
    "batch_tasks": Description("Decode all tasks that are due in one batch (good on a GPU), not the plan by itself"),
    "sync_tolerance_s": Description("Most seconds between the stamps of one group's frames", 0.0, 1.0),
    "camera_late_s": Description("A camera this far behind the newest stamp counts as missing", 0.0, 10.0),
    "max_frame_age_s": Description("Frames older than this are not planned from", 0.02, 10.0),
    "odometry_max_age_s": Description("Odometry older than this is not planned from", 0.02, 10.0),
    "default_instruction": Description("What to do until an instruction comes"),
    "max_instruction_length": Description(
        "Most characters of an instruction; a longer one is refused", 1, MAX_INSTRUCTION
    ),
    "max_question_length": Description("Most characters of a question; a longer one is refused", 1, MAX_QUESTION),
    "overlay": Description("Publish what was seen and decided, drawn into the first camera's image"),
    "markers": Description("Publish markers of plan, candidates and boxes for viewers, while somebody listens"),
    "candidates": Description(
        f"Further plans drawn at random after each plan, 0: none; each costs about a plan; at most {MOST_CANDIDATES}, "
        f"with a scorer {MOST_SCORED}",
        0,
        MOST_CANDIDATES,
    ),
    "candidate_temperature": Description("Temperature that candidates are drawn at; 1: as the model says", 0.01, 10.0),
    "candidate_paces": Description("With a scorer: the plan's path at 0.7, 0.85 and 1.1 times its speed competes, too"),
    "scorer": Description("What chooses among plan and candidates: none (the plan), likelihood, remasked, learned"),
    "max_plan_age_s": Description("Without a plan from younger pictures than this, on_stale_plan applies", 0.1, 10.0),
    "on_stale_plan": Description("Without a young plan: stop (publish a braking trajectory) or silence (none)"),
    "stop_deceleration_mps2": Description("How a stop trajectory brakes, within max_deceleration_mps2", 0.5, 10.0),
    "max_acceleration_mps2": Description("Most forward acceleration of the smooth trajectory", 0.1, 15.0),
    "max_deceleration_mps2": Description("Most deceleration of the smooth trajectory", 0.1, 15.0),
    "max_jerk_mps3": Description("Most change of acceleration per second of the smooth trajectory", 0.1, 100.0),
    "max_curvature_1pm": Description("Most curvature of the smooth trajectory (1 / turning radius)", 0.001, 1.0),
    "compensate_delay": Description("Move the smooth trajectory on to the moment of publication, by odometry"),
    "withhold_contradictions": Description("Withhold plans that contradict instruction or answer, not only flag"),
    "dry_run": Description("Publish everything under ~/debug instead of ~/output; fixed after configure"),
    "twin_vision_msgs": Description("Publish boxes as vision_msgs/Detection2DArray as well; fixed after configure"),
    "twin_autoware": Description("Publish plans as autoware_planning_msgs/Trajectory as well; fixed after configure"),
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


def _dial_problem(dial: str) -> str:
    try:
        parse_dial(dial)
    except ConfigError as error:
        return f"deadline_dials: {error}"
    return ""


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    return "" if value in allowed else f"{name}: {value!r} is not one of {', '.join(allowed)}"


def _text_within(name: str, text: str, limit: int) -> str:
    try:
        plain, removed = plain_text(text, limit)
    except DataError as error:
        return f"{name}: {error}"
    return "" if plain and not removed else f"{name}: expected words without control characters, got {text[:40]!r}"
