"""The model in training: loaded in full precision or bf16, with what its checkpoint will say about itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from wamdiff2_core.distill.checkpoint import save_folder
from wamdiff2_core.distill.layout import Layout
from wamdiff2_core.distill.parallel import Team, collected
from wamdiff2_core.distill.recipe import Recipe
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.checkpoint import LoadedModel, load_model


@dataclass
class Student:
    """loaded.model has weights in `dtype`; its config says prediction and context as trained."""

    loaded: LoadedModel
    source: Path

    @classmethod
    def load(cls, recipe: Recipe) -> Student:
        """ConfigError where recipe and checkpoint do not fit."""
        dtype = "float32" if recipe.master_weights or not recipe.bf16 else "bfloat16"
        loaded = load_model(recipe.init, device=recipe.device, dtype=dtype)
        entry = dict(loaded.block_diffusion)
        entry["prediction"] = recipe.prediction or loaded.prediction
        entry["context"] = recipe.context or loaded.context
        if loaded.mask_token_id is None:
            raise ConfigError(
                f"recipe {recipe.name}: {recipe.init} names no mask token; "
                "make a folder that does: python -m training.adopt"
            )
        entry["mask_token_id"] = loaded.mask_token_id
        if entry["context"] == "block_causal" and recipe.phases and recipe.ar_weight > 0:
            raise ConfigError(
                f"recipe {recipe.name}: with context block_causal a clean token sees what follows it in its block, so "
                "there is no autoregressive loss: ar_weight must be 0"
            )
        loaded.model.config.block_diffusion = entry
        loaded.model.train().requires_grad_(True)
        said = {"prediction": entry["prediction"], "context": entry["context"], "block_diffusion": entry}
        return cls(replace(loaded, **said), Path(recipe.init))

    @property
    def model(self) -> torch.nn.Module:
        return self.loaded.model

    @property
    def entry(self) -> dict:
        return self.loaded.model.config.block_diffusion

    @property
    def mask_token_id(self) -> int:
        return self.entry["mask_token_id"]

    def layout(self, image_tokens: int) -> Layout:
        """image_tokens: of one frame, where all frames have equally many; 0 where a source counts its own."""
        return Layout(self.entry["prediction"], self.entry["context"], self.loaded.config.image_token_id, image_tokens)

    def save(self, folder: Path, weights: dict[str, Tensor] | None = None, team: Team | None = None) -> None:
        """A checkpoint folder that `load_model` takes, whole or not at all; `weights` replace the model's own.

        Called by all ranks of a team; its rank 0 gathers tensor after tensor and writes.
        """
        leads = team is None or team.leads
        tensors = collected({**dict(self.model.named_parameters()), **(weights or {})}, leads, torch.bfloat16)
        if leads:
            save_folder(self.loaded.model, self.source, folder, tensors)
