"""A training run as one small file: a frozen dataclass, checked when made, with `key=value` overrides."""

from __future__ import annotations

import math
import types
import typing
from dataclasses import dataclass, field, fields
from pathlib import Path

import yaml

from wamdiff2_core.distill.divergence import DIVERGENCES
from wamdiff2_core.distill.loss import WEIGHTINGS
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.checkpoint import PREDICTIONS
from wamdiff2_core.model.masks import CONTEXTS
from wamdiff2_core.tasks import TASKS

MOST_BLOCK_SIZES = 8
CHOICES: dict[str, tuple[str, ...]] = {
    "weighting": WEIGHTINGS,
    "divergence": DIVERGENCES,
    "prediction": ("", *PREDICTIONS),
    "context": ("", *CONTEXTS),
    "source": ("ring", "stream"),
    "parallel": ("none", "ddp", "fsdp"),
    "attention": ("dense", "flex"),
}


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
    prediction: str = ""  # "": as the checkpoint says; "next" | "same": what the trained checkpoint will say
    context: str = ""  # "": as the checkpoint says; "causal" | "block_causal"
    # how long
    max_steps: int = 0  # 0: no limit
    max_minutes: float = 0.0  # 0: no limit
    warmup_steps: int = 300
    # optimiser
    lr: float = 1e-3
    vision_lr: float = 1e-3
    merger_lr: float = 0.0  # of the mergers from vision to text; 0: as vision_lr
    final_lr: float = 0.02  # fraction of lr at the end of the cosine
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    ema: float = 0.999  # 0: off
    # loss
    task_weights: dict[str, float] = field(default_factory=lambda: {"plan": 1.0, "detect": 1.0, "ask": 0.5})
    ar_weight: float = 0.5  # of the autoregressive loss beside the diffusion loss
    ce_weight: float = 1.0  # of the cross-entropy of masked tokens
    distill_weight: float = 0.0  # of the divergence from the teacher
    teacher: str = ""  # checkpoint folder of a frozen teacher
    teacher_block_size: int = 0  # 0: each row's own block size; 1: an autoregressive teacher
    answers: str = ""  # checkpoint folder whose own answers, token by token, replace the truth; "": the truth
    answer_tasks: tuple[str, ...] = ("plan", "detect")  # of these tasks
    divergence: str = "jsd"
    top_k: int = 0  # classes of the teacher in the divergence, the rest as one; 0: all
    temperature: float = 1.0  # of both sides of the divergence
    on_policy_every: int = 0  # every n-th step the student's own greedy answer replaces the truth; 0: never
    chunk_tokens: int = 0  # answer tokens whose logits exist at a time; 0: all of a step
    weighting: str = "flat"
    complementary: bool = False
    noisy_copies: int = 1  # draws of noise for each answer in one pass, which share images, prompt and clean answer
    fill_weight: float = 0.1
    ordered_share: float = 0.0  # of rows masked as the decoding rule "ordered" meets them; the rest at random
    t_min: float = 0.02
    # data
    source: str = "ring"  # "ring": shards of equal frames kept on the device; "stream": conversation files, packed
    files: tuple[str, ...] = ()  # conversation files of a stream
    image_root: str = ""  # what their image paths are relative to; "": each file's own folder
    max_tokens: int = 8192  # length of a packed stream
    frames_per_step: int = 128
    ring_frames: int = 4096
    min_frames: int = 64
    wait_s: float = 300.0
    follow: bool = False  # keep looking for new shards
    workers: int = 2
    holdout: int = 0  # shards with a number divisible by this are for evaluation
    augment: float = 1.0
    free_share: float = 0.0  # of a ring's rows that are trained without the scaffold of their task
    cameras: tuple[str, ...] = ("cam_front", "cam_front_left", "cam_front_right")
    prompt_room: dict[str, int] = field(default_factory=lambda: {"plan": 160, "detect": 112, "ask": 144})
    # machine
    parallel: str = "none"  # "none" | "ddp" | "fsdp"
    accumulate: int = 1  # batches per optimiser step
    gradient_checkpointing: bool = False
    attention: str = "dense"  # "dense" | "flex"
    capture: bool = False  # the whole step as one CUDA graph
    device: str = "cpu"
    bf16: bool = False  # matrix products in bf16
    master_weights: bool = True  # with bf16: keep the weights themselves in fp32
    compile: bool = False
    seed: int = 0
    log_every: int = 50
    save_minutes: float = 2.0
    tensorboard: bool = True
    evaluate: tuple[str, ...] = ()  # "frames": held-out frames; "drives": short closed-loop drives
    evaluate_minutes: float = 0.0  # of training between two evaluations; 0: only at the end
    evaluate_data: tuple[str, ...] = ()  # folders of frames to evaluate on; empty: what `holdout` keeps of `data`
    evaluate_frames: int = 256
    evaluate_routes: int = 4
    evaluate_decoding: str = ""  # such as "B=8,steps=4"; "": the largest block size trained, 3 steps, threshold 0.6
    threads: int = 0  # 0: torch's choice

    def __post_init__(self) -> None:
        problems = [
            message for wrong, message in (*_number_checks(self), *_choice_checks(self), *_stage_checks(self)) if wrong
        ]
        if problems:
            raise ConfigError(f"recipe {self.name}: {'; '.join(problems)}")

    def phase(self, progress: float) -> Phase | None:
        """The phase at this fraction of the training; None in the autoregressive stage."""
        return next(
            (phase for phase in self.phases if progress < phase.until), self.phases[-1] if self.phases else None
        )


