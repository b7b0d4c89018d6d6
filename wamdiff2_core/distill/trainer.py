"""The one training loop: draw, step, average, log, save. It only loops; what a step is stands in step.py."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from wamdiff2_core.distill.batch import TrainBatch
from wamdiff2_core.distill.captured import CapturedStep
from wamdiff2_core.distill.checkpoint import check_writable, mend
from wamdiff2_core.distill.forward import Pass, text_layer
from wamdiff2_core.distill.log import TrainLog
from wamdiff2_core.distill.on_policy import own_answers
from wamdiff2_core.distill.optimise import Averages, Clock, optimiser, set_rates
from wamdiff2_core.distill.parallel import Team, gathered, rank_seed
from wamdiff2_core.distill.plots import write_plots
from wamdiff2_core.distill.recipe import Phase, Recipe
from wamdiff2_core.distill.resume import RunState
from wamdiff2_core.distill.sources import Source, start_source
from wamdiff2_core.distill.step import BlockSizes, Losses, Method, batch_losses
from wamdiff2_core.distill.student import Student
from wamdiff2_core.distill.teacher import Teacher, load_teacher
from wamdiff2_core.distill.watch import Watch
from wamdiff2_core.errors import ConfigError, Wamdiff2Error
from wamdiff2_core.model.vision import encode_batch, vision_block


class DivergedError(Wamdiff2Error):
    """The loss is no longer a number."""


def run_recipe(recipe: Recipe) -> Path:
    """Train one recipe from start to end; the checkpoint folder."""
    return run_chain([recipe])[-1]


def run_chain(
    recipes: Sequence[Recipe], watch_of: Callable[[Recipe], Watch | None] = lambda recipe: None
) -> list[Path]:
    """Train recipes one after the other on one source of frames. ConfigError where their data settings differ.

    watch_of: what evaluates a recipe's checkpoints during training and at its end.
    Under torchrun this is one of its processes.
    """
    _check_chain(recipes)
    source: Source | None = None
    watches = [watch_of(recipe) for recipe in recipes]  # what is wrong with one shows before the first stage
    checkpoints = []
    with Team.of(recipes[0]) as team:
        try:
            for recipe, watch in zip(recipes, watches, strict=True):
                trainer = Trainer(recipe, source, team, watch)
                source = trainer.source
                checkpoints.append(trainer.run())
                del trainer
                gc.collect()  # its optimiser and gradients leave the device
        finally:
            if source is not None:
                source.close()
    return checkpoints


# One source of data serves a chain: another value in a later recipe would be ignored.
_SHARED = ("parallel", "device", "source", "data", "holdout", "follow", "ring_frames", "cameras", "prompt_room")
_SHARED_STREAM = ("parallel", "device", "source", "files", "image_root", "max_tokens", "attention")


def _check_chain(recipes: Sequence[Recipe]) -> None:
    names = _SHARED_STREAM if recipes[0].source == "stream" else _SHARED
    other = [name for name in names if any(getattr(recipe, name) != getattr(recipes[0], name) for recipe in recipes)]
    if other:
        raise ConfigError(
            f"recipes that follow one another read the same data on the same devices: expected one value of "
            f"{', '.join(other)} for all; train them in commands of their own"
        )


class Trainer:
    """A run of one recipe on one rank. `run()` trains, saves and returns the checkpoint folder.

    source: that of the stage before, to go on with its frames; None makes a new one. team: None trains alone.
    accumulate: the gradient is the mean over that many batches, each divided by its own count of tokens.
    """

    def __init__(
        self,
        recipe: Recipe,
        source: Source | None = None,
        team: Team | None = None,
        watch: Watch | None = None,
    ) -> None:
        for name in ("init", "out"):
            if not getattr(recipe, name):
                raise ConfigError(f"recipe {recipe.name}: {name} must be set")
        if team is None and recipe.parallel != "none":
            raise ConfigError(f"recipe {recipe.name}: parallel {recipe.parallel} needs a team; see run_chain")
        self.team, self.watch = team or Team(torch.device(recipe.device)), watch
        self.recipe = recipe = replace(recipe, device=str(self.team.device))
        self.device, self.out = self.team.device, Path(recipe.out)
        if self.team.leads:
            check_writable(self.out)
            mend(self.checkpoint)
        _set_up_torch(recipe)
        self.student = Student.load(recipe)
        self.model = self.student.model
        self.source = _source(recipe, self.student, self.team, source)
        how = passes(recipe)
        self.teacher = _teacher(recipe, self.student, self.team, how, self.source.image_tokens)
        self.how = self.team.shard(self.model, how, torch.bfloat16 if recipe.bf16 else None)
        layout = self.student.layout(self.source.image_tokens)
        self.method = Method(self.student.mask_token_id, layout, self.how, recipe, self.team.total)
        self._losses = self.team.on_whole(self.model, self._losses_of)
        self.optimiser = optimiser(self.model, recipe)
        self.averages = Averages(self.model, recipe.ema) if recipe.ema else None
        self.generator = torch.Generator(device=self.device)
        self.generator.manual_seed(rank_seed(recipe.seed + 1, self.team.rank))
        self.clock = Clock(recipe)
        self.phase: Phase | None = None
        self.blocks: BlockSizes | None = None
        generators = [self.generator, *self.source.generators]
        self._step = CapturedStep(self._compute, generators) if recipe.capture else self._compute

    @property
    def checkpoint(self) -> Path:
        return self.out / "checkpoint"

    @property
    def state(self) -> RunState:
        """What is saved and resumed."""
        return RunState(self.team, self.model, self.optimiser, self.averages, self.clock, self.generator, self.source)

    def run(self) -> Path:
        """Train to the end of the recipe, going on from `out`/state.pt if there is one."""
        self.source.fill()
        self.resume()
        with TrainLog(self.out, self.recipe, self.team.rank, self.team.total, self.team.everyones) as log:
            self._loop(log)
            self.save()
            self._evaluate(log)
        if self.team.leads:
            write_plots(self.out, self.recipe)
        return self.checkpoint

    def _loop(self, log: TrainLog) -> None:
        self.clock.start()
        saved = self.clock.seconds
        log.begin(self.clock.step, self.source)
        if self.watch is not None:
            self.watch.begin(self.clock.seconds)
        while self.clock.progress < 1.0:
            self.source.poll()
            log.add(self.train_step())
            self.clock.tick(self.team.agreed)
            if self.clock.step % self.recipe.log_every == 0:
                self._check(self._write(log))
            if self.clock.seconds - saved > 60.0 * self.recipe.save_minutes:
                self.save()
                saved = self.clock.seconds
            if self.watch is not None and self.watch.due(self.clock.seconds):
                self._check(self._write(log))
                self.save()
                self._evaluate(log)
                saved = self.clock.seconds
        self._check(self._write(log))

    def _evaluate(self, log: TrainLog) -> None:
        """Figures of what was just saved, unless they are known. All ranks call it; its time is none of training's."""
        if self.watch is None:
            return
        if self.team.leads and not log.evaluated(self.clock.step):
            log.evaluation(self.clock, self.watch.evaluate(self.checkpoint, self.clock.step))
        self.team.wait()
        self.clock.start()

    def _write(self, log: TrainLog) -> float:
        return log.write(self.clock, float(self.optimiser.param_groups[0]["lr"]), self.source)

    def train_step(self) -> Losses:
        """One optimiser step; everything stays on the device. Losses are this rank's share: over ranks they add up."""
        set_rates(self.optimiser, self.clock.lr_factor())
        self._enter_phase()
        if self.averages is not None:
            self.averages.plan(self.clock.step + 1)
        losses = self._step()
        self.clock.step += 1
        return losses

    def _enter_phase(self) -> None:
        phase = self.recipe.phase(self.clock.progress)
        if phase is None or phase is self.phase:
            return
        self.phase = phase
        if self.blocks is None:
            self.blocks = BlockSizes.of(phase.blocks, self.device)
        else:
            self.blocks.set(phase.blocks)

    def _compute(self) -> Losses:
        """Gradients, then the update. This is what a capture holds."""
        losses = self.backward()
        self.team.clip(list(self.model.parameters()), self.recipe.clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=not self.recipe.capture)
        if self.averages is not None:
            self.averages.update()
        return losses

    def backward(self) -> Losses:
        """Forward and backward over `accumulate` batches: gradients over all ranks, losses of the last batch."""
        for _ in range(self.recipe.accumulate):
            with gathered(None if self.teacher is None else self.teacher.model):
                with self._autocast():
                    losses = self._batch_losses()
                (losses.loss * (self.team.loss_scale / self.recipe.accumulate)).backward()
        self.team.sum_gradients(self.model.parameters())
        return losses

    def _batch_losses(self) -> Losses:
        batch = self.source.draw()
        every = self.recipe.on_policy_every
        if every and (self.clock.step + 1) % every == 0:
            assert self.phase is not None  # a recipe with on_policy_every has phases
            batch = own_answers(self.student.loaded, batch, max(self.phase.blocks))
        return self._losses(batch)[1]

    def _losses_of(self, batch: TrainBatch) -> tuple[Tensor, Losses]:
        losses = batch_losses(self.model, batch, self.method, self.blocks, self.generator, self.teacher)
        losses = replace(losses, loss=self.team.with_all_weights(losses.loss, self.model, batch))
        return losses.loss, losses

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        if not self.recipe.bf16:
            yield
            return
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            yield

    def _check(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise DivergedError(f"step {self.clock.step}: loss {loss}{self._way_back()}")

    def _way_back(self) -> str:
        """What is left of a run that diverged: whatever was saved was sound."""
        saved = self.out / "state.pt"
        where = f"{saved} is from before: the same command goes on from there" if saved.exists() else "start again"
        return f"; {where}, with a smaller lr"

    def save(self) -> None:
        """The averaged weights as a checkpoint folder, and all that resuming needs; each appears whole or not at
        all. All ranks call it.
        """
        if not self.team.agree_finite(self.model.parameters()):
            raise DivergedError(f"step {self.clock.step}: a weight is no longer a number{self._way_back()}")
        weights = self.averages.named() if self.averages is not None else None
        self.student.save(self.checkpoint, weights, self.team)
        self.state.save(self.out / "state.pt")

    def resume(self) -> bool:
        """Go on where `out`/state.pt stopped: weights, optimiser, averages, schedule, data and random numbers.

        ConfigError where ranks see different files: `out` must be a folder that all machines share.
        """
        path = self.out / "state.pt"
        there = path.exists()
        if not self.team.unanimous(float(there)):
            raise ConfigError(f"{path}: only some ranks see it; expected `out` in a folder that all machines share")
        if there:
            changed = self.state.load(path)
            if not self.team.unanimous(float(self.clock.step)):
                raise ConfigError(
                    f"{path}: step {self.clock.step} here, another one on rank 0; expected `out` in a folder that all "
                    "machines share"
                )
            if self.team.leads:
                print(_gone_on_with(path, self.clock, changed), flush=True)
        return there


def _gone_on_with(path: Path, clock: Clock, changed: Sequence[str]) -> str:
    done = clock.progress >= 1.0
    head = f"{path}: step {clock.step}, {'this run is at its end' if done else 'going on'}"
    return f"{head}; settings that are others now: {'; '.join(changed)}" if changed else head


def passes(recipe: Recipe) -> Pass:
    """How forward passes are made on this machine by this recipe."""
    how = Pass(torch.bfloat16 if recipe.bf16 else torch.float32, checkpointing=recipe.gradient_checkpointing)
    if not recipe.compile:
        return how
    return replace(how, layer=_compiled_layer, encode=partial(encode_batch, layer=_compiled_block))


# Layers, not whole models: each is compiled once and serves all layers of all models of its shape.
_compiled_layer = torch.compile(text_layer, dynamic=False)
_compiled_block = torch.compile(vision_block, dynamic=False)


def _set_up_torch(recipe: Recipe) -> None:
    torch.manual_seed(recipe.seed)
    torch.set_float32_matmul_precision("high")
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    if recipe.device.startswith("cuda"):
        # masks of every shape: the memory-efficient kernel needs no plan per shape
        torch.backends.cuda.enable_cudnn_sdp(False)


def _source(recipe: Recipe, student: Student, team: Team, before: Source | None) -> Source:
    if before is None:
        return start_source(recipe, student.entry, team)
    before.begin(recipe)
    return before


def _teacher(recipe: Recipe, student: Student, team: Team, how: Pass, image_tokens: int) -> Teacher | None:
    if not recipe.teacher:
        return None
    dtype = "bfloat16" if recipe.bf16 else "float32"
    how = replace(how, checkpointing=False)
    teacher = load_teacher(recipe.teacher, student.loaded, recipe.teacher_block_size, how, dtype, image_tokens)
    return replace(teacher, how=team.shard(teacher.model, how))
