"""Tensors of a checkpoint folder: one safetensors file or shards with an index; checked against the architecture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from wamdiff2_core.errors import CheckpointError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
EMBEDDING, HEAD = "model.language_model.embed_tokens.weight", "lm_head.weight"


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, on the CPU, as stored."""
    if (folder / INDEX).exists():
        return _read_shards(folder)
    if (folder / SINGLE).exists():
        return _read_file(folder / SINGLE)
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise CheckpointError(f"{folder}: expected safetensors weights, got pickle files {pickles}, never loaded here")
    raise CheckpointError(f"{folder}: expected {SINGLE} or {INDEX}, found neither")


def _read_shards(folder: Path) -> dict[str, Tensor]:
    try:
        where = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / INDEX}: expected JSON with a weight_map, got {error!r}") from error
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        raise CheckpointError(f"{folder / INDEX}: expected weight_map to give the file name of every tensor")
    weights: dict[str, Tensor] = {}
    for name in sorted(set(where.values())):
        if Path(name).name != name:
            raise CheckpointError(f"{folder / INDEX}: expected shard names inside the folder, got {name!r}")
        shard = _read_file(folder / name)
        double = sorted(set(shard) & set(weights))
        if double:
            raise CheckpointError(f"{folder / name}: tensors also in another shard: {_some(double)}")
        weights.update(shard)
    lost, unlisted = sorted(set(where) - set(weights)), sorted(set(weights) - set(where))
    if lost or unlisted:
        raise CheckpointError(f"{folder / INDEX}: shards lack {_some(lost)}; not in the index: {_some(unlisted)}")
    return weights


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: expected a safetensors file, got {error}") from error


def check_weights(
    weights: dict[str, Tensor], expected: Mapping[str, tuple[int, ...]], tied: bool, folder: Path
) -> None:
    """Names and shapes must be those of the architecture; a tied head may be left out, or stored as an equal copy."""
    missing = sorted(set(expected) - set(weights))
    if tied and missing == [HEAD]:
        missing = []
    surplus = sorted(set(weights) - set(expected))
    if missing or surplus:
        raise CheckpointError(
            f"{folder}: expected {len(expected)} tensors, got {len(weights)}; "
            f"missing: {_some(missing)}; surplus: {_some(surplus)}"
        )
    for name, tensor in weights.items():
        if tuple(tensor.shape) != expected[name]:
            raise CheckpointError(f"{folder}: {name}: expected shape {expected[name]}, got {tuple(tensor.shape)}")
        if not tensor.is_floating_point():
            raise CheckpointError(f"{folder}: {name}: expected floating point numbers, got {tensor.dtype}")
    if tied and HEAD in weights and not torch.equal(weights[HEAD], weights[EMBEDDING]):
        raise CheckpointError(f"{folder}: tie_word_embeddings is true, but {HEAD} differs from {EMBEDDING}")


def _some(names: list[str], most: int = 4) -> str:
    """The first few names, and how many more there are."""
    if not names:
        return "none"
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
