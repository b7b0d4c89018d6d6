"""What two processes do for test_parallel.py: ddp and fsdp on the same rows; rank 0 writes what came out."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from micro import micro_recipe

from wamdiff2_core.distill.batch import RingBatch
from wamdiff2_core.distill.optimise import Clock
from wamdiff2_core.distill.parallel import Team, collected
from wamdiff2_core.distill.recipe import Recipe
from wamdiff2_core.distill.sources import RingSource
from wamdiff2_core.distill.stream.packing import StreamBatch
from wamdiff2_core.distill.stream.source import StreamSource
from wamdiff2_core.distill.trainer import Trainer

LIVE = (5, 1)  # answer tokens of the plan of each rank's frame
KINDS = ("ddp", "fsdp")


def recipe_of(folder: Path, shards: Path, out: Path, **values) -> Recipe:
    """Blocks of one token: every answer token is masked, so that nothing depends on random numbers."""
    base = {
        "init": str(folder), "data": [str(shards)], "out": str(out), "max_steps": 4, "prediction": "same", "ema": 0.9,
        "phases": [{"until": 1.0, "blocks": {1: 1.0}}], "complementary": False, "warmup_steps": 1, "log_every": 1,
        "tensorboard": False,
    }  # fmt: skip
    return micro_recipe(**{**base, **values})


@dataclass
class Frames:
    """Always the same frames of a ring, with plans of LIVE tokens."""

    source: RingSource
    chosen: list[int]
    device = torch.device("cpu")
    seen = 0

    def draw(self) -> RingBatch:
        frames = torch.tensor(self.chosen)
        batch = self.source.ring.batch(frames)
        plan = batch.rows["plan"]
        live = torch.tensor([LIVE[frame] for frame in self.chosen])
        plan = replace(plan, answer_length=live, given=torch.zeros_like(plan.given))
        return RingBatch(replace(batch, rows={**batch.rows, "plan": plan}), self.source.ring.spec.order())

    image_tokens = property(lambda self: self.source.image_tokens)
    filled = property(lambda self: len(self.chosen))
    bad = property(lambda self: Counter())
    bad_names = property(lambda self: [])
    generators = property(lambda self: [])

    def begin(self, recipe: Recipe) -> None: ...

    def fill(self) -> None: ...

    def poll(self) -> None: ...

    def state(self) -> dict:
        return {"chosen": self.chosen}

    def restore(self, state: dict) -> None:
        self.restored = state["chosen"]

    def close(self) -> None: ...


@dataclass
class Always(Frames):
    """Always the same batch."""

    batch: StreamBatch
    image_tokens = 0

    def draw(self) -> StreamBatch:
        return self.batch


def frames_of(recipe: Recipe, chosen: list[int]) -> Frames:
    from wamdiff2_core.model.checkpoint import read_json

    source = RingSource.start(recipe, read_json(Path(recipe.init) / "config.json")["block_diffusion"])
    source.fill()
    return Frames(source, chosen)


def gradients(trainer: Trainer, limit: float = 1e9) -> dict:
    """Loss and whole gradients over all ranks; clipped to a norm of `limit`."""
    trainer._enter_phase()
    losses = trainer.backward()
    trainer.team.clip(list(trainer.model.parameters()), limit)
    weights = dict(trainer.model.named_parameters())
    found = {name: torch.zeros_like(weight) if weight.grad is None else weight.grad for name, weight in weights.items()}
    found = collected(found, keep=True)
    trainer.optimiser.zero_grad()
    loss = float(trainer.team.total(losses.loss.detach()))
    return {"loss": loss, "gradients": found, "tokens": float(losses.tokens)}


def snapshot(trainer: Trainer) -> dict:
    """Everything that a saved run must give back."""
    state = trainer.state
    parts = {
        "weights": dict(trainer.model.named_parameters()), "moments": state._moments(),
        "averages": state.averages.named(),
    }  # fmt: skip
    found = {part: collected(tensors, keep=True) for part, tensors in parts.items()}
    kept = {part: {name: value.clone() for name, value in tensors.items()} for part, tensors in found.items()}
    return {**kept, "step": trainer.clock.step}


def run(rank: int, world: int, port: int, folders: dict[str, Path]) -> None:
    """A process of the team; rank 0 writes folders["out"]/KIND.pt."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_PORT": str(port),
                   "MASTER_ADDR": "127.0.0.1"}  # fmt: skip
    torch.set_num_threads(1)
    for kind in KINDS:
        found = _in_team(kind, rank, folders)
        if rank == 0:
            torch.save(found, folders["out"] / f"{kind}.pt")


