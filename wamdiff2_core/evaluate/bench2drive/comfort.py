"""Driving efficiency and smoothness (`tools/efficiency_smoothness_benchmark.py`, release 0.0.4), quirks included.

Efficiency: mean over records of the mean percentage in their "Average speed is X%" messages; values above 1000 count
as broken. Smoothness: share of 20-step chunks that stay within NAVSIM's comfort bounds, mean over records. The time
step is taken as 0.1 s although steps are 0.05 s, the "yaw acceleration" is the filtered yaw rate once more, and the
yaw rate is unwrapped like an angle and compared as rad/s although CARLA gives deg/s: so do the published figures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.signal import savgol_filter

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.bench2drive.benchmark import MIN_SPEED
from wamdiff2_core.evaluate.bench2drive.records import Problem, Record, load_json, number

PERCENT = re.compile(r"\b(\d+\.?\d*)%")
MOST_PERCENT = 1000.0
CHUNK = 20
WINDOW, ORDER, STEP_S = 7, 2, 0.1
# Open intervals, in SI units.
LON_ACC, LAT_ACC, JERK, LON_JERK = (-4.05, 2.40), (-4.89, 4.89), (-8.37, 8.37), (-4.13, 4.13)
YAW_RATE = (-0.95, 0.95)  # tighter than the bound of the "yaw acceleration" (1.93) on the same values


def average_speeds(record: Record) -> list[float]:
    """The percentages of a record's min-speed messages, broken ones left out. DataError for a message without one."""
    values = []
    for message in record.infractions.get(MIN_SPEED, ()):
        match = PERCENT.search(message)
        if match is None:
            raise DataError(f"{record.route_id} {MIN_SPEED}: expected a percentage in {message!r}")
        values.append(float(match[1]))
    return [value for value in values if value <= MOST_PERCENT]


def efficiencies(merged: Sequence[Record]) -> tuple[list[float], list[Problem]]:
    """Driving efficiency of every record that has one, and the records whose messages give none."""
    means, problems = [], []
    for record in merged:
        if not record.infractions.get(MIN_SPEED):
            continue
        try:
            values = average_speeds(record)
        except DataError as error:
            problems.append(Problem("no_average_speed", record.route_id, str(error)))
            continue
        if values:
            means.append(sum(values) / len(values))
        else:
            text = f"every average speed is above {MOST_PERCENT:g} %: left out of the efficiency"
            problems.append(Problem("no_average_speed", record.route_id, text))
    return means, problems


def smoothness_by_record(merged: Sequence[Record], folder: Path) -> tuple[dict[str, float], list[Problem]]:
    """Share of smooth chunks by `save_name`, for the records with a usable `<folder>/<save_name>/metric_info.json`."""
    shares: dict[str, float] = {}
    problems: list[Problem] = []
    for record in merged:
        name = record.save_name
        if name is None or Path(name).name != name:
            problems.append(Problem("missing_metric", record.route_id, f"expected a plain save_name, got {name!r}"))
            continue
        path = folder / name / "metric_info.json"
        if not path.is_file():
            problems.append(Problem("missing_metric", record.route_id, f"no {name}/metric_info.json"))
            continue
        try:
            shares[name] = smoothness(*read_metric(path))
        except DataError as error:
            problems.append(Problem("damaged_metric", record.route_id, f"{name}/{error}"))
    return shares, problems


Steps = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def read_metric(path: Path) -> Steps:
    """Acceleration, forward and right vector (N, 2), yaw rate (N,) of a metric_info.json, in the file's order."""
    steps = load_json(path)
    if not isinstance(steps, dict) or not all(isinstance(step, dict) for step in steps.values()):
        raise DataError(f"{path.name}: expected an object of steps")
    acceleration, forward, right, rate = (
        np.array([_vector(step, name, f"step {key}") for key, step in steps.items()]).reshape(-1, 3)
        for name in ("acceleration", "forward_vector", "right_vector", "angular_velocity")
    )
    return acceleration[:, :2], forward[:, :2], right[:, :2], rate[:, 2]


def _vector(step: Mapping[str, object], name: str, where: str) -> list[float]:
    value = step.get(name)
    if not isinstance(value, list) or len(value) != 3:
        raise DataError(f"{where} {name}: expected 3 numbers, got {str(value)[:60]}")
    return [number(part, f"{where} {name}") for part in value]


def smoothness(acceleration: np.ndarray, forward: np.ndarray, right: np.ndarray, rate: np.ndarray) -> float:
    """Share of chunks within all bounds. Up to 20 steps are one chunk; an unfinished last chunk is left out.

    acceleration, forward, right: (N, 2) in the map frame; rate: (N,). DataError for fewer than 3 steps.
    """
    count = len(rate)
    if count <= ORDER:
        raise DataError(f"metric_info.json: expected more than {ORDER} steps, got {count}")
    size = min(count, CHUNK)
    whole = count // size * size
    rows = (
        (acceleration * forward).sum(axis=1), (acceleration * right).sum(axis=1),
        np.hypot(acceleration[:, 0], acceleration[:, 1]), rate,
    )  # fmt: skip
    lon, lat, size_of, yaw = (row[:whole].reshape(-1, size) for row in rows)
    lon, lat, size_of, yaw = _smooth(lon), _smooth(lat), _smooth(size_of), _smooth(_unwrap(yaw))
    good = _within(lon, LON_ACC) & _within(lat, LAT_ACC) & _within(yaw, YAW_RATE)
    good &= _within(_derivative(size_of), JERK) & _within(_derivative(lon), LON_JERK)
    return int(good.sum()) / len(good)


def _smooth(chunks: np.ndarray) -> np.ndarray:
    return savgol_filter(chunks, min(WINDOW, chunks.shape[1]), ORDER, axis=1)


def _derivative(chunks: np.ndarray) -> np.ndarray:
    return savgol_filter(chunks, min(WINDOW, chunks.shape[1]), ORDER, deriv=1, delta=STEP_S, axis=1)


def _unwrap(values: np.ndarray) -> np.ndarray:
    """Take whole turns out of the steps between neighbours (rows)."""
    turns = np.zeros_like(values)
    turns[:, 1:] = np.cumsum(np.round(np.diff(values, axis=1) / (2.0 * np.pi)), axis=1)
    return values - 2.0 * np.pi * turns


def _within(chunks: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    return np.all((chunks > bounds[0]) & (chunks < bounds[1]), axis=1)
