"""Everything that going on with a run needs, in one file that any number of ranks can write and read.

Weights, optimiser, averages and schedule are the run's and go over to another number of ranks exactly. Random numbers
and the place in the data are each rank's own: with as many ranks as before they go on where they were. With fewer,
those of the ranks that are gone are lost; a new rank has new random numbers and reads data from where rank 0 is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wamdiff2_core.distill.checkpoint import load_state, save_state
from wamdiff2_core.distill.optimise import Averages, Clock
from wamdiff2_core.distill.parallel import Team, branch, collected, sharded_as
from wamdiff2_core.distill.recipe import Recipe
from wamdiff2_core.distill.sources import Source
from wamdiff2_core.errors import CheckpointError

FORMAT = 2
# Settings that may change between two sittings without a word: they change nothing of what is learnt.
SILENT = {
    *("name", "out", "device", "workers", "threads", "wait_s", "log_every", "save_minutes", "tensorboard"),
    *("evaluate", "evaluate_minutes", "evaluate_data", "evaluate_frames", "evaluate_routes", "evaluate_decoding"),
}


@dataclass(frozen=True)
class RunState:
    """The parts of a run that change from step to step."""

    team: Team
    model: nn.Module
    optimiser: torch.optim.Optimizer
    averages: Averages | None
    clock: Clock
    generator: torch.Generator
    source: Source

    def save(self, path: Path) -> None:
        """Gathered tensor by tensor in rank 0's memory and written whole or not at all. All ranks call it."""
        leads = self.team.leads
        ranks = self.team.everyones(self._own())
        state = {
            "format": FORMAT,
            "model": collected(dict(self.model.named_parameters()), leads),
            "optimiser": collected(self._moments(), leads),
            "averages": None if self.averages is None else collected(self.averages.named(), leads),
            "step": self.clock.step,
            "spent_s": self.clock.seconds,
            "recipe": _said(self.clock.recipe),
            "ranks": ranks,
        }
        if leads:
            save_state(state, path)
        self.team.wait()

    def load(self, path: Path) -> list[str]:
        """Settings of the recipe that were others when it was saved, as "lr: 0.001, now 0.01".

        Raises CheckpointError when the file is not of this model, or of a recipe of another name.
        """
        state = load_state(path)
        weights = dict(self.model.named_parameters())
        if state.get("format") != FORMAT or _shapes(state["model"]) != _shapes(weights):
            raise CheckpointError(f"{path}: expected the state (format {FORMAT}) of a run that trains this model")
        before, now = state.get("recipe"), _said(self.clock.recipe)
        if before is not None and before["name"] != now["name"]:
            raise CheckpointError(
                f"{path}: here is the run of recipe {before['name']}, step {state['step']}; expected a folder of its "
                f"own for recipe {now['name']}: set another out, or remove that run"
            )
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(sharded_as(state["model"][name], weight))
        self._load_moments(state["optimiser"])
        self.clock.step, self.clock.spent_s = state["step"], state["spent_s"]
        if self.averages is not None:
            self.averages.load(state["averages"])
        self._take_own(state["ranks"])
        return _changed(before, now)

    def _moments(self) -> dict[str, Tensor]:
        """What the optimiser keeps of each weight, as "weight/what"."""
        found = {}
        for name, weight in self.model.named_parameters():
            for what, value in self.optimiser.state.get(weight, {}).items():
                found[f"{name}/{what}"] = value
        return found

    def _load_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Rates and other settings stay those of the recipe."""
        names = {id(weight): name for name, weight in self.model.named_parameters()}
        ordered = [weight for group in self.optimiser.param_groups for weight in group["params"]]
        by_name: dict[str, dict[str, Tensor]] = {}
        for key, value in moments.items():
            name, _, what = key.rpartition("/")
            by_name.setdefault(name, {})[what] = value
        state = {
            index: {
                what: sharded_as(value, weight).clone() if value.ndim else value.clone()
                for what, value in by_name[names[id(weight)]].items()
            }
            for index, weight in enumerate(ordered)
            if names[id(weight)] in by_name
        }
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state, "param_groups": groups})

    def _own(self) -> dict[str, Any]:
        return {
            "generator": self.generator.get_state(),
            "source": self.source.state(),
            "torch": torch.get_rng_state(),
        }

    def _take_own(self, ranks: list[dict[str, Any]]) -> None:
        if self.team.rank < len(ranks):
            mine = ranks[self.team.rank]
            self.generator.set_state(mine["generator"])
            torch.set_rng_state(mine["torch"])
        else:
            mine = ranks[0]
            branch(self.generator, mine["generator"], self.team.rank)
        self.source.restore(mine["source"])


def _said(recipe: Recipe) -> dict[str, str]:
    """The recipe's settings as texts."""
    return {name: str(value) for name, value in vars(recipe).items()}


def _changed(before: Mapping[str, str] | None, now: Mapping[str, str]) -> list[str]:
    names = [name for name in now if name not in SILENT and before is not None and name in before]
    return [f"{name}: {before[name]}, now {now[name]}" for name in names if before and before[name] != now[name]]


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
