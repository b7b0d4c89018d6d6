"""Make a checkpoint of ours from a plain Qwen3-VL folder, to be trained to block diffusion: `python -m training.adopt
QWEN3VL_FOLDER --out DIR [--mask-token-id N] [--copy]`.

The weights stay as they are: config.json gets a `block_diffusion` entry with a mask token, an embedding row that the
tokenizer does not use. A folder of upstream's wam_diff2 becomes one of ours, too, and keeps its prediction and context.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wamdiff2_core.distill.checkpoint import SIDE_FILES
from wamdiff2_core.driver import UPSTREAM_FORMATS
from wamdiff2_core.errors import CheckpointError, Wamdiff2Error
from wamdiff2_core.kernel_choice import UPSTREAM_TOKENS
from wamdiff2_core.model.checkpoint import UPSTREAM_MASK_TOKEN_ID, block_diffusion_of, kind_of, read_json
from wamdiff2_core.model.tokenizer import TextTokenizer
from wamdiff2_core.model.weights import INDEX, SINGLE

BLOCK_SIZES = [1, 4, 8, 16, 32]
MASK = "<|mask|>"


def adopt(source: Path, target: Path, mask_token_id: int | None = None, copy: bool = False) -> dict[str, Any]:
    """Write the folder `target`, whole or not at all; returns its block_diffusion entry.

    Weights are hard links where the file system allows it, unless `copy`. CheckpointError for a folder that is no
    Qwen3-VL or is ours already, for a mask token that means something else, and for a target that exists.
    """
    raw = read_json(source / "config.json")
    kind = kind_of(raw, source)
    if kind == "wamdiff2":
        raise CheckpointError(
            f"{source}: expected a folder without block_diffusion entry, this one can be trained as is"
        )
    if target.exists():
        raise CheckpointError(f"{target}: expected a folder that does not exist yet")
    raw["block_diffusion"] = entry = {
        **block_diffusion_of(raw, kind, source),
        "mask_token_id": mask_token(source, raw, mask_token_id),
        "block_sizes": BLOCK_SIZES,
        "answer_formats": UPSTREAM_FORMATS,
        "max_new_tokens": UPSTREAM_TOKENS,
        "prompt": "upstream",
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f".{target.name}.new-{uuid.uuid4().hex[:8]}")
    new.mkdir()
    try:
        _fill(new, source, raw, copy)
        os.replace(new, target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return entry


def mask_token(source: Path, raw: Mapping[str, Any], wanted: int | None = None) -> int:
    """`wanted`, or what the folder names, or the tokenizer's own mask token, or upstream's row, or the last unused one.

    CheckpointError unless it is a row of the embedding that is no token of the tokenizer, or one named as a mask.
    """
    used = used_ids(source)
    rows = int(raw["text_config"]["vocab_size"])
    names = {name: index for index, name in used.items()}
    generation = source / "generation_config.json"
    given = [wanted, raw.get("mask_token_id"), raw["text_config"].get("mask_token_id"), names.get(MASK)]
    if generation.exists():
        given.append(read_json(generation).get("mask_token_id"))
    if rows > UPSTREAM_MASK_TOKEN_ID:
        given.append(UPSTREAM_MASK_TOKEN_ID)
    free = (index for index in range(rows - 1, -1, -1) if index not in used)
    chosen = next((index for index in given if index is not None), None)
    chosen = next(free, None) if chosen is None else chosen
    if chosen is None:
        raise CheckpointError(f"{source}: expected an embedding row that is no token, all {rows} are taken")
    if not 0 <= chosen < rows:
        raise CheckpointError(f"{source}: mask token: expected 0 to {rows - 1}, got {chosen}")
    if chosen in used and "mask" not in used[chosen].lower():
        raise CheckpointError(f"{source}: mask token: expected an unused row, {chosen} is the token {used[chosen]!r}")
    return chosen


def used_ids(source: Path) -> dict[int, str]:
    """Every id that the tokenizer gives a meaning, with its text."""
    TextTokenizer.from_folder(source)  # says what is wrong with it
    definition = read_json(source / "tokenizer.json")
    used = {int(index): str(text) for text, index in definition["model"]["vocab"].items()}
    used |= {int(token["id"]): str(token["content"]) for token in definition.get("added_tokens", ())}
    if (source / "tokenizer_config.json").exists():
        added = read_json(source / "tokenizer_config.json").get("added_tokens_decoder", {})
        used |= {int(index): str(token["content"]) for index, token in added.items()}
    return used


def _fill(folder: Path, source: Path, raw: dict[str, Any], copy: bool) -> None:
    config = {key: value for key, value in raw.items() if key != "auto_map"}
    config |= {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"]}
    config["text_config"] = {**raw["text_config"], "model_type": "qwen3_vl_text"}
    config["vision_config"] = {**raw["vision_config"], "model_type": "qwen3_vl"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in SIDE_FILES:
        if (source / name).exists():
            shutil.copy2(source / name, folder / name)
    for name in weight_files(source):
        _place(source / name, folder / name, copy)
    if (source / INDEX).exists():
        shutil.copy2(source / INDEX, folder / INDEX)


def weight_files(source: Path) -> list[str]:
    """Names of the safetensors files of a folder."""
    if (source / INDEX).exists():
        names = sorted(set(read_json(source / INDEX).get("weight_map", {}).values()))
    else:
        names = [SINGLE]
    missing = [name for name in names if not (source / name).is_file()]
    if missing or not names:
        raise CheckpointError(f"{source}: expected safetensors weights, there is no {', '.join(missing) or INDEX}")
    return names


def _place(source: Path, target: Path, copy: bool) -> None:
    """A hard link, or a copy where the target is on another file system."""
    source = source.resolve()  # caches hold links to their files
    if not copy and source.stat().st_dev == target.parent.stat().st_dev:
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mask-token-id", type=int)
    parser.add_argument("--copy", action="store_true", help="copy weights instead of linking them")
    options = parser.parse_args(arguments)
    try:
        entry = adopt(options.folder, options.out, options.mask_token_id, options.copy)
    except Wamdiff2Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: mask token {entry['mask_token_id']}, {entry['prediction']}, {entry['context']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
