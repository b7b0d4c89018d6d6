"""Train by recipe: `python -m training.train RECIPE[,RECIPE...] [key=value ...] [RECIPE.key=value ...]`.

A bare name means training/recipes/NAME.yaml. Several recipes run one after the other on the same frames: each starts
from the
checkpoint of the one before and writes to out/NAME. A run that was cut off goes on where it was.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from wamdiff2_core.distill.recipe import Recipe, load_recipe
from wamdiff2_core.distill.trainer import run_chain
from wamdiff2_core.errors import ConfigError, Wamdiff2Error

RECIPES = Path(__file__).parent / "recipes"


def find_recipe(name: str) -> Path:
    """A path as given, or one of our recipes by its name."""
    for path in (Path(name), RECIPES / f"{name}.yaml"):
        if path.is_file():
            return path
    raise ConfigError(
        f"recipe {name}: expected a file or one of {', '.join(sorted(p.stem for p in RECIPES.glob('*.yaml')))}"
    )


def recipes_of(names: str, overrides: Sequence[str] = ()) -> list[Recipe]:
    """The recipes of a comma-separated list with their overrides."""
    listed = names.split(",")
    stems = [Path(name).stem for name in listed]
    for override in overrides:
        owner = override.split("=")[0].rpartition(".")[0]
        if owner and owner not in stems:
            raise ConfigError(f"override {override!r}: expected one of the recipes {', '.join(stems)} before the dot")
    recipes: list[Recipe] = []
    for name, stem in zip(listed, stems, strict=True):
        mine = [override for override in overrides if "." not in override.split("=")[0]]
        mine += [override.removeprefix(f"{stem}.") for override in overrides if override.startswith(f"{stem}.")]
        recipe = load_recipe(find_recipe(name), mine)
        if len(listed) > 1:
            init = str(Path(recipes[-1].out) / "checkpoint") if recipes else recipe.init
            recipe = replace(recipe, out=str(Path(recipe.out) / stem), init=init)
        recipes.append(recipe)
    return recipes


def train(names: str, overrides: Sequence[str] = ()) -> Path:
    """Run recipes to their end; returns the last checkpoint folder."""
    return run_chain(recipes_of(names, overrides))[-1]


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
