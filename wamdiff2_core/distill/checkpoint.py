"""Saving: Hugging Face folders of bf16 shards, and training state; both appear whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import uuid
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from wamdiff2_core.errors import CheckpointError, ConfigError

SHARD_BYTES = 15 * 10**6
SIDE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "generation_config.json",
)


def shards(tensors: dict[str, torch.Tensor], limit_bytes: int) -> list[dict[str, torch.Tensor]]:
    """Split in order, each part at most `limit_bytes` (a single larger tensor makes a part of its own)."""
    parts: list[dict[str, torch.Tensor]] = [{}]
    used = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if parts[-1] and used + size > limit_bytes:
            parts.append({})
            used = 0
        parts[-1][name] = tensor
        used += size
    return parts


def save_weights(
    model: nn.Module,
    folder: Path,
    state: dict[str, torch.Tensor] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    limit_bytes: int = SHARD_BYTES,
) -> None:
    """Write config.json and the weights into `folder` (which exists). `state` replaces the model's own values by name.

    A tied output matrix is left out, as Hugging Face folders do.
    """
    tensors = {**model.state_dict(), **(state or {})}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    tensors = {name: t.detach().to("cpu", dtype).contiguous() for name, t in tensors.items()}
    parts = shards(tensors, limit_bytes)
    names = [f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors" for i in range(len(parts))]
    if len(parts) == 1:
        names = ["model.safetensors"]
    for name, part in zip(names, parts, strict=True):
        save_file(part, folder / name, metadata={"format": "pt"})
        (folder / name).chmod(0o644)  # safetensors makes files that only their owner may read
    if len(parts) > 1:
        index = {
            "metadata": {"total_size": sum(t.numel() * t.element_size() for t in tensors.values())},
            "weight_map": {key: name for name, part in zip(names, parts, strict=True) for key in part},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    config = model.config.to_dict()
    config["architectures"] = ["Qwen3VLForConditionalGeneration"]
    config["dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def replace_folder(new: Path, target: Path) -> None:
    """Put the finished folder `new` in the place of `target`; the old one is gone only once the new one stands."""
    old = target.with_name(f".{target.name}.old-{uuid.uuid4().hex[:8]}")
    if target.exists():
        os.replace(target, old)
    os.replace(new, target)
    shutil.rmtree(old, ignore_errors=True)


def save_folder(model: nn.Module, source: Path, target: Path, state: dict[str, torch.Tensor] | None = None) -> None:
    """Write a checkpoint folder atomically: weights and config of `model`, tokenizer and side files from `source`."""
    new = target.with_name(f".{target.name}.new-{uuid.uuid4().hex[:8]}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new.mkdir()
        for name in SIDE_FILES:
            if (source / name).exists():
                shutil.copy2(source / name, new / name)
        save_weights(model, new, state)
        replace_folder(new, target)
    except (OSError, SafetensorError) as error:
        raise not_written(target, error) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)  # half a checkpoint helps nobody, least of all a full disk


def save_state(state: dict, path: Path) -> None:
    """Write training state atomically: a killed run finds the last whole file."""
    new = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, new)
        os.replace(new, path)
    except (OSError, RuntimeError) as error:  # torch's writer says RuntimeError for a full disk
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise not_written(path, error) from error


def not_written(path: Path, error: BaseException) -> CheckpointError:
    """What could not be written, why, and what stands there now."""
    stands = "what was saved before still stands" if path.exists() else "nothing was saved here before"
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    with contextlib.suppress(OSError):  # torch's writer does not say that a disk is full
        reason += f" ({shutil.disk_usage(path.parent).free / 1e9:.1f} GB are free there)"
    return CheckpointError(f"{path} could not be written: {reason}; {stands}")


def check_writable(folder: Path) -> None:
    """Make a run's folder, before hours are spent on what it shall hold. ConfigError where that cannot be."""
    probe = folder / f".probe-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"out: expected a folder that can be written, {folder}: {error.strerror or error}") from error


def load_state(path: Path) -> dict:
    """Read what `save_state` wrote: tensors and plain values only, no code. Tensors stay on disk until they are used,
    so that several processes of one machine share them."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path}: expected the state of a training run, got {error}") from error


def mend(target: Path) -> None:
    """Clear up after a save that was killed: put the old folder back if the new one did not get to its place."""
    for old in sorted(target.parent.glob(f".{target.name}.old-*")):
        if target.exists():
            shutil.rmtree(old)
        else:
            os.replace(old, target)
    for new in target.parent.glob(f".{target.name}.new-*"):
        shutil.rmtree(new)
