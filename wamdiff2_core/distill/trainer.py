"""The one training loop: draw, step, average, log, save. It only loops; what a step is stands in step.py."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import Qwen3VLForConditionalGeneration

from wamdiff2_core.distill import forward
from wamdiff2_core.distill.checkpoint import load_state, save_folder, save_state
from wamdiff2_core.distill.data import Feeder, Ring, wait_for
from wamdiff2_core.distill.log import TrainLog
from wamdiff2_core.distill.recipe import Recipe
from wamdiff2_core.distill.samples import DataSpec
from wamdiff2_core.distill.step import Losses, Method, batch_losses
from wamdiff2_core.errors import ConfigError, Wamdiff2Error


class DivergedError(Wamdiff2Error):
    """The loss is no longer a number."""


@dataclass
class Clock:
    """How far the run is: steps done and seconds of training spent, over all sittings."""

    recipe: Recipe
    step: int = 0
    spent_s: float = 0.0
    since: float = 0.0

    def start(self) -> None:
        self.since = time.monotonic()

    @property
    def seconds(self) -> float:
        return self.spent_s + (time.monotonic() - self.since if self.since else 0.0)

    @property
    def progress(self) -> float:
        """0 at the start, 1 at whichever limit comes first."""
        by_step = self.step / self.recipe.max_steps if self.recipe.max_steps else 0.0
        by_time = self.seconds / (60.0 * self.recipe.max_minutes) if self.recipe.max_minutes else 0.0
        return min(1.0, max(by_step, by_time))

    def lr_factor(self) -> float:
        """Warm-up, then a cosine down to `final_lr`."""
        floor = self.recipe.final_lr
        warm = min(1.0, (self.step + 1) / max(1, self.recipe.warmup_steps))
        return warm * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * self.progress)))


class Averages:
    """Exponential moving average of the weights: what is evaluated and saved."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.names = [name for name, _ in model.named_parameters()]
        self.source = [weight for _, weight in model.named_parameters()]
        self.values = [weight.detach().clone() for weight in self.source]

    def update(self, step: int) -> None:
        """Early on the average forgets faster, so that it does not carry the random start."""
        decay = min(self.decay, (1.0 + step) / (10.0 + step))
        with torch.no_grad():
            torch._foreach_lerp_(self.values, [weight.detach() for weight in self.source], 1.0 - decay)

    def named(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.values, strict=True))

    def load(self, values: dict[str, Tensor]) -> None:
        for name, mine in zip(self.names, self.values, strict=True):
            mine.copy_(values[name])


def data_spec(recipe: Recipe, entry: dict) -> DataSpec:
    """What to read, from the checkpoint's block_diffusion entry and the recipe's cameras."""
    sizes = entry.get("image_sizes", {})
    missing = [camera for camera in recipe.cameras if camera not in sizes]
    if missing:
        raise ConfigError(f"recipe {recipe.name}: the checkpoint names no image size for {', '.join(missing)}")
    return DataSpec(
        recipe.init,
        tuple((sizes[c][0], sizes[c][1]) for c in recipe.cameras),
        prompt_room=dict(recipe.prompt_room),
        seed=recipe.seed,
    )


def optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW in four groups: vision or text, with weight decay (matrices) or without (vectors)."""
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        groups.setdefault((".visual." in name, weight.ndim >= 2 and "embed" not in name), []).append(weight)
    parts = [
        {
            "params": weights,
            "base": recipe.vision_lr if vision else recipe.lr,
            "weight_decay": recipe.weight_decay if decays else 0.0,
        }
        for (vision, decays), weights in groups.items()
    ]
    return torch.optim.AdamW(parts, lr=recipe.lr, betas=recipe.betas, fused=recipe.device.startswith("cuda"))


@dataclass(frozen=True)
class Source:
    """Frames on the device and what feeds them; outlives a stage when the next one trains on the same data."""

    ring: Ring
    feeder: Feeder

    @classmethod
    def start(cls, recipe: Recipe, spec: DataSpec) -> Source:
        folders = [Path(folder) for folder in recipe.data]
        feeder = Feeder(folders, spec, workers=recipe.workers, follow=recipe.follow, holdout=recipe.holdout)
        return cls(Ring(spec, recipe.ring_frames, torch.device(recipe.device), recipe.seed), feeder.start())

    def close(self) -> None:
        self.feeder.close()


def run_recipe(recipe: Recipe) -> Path:
    """Train one recipe from start to end; the checkpoint folder."""
    return run_chain([recipe])[-1]


def run_chain(recipes: Sequence[Recipe]) -> list[Path]:
    """Train recipes one after the other on one source of frames. Data settings are those of the first."""
    source: Source | None = None
    checkpoints = []
    try:
        for recipe in recipes:
            trainer = Trainer(recipe, source)
            source = trainer.source
            checkpoints.append(trainer.run())
            del trainer  # its optimiser and gradients leave the device
    finally:
        if source is not None:
            source.close()
    return checkpoints


class Trainer:
    """A run of one recipe in one process. `run()` trains, saves and returns the checkpoint folder.

    source: the ring and feeder of the stage before, to go on with its frames; None makes new ones.
    """

    def __init__(self, recipe: Recipe, source: Source | None = None) -> None:
        for name in ("init", "data", "out"):
            if not getattr(recipe, name):
                raise ConfigError(f"recipe {recipe.name}: {name} must be set")
        self.recipe, self.device, self.out = recipe, torch.device(recipe.device), Path(recipe.out)
        torch.manual_seed(recipe.seed)
        torch.set_float32_matmul_precision("high")
        if recipe.threads:
            torch.set_num_threads(recipe.threads)
        self.model = Qwen3VLForConditionalGeneration.from_pretrained(
            recipe.init, dtype=torch.float32, attn_implementation="sdpa"
        )
        self.model.to(self.device).train()
        entry = self.model.config.block_diffusion
        self.spec = data_spec(recipe, entry)
        self.method = Method(
            entry["mask_token_id"],
            entry["prediction"],
            entry["context"],
            self.spec.order(),
            torch.bfloat16 if recipe.bf16 else torch.float32,
            recipe,
        )
        if self.device.type == "cuda":
            torch.backends.cuda.enable_cudnn_sdp(
                False
            )  # masks of every shape; the memory-efficient kernel needs no plan per shape
        self.source = source or Source.start(recipe, self.spec)
        self.ring = self.source.ring
        self.optimiser = optimiser(self.model, recipe)
        self.averages = Averages(self.model, recipe.ema) if recipe.ema else None
        self.generator = torch.Generator(device=self.device)
        self.generator.manual_seed(recipe.seed + 1)
        self.clock = Clock(recipe)
        if recipe.compile:
            forward.text_layer = torch.compile(forward.text_layer, dynamic=False)

    @property
    def checkpoint(self) -> Path:
        return self.out / "checkpoint"

    def run(self) -> Path:
        """Train to the end of the recipe, going on from `out`/state.pt if there is one."""
        feeder = self.source.feeder
        enough = self.recipe.min_frames if self.recipe.follow else self.recipe.ring_frames
        wait_for(self.ring, feeder, enough, self.recipe.wait_s)
        self.resume()
        with TrainLog(self.out, self.recipe) as log:
            self._loop(feeder, log)
        self.save()
        return self.checkpoint

    def _loop(self, feeder: Feeder, log: TrainLog) -> None:
        self.clock.start()
        saved = time.monotonic()
        log.begin(self.clock.step, self.ring)
        while self.clock.progress < 1.0:
            for frames in feeder.poll():
                self.ring.write(frames)
            losses = self.train_step()
            log.add(losses)
            if self.clock.step % self.recipe.log_every == 0:
                self._check(log.write(self.clock, self.optimiser.param_groups[0]["lr"], self.ring))
            if time.monotonic() - saved > 60.0 * self.recipe.save_minutes:
                self.save()
                saved = time.monotonic()
        self._check(log.write(self.clock, self.optimiser.param_groups[0]["lr"], self.ring))

    def train_step(self) -> Losses:
        """One optimiser step; everything stays on the device."""
        recipe = self.recipe
        factor = self.clock.lr_factor()
        for group in self.optimiser.param_groups:
            group["lr"] = group["base"] * factor
        phase = recipe.phase(self.clock.progress)
        with self._autocast():
            batch = self.ring.draw(recipe.frames_per_step, recipe.augment)
            losses = batch_losses(self.model, batch, self.method, phase.blocks if phase else None, self.generator)
        losses.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.clock.step += 1
        if self.averages is not None:
            self.averages.update(self.clock.step)
        return losses

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        if not self.recipe.bf16:
            yield
            return
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            yield

    def _check(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise DivergedError(
                f"step {self.clock.step}: loss {loss}; start again from {self.out}/state.pt with a smaller lr"
            )

    def save(self) -> None:
        """The averaged weights as a checkpoint folder, and all that resuming needs; each appears whole or not at
        all.
        """
        weights = self.averages.named() if self.averages is not None else None
        save_folder(self.model, Path(self.recipe.init), self.checkpoint, weights)
        save_state(
            {
                "model": self.model.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "step": self.clock.step,
                "spent_s": self.clock.seconds,
                "averages": weights,
                "generator": self.generator.get_state(),
                "ring_generator": self.ring.generator.get_state(),
                "torch": torch.get_rng_state(),
            },
            self.out / "state.pt",
        )

    def resume(self) -> bool:
        """Go on where `out`/state.pt stopped: weights, optimiser, averages, schedule and random numbers."""
        path = self.out / "state.pt"
        if not path.exists():
            return False
        state = load_state(path, self.device)
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.clock.step, self.clock.spent_s = state["step"], state["spent_s"]
        if self.averages is not None and state["averages"] is not None:
            self.averages.load(state["averages"])
        self.generator.set_state(state["generator"].cpu())
        self.ring.generator.set_state(state["ring_generator"].cpu())
        torch.set_rng_state(state["torch"].cpu())
        return True