Check = tuple[bool, str]


def _number_checks(recipe: Recipe) -> list[Check]:
    positive = ("lr", "vision_lr", "clip", "temperature", "wait_s")
    batches = ("frames_per_step", "ring_frames", "min_frames", "accumulate", "max_tokens", "noisy_copies")
    whole = (*batches, "log_every", "evaluate_frames", "evaluate_routes")
    steps = ("max_steps", "warmup_steps", "teacher_block_size", "top_k", "on_policy_every", "chunk_tokens", "workers")
    natural = (*steps, "seed", "holdout", "threads")
    losses = ("ar_weight", "ce_weight", "distill_weight", "fill_weight", "merger_lr", "final_lr", "weight_decay")
    weights = (*losses, "augment", "max_minutes", "save_minutes", "evaluate_minutes")
    shares = ("ordered_share", "free_share")
    return [
        *((getattr(recipe, name) <= 0, f"{name} must be positive") for name in positive),
        *((getattr(recipe, name) < 1, f"{name}: at least 1") for name in whole),
        *((getattr(recipe, name) < 0, f"{name} must not be negative") for name in (*natural, *weights)),
        (not 0.0 <= recipe.ema < 1.0, f"ema: expected 0 <= ema < 1, got {recipe.ema}"),
        (not 0.0 < recipe.t_min < 1.0, f"t_min: expected a value within (0, 1), got {recipe.t_min}"),
        *(
            (not 0.0 <= getattr(recipe, name) <= 1.0, f"{name}: expected 0 to 1, got {getattr(recipe, name)}")
            for name in shares
        ),
        (
            not all(0.0 <= beta < 1.0 for beta in recipe.betas),
            f"betas: expected 0 <= beta < 1, got {', '.join(map(str, recipe.betas))}",
        ),
        (not recipe.max_steps and not recipe.max_minutes, "max_steps or max_minutes must be set"),
    ]


def _choice_checks(recipe: Recipe) -> list[Check]:
    return [
        *(
            (getattr(recipe, name) not in known, f"{name}: expected one of {', '.join(k or repr(k) for k in known)}; "
             f"got {getattr(recipe, name)!r}")
            for name, known in CHOICES.items()
        ),
        (
            set(recipe.task_weights) != set(TASKS)
            or max(recipe.task_weights.values(), default=0.0) <= 0.0
            or min(recipe.task_weights.values(), default=0.0) < 0.0,
            f"task_weights: expected {', '.join(TASKS)}, none negative, one positive; got {dict(recipe.task_weights)}",
        ),
    ]  # fmt: skip


