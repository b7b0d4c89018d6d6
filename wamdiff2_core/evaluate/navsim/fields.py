"""Checked values out of scene files: every wrong field ends in a DataError that names it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.navsim.vehicle import STEP_S

LARGEST = 1e8  # maps lie at some 4e6 m


def field(record: object, key: str, where: str) -> Any:
    """The value of a key. DataError if the record is none or lacks it."""
    if not isinstance(record, Mapping):
        raise DataError(f"{where}: expected an object with {key!r}, got {type(record).__name__}")
    if key not in record:
        raise DataError(f"{where}: {key!r} is missing")
    return record[key]


def listed(record: object, key: str, where: str) -> list:
    """The list of a key."""
    value = field(record, key, where)
    if not isinstance(value, list):
        raise DataError(f"{where}.{key}: expected a list, got {type(value).__name__}")
    return value


def text(record: object, key: str, where: str) -> str:
    """The text of a key, not empty, that can be written as UTF-8."""
    value = field(record, key, where)
    if not isinstance(value, str) or not value or value != value.encode(errors="replace").decode():
        raise DataError(f"{where}.{key}: expected a text, got {value!r}")
    return value


def numbers(value: object, shape: tuple[int | None, ...], where: str) -> np.ndarray:
    """Finite float64 of a shape; None stands for any length. Texts and booleans are no numbers."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: expected numbers of shape {_shown(shape)}: {error}") from error
    if array.dtype.kind not in "fiu":
        raise DataError(f"{where}: expected numbers, got {str(value)[:60]}")
    if array.ndim != len(shape) or any(want not in (None, have) for want, have in zip(shape, array.shape)):
        raise DataError(f"{where}: expected shape {_shown(shape)}, got {array.shape}")
    array = array.astype(np.float64)
    if not (np.abs(array) < LARGEST).all():
        raise DataError(f"{where}: expected finite numbers below {LARGEST:g}, got NaN, infinity or more")
    return array


def number(record: object, key: str, where: str) -> float:
    """The finite number of a key."""
    value = field(record, key, where)
    if type(value) in (int, float) and abs(value) < LARGEST:  # most are plain; the rest is told apart below
        return float(value)
    return float(numbers(value, (), f"{where}.{key}"))


def size(record: object, key: str, where: str) -> float:
    """The number of a key, above zero."""
    value = number(record, key, where)
    if value <= 0:
        raise DataError(f"{where}.{key}: expected more than 0, got {value}")
    return value


def steps_between(record: object, key: str, where: str) -> int:
    """Steps of 0.1 s in an interval between two plans, 1 ... 5: the official code takes none of 0.55 s or more."""
    seconds = number(record, key, where)
    if not 0.0 < seconds < 0.55 or round(seconds / STEP_S) < 1:
        raise DataError(f"{where}.{key}: expected 0.1 to 0.5 s, got {seconds}")
    return round(seconds / STEP_S)


def distinct(names: Iterable[str], where: str) -> None:
    """DataError if a name is there twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"{where}: {name!r} is there twice")
        seen.add(name)


def _shown(shape: tuple[int | None, ...]) -> str:
    return str(tuple("any" if length is None else length for length in shape)).replace("'", "")