def _in_team(kind: str, rank: int, folders: dict[str, Path]) -> dict:
    micro, shards, out = folders["micro"], folders["shards"], folders["out"]
    plain = recipe_of(micro, shards, out / kind, parallel=kind)
    taught = {"teacher": str(folders["teacher"]), "distill_weight": 1.0, "teacher_block_size": 0}
    recipes = {
        "plain": plain,
        "taught": recipe_of(micro, shards, out / "none", parallel=kind, **taught),
        "chunks": recipe_of(micro, shards, out / "none", parallel=kind, chunk_tokens=7, **taught),
        "checkpointing": recipe_of(micro, shards, out / "none", parallel=kind, gradient_checkpointing=True),
        "ar": recipe_of(micro, shards, out / "none", parallel=kind, phases=[], prediction="next"),
    }
    source, found = frames_of(plain, [rank]), {}
    with Team.of(plain) as team:
        for name, recipe in recipes.items():
            found[name] = gradients(Trainer(recipe, source, team))
        trainer = Trainer(plain, source, team)
        found["uneven"] = _uneven(kind, rank, team, folders)
        found["clipped"] = gradients(trainer, 0.01)
        trainer.resume()  # what one process saved there
        found["resumed"], found["place"] = snapshot(trainer), source.restored
        trainer.train_step()
        trainer.save()
        found["saved"] = snapshot(trainer)
        found["random"], found["seconds"] = _random(kind, team, folders), _seconds(plain, team)
    source.source.close()
    return found


def _uneven(kind: str, rank: int, team: Team, folders: dict[str, Path]) -> dict:
    """Packed streams, with pictures on rank 0 and none on rank 1: by the team, and by each rank alone."""
    file = folders["files"] / ("seen.json", "text.json")[rank]
    stream = {
        "source": "stream", "files": [str(file)], "max_tokens": 256, "workers": 0, "phases": [], "prediction": "next",
        "context": "causal", "parallel": kind,
    }  # fmt: skip
    recipe = recipe_of(folders["upstream"], folders["shards"], folders["out"] / "none", **stream)
    reader = StreamSource.start(recipe)
    source = Always(None, [], reader.draw())
    single = gradients(Trainer(replace(recipe, parallel="none"), source))
    both = gradients(Trainer(recipe, source, team))
    tokens = torch.tensor(single["tokens"])
    share = tokens / team.total(tokens)
    expected = {name: team.total(value * share) for name, value in single["gradients"].items()}
    return {"gradients": both["gradients"], "expected": expected, "pictures": team.everyones(source.batch.pictures)}


def _random(kind: str, team: Team, folders: dict[str, Path]) -> dict:
    """Losses of a step after a save, and of that step in a run that goes on from it; random frames and masks."""
    phases = [{"until": 1.0, "blocks": {4: 0.5, 8: 0.5}}]
    out = folders["out"] / f"random_{kind}"
    recipe = recipe_of(
        folders["micro"], folders["shards"], out, parallel=kind, phases=phases, frames_per_step=2, max_steps=3
    )
    first = Trainer(recipe, None, team)
    first.source.fill()
    first.train_step()
    first.save()
    mine = first.train_step().loss.detach()
    second = Trainer(recipe, None, team)
    second.source.fill()
    second.resume()
    again = second.train_step().loss.detach()
    second.save()
    third = Trainer(recipe, None, team)
    third.run()
    for trainer in (first, second, third):
        trainer.source.close()
    return {"first": team.everyones(float(mine)), "again": team.everyones(float(again)), "step": third.clock.step}


def _seconds(recipe: Recipe, team: Team) -> list[float]:
    """What ranks whose clocks differ take for the time."""
    clock = Clock(recipe, since=time.monotonic() - 100.0 * (1 + team.rank))
    clock.tick(team.agreed)
    return team.everyones(clock.seconds)
