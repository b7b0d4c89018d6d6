"""Train by a recipe: `python -m training.train RECIPE [key=value ...]`; a bare name means training/recipes/NAME.yaml."""

from __future__ import annotations

import sys
from pathlib import Path

from wamdiff2_core.distill.recipe import load_recipe
from wamdiff2_core.distill.trainer import Trainer
from wamdiff2_core.errors import ConfigError, Wamdiff2Error

RECIPES = Path(__file__).parent / "recipes"


def find_recipe(name: str) -> Path:
    """A path as given, or one of our recipes by its name."""
    for path in (Path(name), RECIPES / f"{name}.yaml"):
        if path.is_file():
            return path
    raise ConfigError(f"recipe {name}: expected a file or one of {', '.join(sorted(p.stem for p in RECIPES.glob('*.yaml')))}")


def train(name: str, overrides: list[str] | None = None) -> Path:
    """Run a recipe to its end (resuming what is in its `out` folder); returns the checkpoint folder."""
    return Trainer(load_recipe(find_recipe(name), overrides or [])).run()


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    try:
        print(f"checkpoint: {train(arguments[0], arguments[1:])}")
    except Wamdiff2Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
