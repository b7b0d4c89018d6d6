"""`wamdiff2 train RECIPE`: distil or train a checkpoint by a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

NAME = "train"


def run(
    recipe: Annotated[str, typer.Argument(help="Recipe file, or the name of one in training/recipes")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Entries of the recipe, like out=DIR steps=100")] = None,
) -> None:
    """Train by a recipe; what its `out` folder holds already is gone on with."""
    from training.train import train

    folder: Path = train(recipe, overrides or [])
    Console().print(f"checkpoint: {folder}")
