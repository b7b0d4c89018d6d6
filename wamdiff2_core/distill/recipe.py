"""A training run as one small file: a frozen dataclass, checked when made, with `key=value` overrides."""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass, field, fields
from pathlib import Path

import yaml

from wamdiff2_core.distill.loss import WEIGHTINGS
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.tasks import TASKS


@dataclass(frozen=True)
class Phase:
    """From the start of training (or the last phase) until the fraction `until`: block sizes with their shares of
    rows.
    """

    until: float
    blocks: dict[int, float]


@dataclass(frozen=True)
class Recipe:
    """One stage of training. Paths may be given by override; lengths either as steps or as minutes of training time."""

    # what
    name: str = "run"
    init: str = ""  # checkpoint folder to start from
    data: tuple[str, ...] = ()  # folders with shard_*
    out: str = ""  # the run's folder: checkpoint/, state.pt, log.csv
    phases: tuple[Phase, ...] = ()  # empty: autoregressive stage
    # how long
    max_steps: int = 0  # 0: no limit
    max_minutes: float = 0.0  # 0: no limit
    warmup_steps: int = 300
    # optimiser
    lr: float = 1e-3
    vision_lr: float = 1e-3
    final_lr: float = 0.02  # fraction of lr at the end of the cosine
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    ema: float = 0.999  # 0: off
    # loss
    task_weights: dict[str, float] = field(default_factory=lambda: {"plan": 1.0, "detect": 1.0, "ask": 0.5})
    ar_weight: float = 0.5  # of the autoregressive loss beside the diffusion loss
    weighting: str = "flat"
    complementary: bool = False
    fill_weight: float = 0.1
    t_min: float = 0.02
    # data
    frames_per_step: int = 128
    ring_frames: int = 4096
    min_frames: int = 64
    wait_s: float = 300.0
    follow: bool = False  # keep looking for new shards
    workers: int = 2
    holdout: int = 0  # shards with a number divisible by this are for evaluation
    augment: float = 1.0
    cameras: tuple[str, ...] = ("cam_front", "cam_front_left", "cam_front_right")
    prompt_room: dict[str, int] = field(default_factory=lambda: {"plan": 160, "detect": 112, "ask": 144})
    # machine
    device: str = "cpu"
    bf16: bool = False
    compile: bool = False
    seed: int = 0
    log_every: int = 50
    save_minutes: float = 2.0
    threads: int = 0  # 0: torch's choice

    def __post_init__(self) -> None:
        problems = [
            (not self.max_steps and not self.max_minutes, "max_steps or max_minutes must be set"),
            (
                self.weighting not in WEIGHTINGS,
                f"weighting: expected one of {', '.join(WEIGHTINGS)}; got {self.weighting!r}",
            ),
            (
                set(self.task_weights) != set(TASKS),
                f"task_weights: expected {', '.join(TASKS)}; got {list(self.task_weights)}",
            ),
            (not 0.0 <= self.ema < 1.0, f"ema: expected 0 <= ema < 1, got {self.ema}"),
            (not 0.0 < self.t_min < 1.0, f"t_min: expected a value within (0, 1), got {self.t_min}"),
            (min(self.lr, self.vision_lr, self.clip) <= 0, "lr, vision_lr and clip must be positive"),
            (
                min(self.frames_per_step, self.ring_frames, self.log_every) < 1,
                "frames_per_step, ring_frames, log_every: at least 1",
            ),
            (
                any(
                    not phase.blocks or min(phase.blocks) < 1 or min(phase.blocks.values()) <= 0
                    for phase in self.phases
                ),
                "phases: each needs blocks {size: share} with sizes of at least 1 and positive shares",
            ),
            (
                bool(self.phases)
                and (self.phases[-1].until < 1.0 or list(self.phases) != sorted(self.phases, key=lambda p: p.until)),
                "phases: `until` must grow and end at 1.0",
            ),
        ]
        for wrong, message in problems:
            if wrong:
                raise ConfigError(f"recipe {self.name}: {message}")

    def phase(self, progress: float) -> Phase | None:
        """The phase at this fraction of the training; None in the autoregressive stage."""
        return next(
            (phase for phase in self.phases if progress < phase.until), self.phases[-1] if self.phases else None
        )


def load_recipe(path: Path | str, overrides: typing.Sequence[str] = ()) -> Recipe:
    """Read a YAML recipe and apply `key=value` overrides (values in YAML notation). Unknown keys and wrong types
    are errors.
    """
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"recipe {path}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"recipe {path}: expected key: value lines")
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"override {override!r}: expected key=value")
        values[key] = yaml.safe_load(text) if text else ""
    return make_recipe(values)


def make_recipe(values: dict) -> Recipe:
    """A checked recipe from plain values."""
    hints = typing.get_type_hints(Recipe)
    known = {item.name for item in fields(Recipe)}
    if unknown := set(values) - known:
        raise ConfigError(f"recipe: unknown keys {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    return Recipe(**{key: _convert(key, hints[key], value) for key, value in values.items()})


def _convert(key: str, kind: typing.Any, value: typing.Any) -> typing.Any:
    """YAML value to the field's type: numbers widen to float, lists become tuples, nothing else is forgiven."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Phase and isinstance(value, dict) and set(value) == {"until", "blocks"}:
        return Phase(_convert(key, float, value["until"]), _convert(key, dict[int, float], value["blocks"]))
    if origin is tuple and isinstance(value, str):
        value = [value]
    if origin is tuple and isinstance(value, (list, tuple)):
        each = inner[0] if len(inner) == 2 and inner[1] is Ellipsis else None
        if each is None and len(value) != len(inner):
            raise ConfigError(f"recipe: {key}: expected {len(inner)} values, got {value!r}")
        return tuple(_convert(key, each or inner[i], item) for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {_convert(key, inner[0], k): _convert(key, inner[1], v) for k, v in value.items()}
    if kind is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError as error:
            raise ConfigError(f"recipe: {key}: expected a number, got {value!r}") from error
    if isinstance(kind, type) and not isinstance(kind, types.GenericAlias) and type(value) is kind:
        return value
    raise ConfigError(f"recipe: {key}: expected {getattr(kind, '__name__', kind)}, got {value!r}")