def _stage_checks(recipe: Recipe) -> list[Check]:
    ends = [phase.until for phase in recipe.phases]
    return [
        (
            any(not p.blocks or min(p.blocks) < 1 or min(p.blocks.values()) <= 0 for p in recipe.phases),
            "phases: each needs blocks {size: share} with sizes of at least 1 and positive shares",
        ),
        (
            bool(ends) and (ends[-1] != 1.0 or ends[0] <= 0.0 or ends != sorted(set(ends))),
            f"phases: `until` must grow and end at 1.0, got {', '.join(map(str, ends))}",
        ),
        (
            any(len(p.blocks) > MOST_BLOCK_SIZES for p in recipe.phases),
            f"phases: at most {MOST_BLOCK_SIZES} block sizes in one phase",
        ),
        (bool(recipe.teacher) != (recipe.distill_weight > 0), "teacher and distill_weight belong together"),
        (
            bool(recipe.teacher) and not recipe.phases,
            "a teacher needs phases: the divergence is taken at masked tokens",
        ),
        *_teacher_checks(recipe),
        (
            bool(recipe.phases) and recipe.ce_weight + recipe.distill_weight <= 0,
            "ce_weight or distill_weight must be positive in a stage with phases",
        ),
        (
            recipe.capture and recipe.on_policy_every > 0,
            "capture and on_policy_every exclude each other: decoding is no fixed sequence of kernels",
        ),
        (recipe.capture and not recipe.device.startswith("cuda"), "capture needs a CUDA device"),
        (recipe.capture and recipe.parallel != "none", "capture works in one process: parallel must be none"),
        (recipe.capture and recipe.source != "ring", "capture needs batches of one shape: source must be ring"),
        (recipe.capture and recipe.chunk_tokens > 0, "capture and chunk_tokens exclude each other: chunks are counted"),
        (recipe.source == "stream" and not recipe.files, "a stream needs files"),
        (recipe.source == "stream" and recipe.ordered_share > 0, "ordered_share: streams have no scaffold ranks"),
        (recipe.source == "stream" and bool(recipe.answers), "answers: for a ring of frames only (source=ring)"),
        (
            not recipe.answer_tasks or not set(recipe.answer_tasks) <= set(TASKS),
            f"answer_tasks: expected some of {', '.join(TASKS)}; got {', '.join(recipe.answer_tasks) or 'none'}",
        ),
        (recipe.source == "stream" and recipe.noisy_copies > 1, "noisy_copies: streams have room for one"),
        (recipe.on_policy_every > 0 and not recipe.phases, "on_policy_every needs phases"),
        (
            recipe.on_policy_every > 0 and recipe.parallel == "fsdp",
            "on_policy_every needs whole weights to decode with: parallel must be none or ddp",
        ),
    ]


def _teacher_checks(recipe: Recipe) -> list[Check]:
    """A teacher's block must begin where a student's does: else it lacks tokens that the student sees clean."""
    mine, sizes = recipe.teacher_block_size, sorted({size for phase in recipe.phases for size in phase.blocks})
    if not recipe.teacher or not mine or not sizes:
        return []
    torn = [size for size in sizes if size > mine and size % mine]
    return [
        (
            mine > sizes[-1],
            f"teacher_block_size: expected at most the student's largest block of {sizes[-1]}, got {mine}",
        ),
        (
            bool(torn),
            f"teacher_block_size: expected a divisor of the student's larger blocks, {mine} does not divide "
            f"{', '.join(map(str, torn))}",
        ),
    ]


def load_recipe(path: Path | str, overrides: typing.Sequence[str] = ()) -> Recipe:
    """Read a YAML recipe and apply `key=value` overrides (values in YAML notation). Unknown keys and wrong types
    are errors.
    """
    try:
        values = yaml.load(Path(path).read_text(encoding="utf-8"), _OnceEach)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"recipe {path}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"recipe {path}: expected key: value lines")
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"override {override!r}: expected key=value")
        try:
            values[key] = yaml.safe_load(text) if text else ""
        except yaml.YAMLError as error:
            raise ConfigError(f"override {override!r}: expected a value in YAML notation: {error}") from error
    return make_recipe(values)


class _OnceEach(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping: YAML would silently take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = [key for number, key in enumerate(keys) if key in keys[:number]]
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


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
            number = float(value)
        except (ValueError, OverflowError) as error:
            raise ConfigError(f"recipe: {key}: expected a number, got {value!r}") from error
        if not math.isfinite(number):
            raise ConfigError(f"recipe: {key}: expected a finite number, got {value!r}")
        return number
    if isinstance(kind, type) and not isinstance(kind, types.GenericAlias) and type(value) is kind:
        return value
    raise ConfigError(f"recipe: {key}: expected {getattr(kind, '__name__', kind)}, got {value!r}")
