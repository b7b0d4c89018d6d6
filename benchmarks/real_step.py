"""Distillation steps on a fixed set, timed part by part: the very step of training, with models of random weights."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from wamdiff2_core.distill.batch import Conversations, TrainBatch
from wamdiff2_core.distill.corruption import Corruption
from wamdiff2_core.distill.forward import Pass, Visual
from wamdiff2_core.distill.layout import Layout
from wamdiff2_core.distill.optimise import optimiser, set_rates
from wamdiff2_core.distill.parallel import Team, gathered
from wamdiff2_core.distill.recipe import Phase, Recipe
from wamdiff2_core.distill.step import BlockSizes, Method, batch_losses
from wamdiff2_core.distill.teacher import Teacher
from wamdiff2_core.distill.trainer import passes
from wamdiff2_core.model.tokens import Grid

NOISE_SEED = 1234  # of the corruption in evaluations: the same before and after training


class Stopwatch:
    """Milliseconds of named parts, step by step. On a GPU by events, so that measuring waits for nothing."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._steps: list[list[tuple[str, object, object]]] = []

    def begin_step(self) -> None:
        self._steps.append([])

    def _now(self) -> object:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Outside of a step nothing is kept."""
        begin = self._now()
        yield
        if self._steps:
            self._steps[-1].append((name, begin, self._now()))

    def take(self) -> list[dict[str, float]]:
        """Of each step: part -> ms, summed where a part ran more than once. Waits for the device; begins anew."""
        if self._cuda:
            torch.cuda.synchronize()
        found = []
        for step in self._steps:
            parts: dict[str, float] = {}
            for name, begin, end in step:
                spent = begin.elapsed_time(end) if self._cuda else 1e3 * (end - begin)  # type: ignore[attr-defined,operator]
                parts[name] = parts.get(name, 0.0) + spent
            found.append(parts)
        self._steps = []
        return found


@dataclass(frozen=True)
class TimedTeacher(Teacher):
    """A teacher whose pass over the text model is a part of the step."""

    watch: Stopwatch | None = None

    def hidden(
        self, rows: Conversations, visual: Visual | None, live: Tensor, block: Tensor, noise: Corruption
    ) -> Tensor:
        assert self.watch is not None  # always given where this class is used
        with self.watch("teacher text"):
            return super().hidden(rows, visual, live, block, noise)


Encode = Callable[..., Tensor]


def timed_encode(name: str, watch: Stopwatch, encode: Encode) -> Encode:
    """`encode` as a part of the step."""

    def run(visual: nn.Module, patches: Tensor, grid: Grid) -> Tensor:
        with watch(name):
            return encode(visual, patches, grid)

    return run


def timed_passes(recipe: Recipe, watch: Stopwatch) -> tuple[Pass, Pass]:
    """Passes of student and teacher as training makes them."""
    how = passes(recipe)
    own = replace(how, encode=timed_encode("student vision", watch, how.encode))
    theirs = replace(how, encode=timed_encode("teacher vision", watch, how.encode), checkpointing=False)
    return own, theirs


def make_recipe(block: int = 32, **given: object) -> Recipe:
    """Stage 2 as a recipe for blocks of `block`; `given`: its fields. By default JSD and the autoregressive loss."""
    base: dict[str, object] = {
        "name": "real size",
        "teacher": "random weights",
        "teacher_block_size": 16,
        "distill_weight": 1.0,
        "ce_weight": 0.0,
        "ar_weight": 0.3,
        "phases": (Phase(1.0, {block: 1.0}),),
        "max_steps": 1000,
        "warmup_steps": 5,
        "ema": 0.0,
    }
    return Recipe(**(base | given))  # type: ignore[arg-type]


@dataclass
class Trial:
    """A student, its teacher and what a step needs. On several processes each has its own batches."""

    student: nn.Module
    teacher: TimedTeacher
    method: Method
    recipe: Recipe
    optimiser: torch.optim.Optimizer
    blocks: BlockSizes
    watch: Stopwatch
    team: Team
    done: int = 0
    history: list[Tensor] = field(default_factory=list)

    def step(self, batch: TrainBatch, generator: torch.Generator) -> None:
        """One optimiser step; its losses are kept on the device."""
        weights = list(self.student.parameters())
        self.watch.begin_step()
        with self.watch("step"), gathered(self.teacher.model):
            set_rates(self.optimiser, min(1.0, (self.done + 1) / self.recipe.warmup_steps))
            with self.watch("forward"):
                loss, parts = self.losses(batch, generator)
            with self.watch("backward"):
                (loss * self.team.loss_scale).backward()
                self.team.sum_gradients(weights)
            with self.watch("optimiser"):
                self.team.clip(weights, self.recipe.clip)
                self.optimiser.step()
                self.optimiser.zero_grad(set_to_none=True)
        self.history.append(parts)
        self.done += 1

    def losses(self, batch: TrainBatch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """This process' share of the loss, and detached (3,): loss, divergence from the teacher, autoregressive loss
        of this batch."""
        return self.team.on_whole(self.student, self._losses)(batch, generator)

    def _losses(self, batch: TrainBatch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        with torch.autocast(self.team.device.type, dtype=torch.bfloat16, enabled=self.recipe.bf16):
            found = batch_losses(self.student, batch, self.method, self.blocks, generator, self.teacher)
        shares = found.shares["answers"]
        parts = torch.stack([found.loss * self.team.world, shares["distill"].mean(), shares["ar"].mean()])
        return found.loss, parts.detach()

    def evaluate(self, batches: Sequence[TrainBatch]) -> dict[str, float]:
        """Mean losses over the set under a fixed corruption. With gradients on, so as to need no other kernels."""
        total = torch.zeros(3, device=self.team.device)
        with gathered(self.teacher.model):
            for number, batch in enumerate(batches):
                generator = torch.Generator(device=self.team.device).manual_seed(NOISE_SEED + number)
                total += self.losses(batch, generator)[1]
        loss, distill, ar = self._mean(total / len(batches)).tolist()
        return {"loss": loss, "divergence": distill, "autoregressive": ar}

    def curve(self) -> list[list[float]]:
        """(loss, divergence, autoregressive loss) of each step."""
        return self._mean(torch.stack(self.history)).tolist()

    def _mean(self, values: Tensor) -> Tensor:
        return self.team.total(values) / self.team.world


def make_trial(
    student: nn.Module, teacher: nn.Module, recipe: Recipe, layout: Layout, mask_token_id: int, team: Team
) -> Trial:
    """Put the parts together; models on the team's device, whole. With fsdp both are sharded here."""
    watch = Stopwatch(team.device)
    student.train()
    teacher.eval().requires_grad_(False)
    how, theirs = timed_passes(recipe, watch)
    how, theirs = team.shard(student, how, how.cast), team.shard(teacher, theirs, theirs.cast)
    return Trial(
        student=student,
        teacher=TimedTeacher(teacher, layout, theirs, recipe.teacher_block_size, watch),
        method=Method(mask_token_id, layout, how, recipe, team.total),
        recipe=recipe,
        optimiser=optimiser(student, recipe),
        blocks=BlockSizes.of(recipe.phases[0].blocks, team.device),
        watch=watch,
        team=team,
    )
