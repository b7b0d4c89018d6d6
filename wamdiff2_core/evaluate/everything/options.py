"""A benchmark's entry in the configuration, read with care: an unknown or wrong one is an error that names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import ConfigError

Kinds = Mapping[str, type | tuple[type, ...]]


def check(name: str, options: Mapping[str, Any], kinds: Kinds) -> None:
    """ConfigError unless every option is one of `kinds` and of its kind (a number that is whole is a float too)."""
    for key, value in options.items():
        if key not in kinds:
            raise ConfigError(f"{name}: there is no option {key!r}; there are {', '.join(kinds)}")
        kind = kinds[key]
        several: tuple[type, ...] = kind if isinstance(kind, tuple) else (kind,)
        wanted = (*several, int) if float in several else several
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            names = " or ".join(one.__name__ for one in several)
            raise ConfigError(f"{name}: {key}: expected {names}, got {value!r}")


def members(name: str, options: Mapping[str, Any], key: str, kind: type, count: int = 0) -> None:
    """ConfigError unless the list under `key`, if there is one, holds only this kind, and `count` of it (0: any)."""
    values = options.get(key)
    if values is None:
        return
    wrong = [value for value in values if not isinstance(value, kind) or isinstance(value, bool)]
    if wrong or not values or (count and len(values) != count):
        raise ConfigError(f"{name}: {key}: expected {count or 'some'} {kind.__name__}, got {values!r}")


def least(name: str, options: Mapping[str, Any], key: str, value: int) -> None:
    """ConfigError if the number under `key`, if there is one, is below `value`."""
    if options.get(key) is not None and options[key] < value:
        raise ConfigError(f"{name}: {key}: expected at least {value}, got {options[key]}")


def absent(options: Mapping[str, Any], needed: Sequence[str], also: Sequence[str] = ()) -> list[str]:
    """A line for each file or folder of `needed` that is not named or not there, and of `also` that is not there."""
    lines = [f"`{key}` is not named in the configuration" for key in needed if not options.get(key)]
    named = [key for key in (*needed, *also) if options.get(key)]
    return lines + [f"{key}: {options[key]} is not there" for key in named if not Path(options[key]).exists()]
