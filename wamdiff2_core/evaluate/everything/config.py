"""The configuration of `wamdiff2 evaluate all`: which checkpoints, ways to decode, seeds and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from wamdiff2_core.decode.pick import check_word
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate.decode_grid import Setting, parse_settings
from wamdiff2_core.evaluate.everything import options as reading

KINDS: reading.Kinds = {
    "checkpoints": dict, "decoding": str, "seeds": list, "device": str, "dtype": str, "workers": int, "out": str,
    "benchmarks": dict, "kernels": str,
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """checkpoints: folders by the name that the table shows; several are one recipe trained with several seeds.

    benchmarks: options by name. Paths start where the command runs.
    """

    checkpoints: Mapping[str, tuple[Path, ...]]
    settings: tuple[Setting, ...]
    benchmarks: Mapping[str, Mapping[str, Any]]
    seeds: tuple[int, ...] = (0,)
    device: str = "cpu"
    dtype: str = "float32"
    workers: int = 1
    out: Path = Path("out/evaluate/all")
    source: Mapping[str, Any] = field(default_factory=dict)
    kernels: str = "auto"


def read_config(path: Path) -> Config:
    """ConfigError for another file, an unknown name, or a value that cannot be."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: expected a YAML file: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected entries {', '.join(KINDS)}, got {type(raw).__name__}")
    return of(raw, str(path))


def of(raw: Mapping[str, Any], name: str = "configuration") -> Config:
    """A configuration out of plain values. Errors as for `read_config`."""
    reading.check(name, raw, KINDS)
    benchmarks = raw.get("benchmarks") or {}
    if not benchmarks:
        raise ConfigError(f"{name}: benchmarks: expected at least one")
    for key, options in benchmarks.items():
        if not isinstance(key, str):
            raise ConfigError(f"{name}: benchmarks: expected names, got {key!r}")
        if not isinstance(options, (dict, type(None))):
            raise ConfigError(f"{name}: benchmarks: {key}: expected its options by name, got {options!r}")
    seeds = raw.get("seeds", [0])
    if not seeds or len(set(seeds)) != len(seeds) or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise ConfigError(f"{name}: seeds: expected different integers >= 0, got {seeds!r}")
    workers = raw.get("workers", 1)
    if workers < 1:
        raise ConfigError(f"{name}: workers: expected at least 1, got {workers}")
    kernels = raw.get("kernels", "auto")
    try:
        check_word(kernels)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    return Config(
        {key: _folders(name, key, value) for key, value in (raw.get("checkpoints") or {}).items()},
        tuple(parse_settings(raw.get("decoding", "B=32,steps=8,threshold=0.9"))),
        {key: options or {} for key, options in benchmarks.items()},
        tuple(seeds), raw.get("device", "cpu"), raw.get("dtype", "float32"), workers,
        Path(raw.get("out", "out/evaluate/all")), raw, kernels,
    )  # fmt: skip


def _folders(name: str, key: object, value: object) -> tuple[Path, ...]:
    given = [path for path in (value if isinstance(value, list) else [value]) if isinstance(path, str) and path]
    if not isinstance(key, str):
        raise ConfigError(f"{name}: checkpoints: expected a name for the table, got {key!r}")
    if not given or (isinstance(value, list) and len(given) < len(value)):
        raise ConfigError(f"{name}: checkpoints: {key}: expected a folder or a list of folders, got {value!r}")
    if len({Path(path).resolve() for path in given}) != len(given):
        raise ConfigError(f"{name}: checkpoints: {key}: expected different folders: twice the same feigns no spread")
    return tuple(Path(path) for path in given)
