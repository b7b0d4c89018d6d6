"""Train by recipe: `python -m training.train RECIPE[,RECIPE...] [key=value ...] [RECIPE.key=value ...]`.

On several devices: `torchrun --nproc-per-node N -m training.train RECIPE parallel=ddp`, or `parallel=fsdp` for models
that do not fit; on several machines with torchrun's `--nnodes` and `--rdzv-endpoint`.

A bare name means training/recipes/NAME.yaml. Several recipes run one after the other on the same frames: each starts
from the checkpoint of the one before and writes to out/NAME. A run that was cut off goes on where it was.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from wamdiff2_core.distill.recipe import Recipe, load_recipe
from wamdiff2_core.distill.trainer import run_chain
from wamdiff2_core.distill.watch import Evaluator, Watch
from wamdiff2_core.errors import ConfigError, Wamdiff2Error
from wamdiff2_core.evaluate.decode_grid import Setting, parse_settings
from wamdiff2_core.evaluate.held_out import HeldOutFrames

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


def watch_of(recipe: Recipe) -> Watch | None:
    """What evaluates a run of this recipe. ConfigError for an evaluator that there is not, or one without data."""
    unknown = set(recipe.evaluate) - set(EVALUATORS)
    if unknown:
        known = ", ".join(EVALUATORS)
        raise ConfigError(f"recipe {recipe.name}: evaluate: expected some of {known}; got {', '.join(unknown)}")
    if not recipe.evaluate:
        return None
    return Watch({name: EVALUATORS[name](recipe) for name in recipe.evaluate}, recipe.evaluate_minutes)


def evaluation_setting(recipe: Recipe) -> Setting:
    """How checkpoints of a run are decoded: as the recipe says, else with the largest block size that it trains."""
    if recipe.evaluate_decoding:
        settings = parse_settings(recipe.evaluate_decoding)
        if len(settings) > 1:
            raise ConfigError(f"recipe {recipe.name}: evaluate_decoding: expected one setting, got {len(settings)}")
        return settings[0]
    block_size = max(recipe.phases[-1].blocks) if recipe.phases else 1
    return Setting(block_size, steps=3, threshold=0.6)


def _frames(recipe: Recipe) -> Evaluator:
    folders, holdout = (recipe.evaluate_data, 0) if recipe.evaluate_data else (recipe.data, recipe.holdout)
    if not folders or not (recipe.evaluate_data or holdout):
        raise ConfigError(f"recipe {recipe.name}: evaluate=frames needs evaluate_data, or data and holdout")
    paths, dtype = [Path(folder) for folder in folders], "bfloat16" if recipe.bf16 else "float32"
    return HeldOutFrames(paths, evaluation_setting(recipe), recipe.evaluate_frames, holdout, recipe.device, dtype)


def _drives(recipe: Recipe) -> Evaluator:
    from training.drives import ShortDrives  # the world is loaded by runs that drive in it

    dtype = "bfloat16" if recipe.bf16 else "float32"
    return ShortDrives(evaluation_setting(recipe), recipe.evaluate_routes, device=recipe.device, dtype=dtype)


EVALUATORS: dict[str, Callable[[Recipe], Evaluator]] = {"frames": _frames, "drives": _drives}


def train(names: str, overrides: Sequence[str] = ()) -> Path:
    """Run recipes to their end; returns the last checkpoint folder."""
    return run_chain(recipes_of(names, overrides), watch_of)[-1]


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    rank, several = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")) > 1
    try:
        checkpoint = train(arguments[0], arguments[1:])
    except (Wamdiff2Error, OSError) as error:
        print(f"error{f' on rank {rank}' if several else ''}: {error}", file=sys.stderr, flush=True)
        return 1
    if rank == 0:
        print(f"checkpoint: {checkpoint}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
