"""What selection is worth on collected candidates: plain, selected and best plans, reported apart."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from wamdiff2_core.errors import DataError

POOLS: dict[str, tuple[str, ...]] = {
    "paces": ("plain", "pace 0.7", "pace 0.85", "pace 1.1"),
    "3 drawn at T=0.5": ("plain", "T=0.5", "T=0.5", "T=0.5"),
    "6 drawn at T=0.5": ("plain", *["T=0.5"] * 6),
    "6 drawn at T=1": ("plain", *["T=1"] * 6),
    "3 drawn, paces": ("plain", *["T=0.5"] * 3, "pace 0.7", "pace 0.85", "pace 1.1"),
    "12 drawn, words, B=8": ("plain", *["T=0.5"] * 6, *["T=1"] * 6, "words: follow the road", "B=8"),
}
PDMS, EPDMS, PROGRESS = "v11_score", "v2_score", "v11_ep"


@dataclass(frozen=True)
class Collected:
    """A file of `collect`: F frames with K candidates each (NaN: no plan), the plain plan first.

    points (F, K, 8, 2) m; sure (F, K, 8); likelihood (F, K); scores (F, K, S) by `columns`; ego (F, 3) speed and
    acceleration; further: scores of other scorers (F, K) by name.
    """

    points: np.ndarray
    sure: np.ndarray
    likelihood: np.ndarray
    ego: np.ndarray
    instruction: tuple[str, ...]
    scores: np.ndarray
    expert: np.ndarray
    columns: tuple[str, ...]
    sources: tuple[str, ...]
    further: Mapping[str, np.ndarray]

    @classmethod
    def read(cls, path: Path) -> Collected:
        """DataError if it is no such file."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            texts = {name: tuple(str(one) for one in arrays[name]) for name in ("instruction", "columns", "sources")}
            names = ("points", "sure", "likelihood", "ego", "scores", "expert")
            further = {name[3:]: value for name, value in arrays.items() if name.startswith("by_")}
            numbers = {name: arrays[name].astype(np.float64) for name in names}
            return cls(**numbers, **texts, further=further)  # type: ignore[arg-type]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: expected collected candidates: {error}") from error

    def score(self, name: str) -> np.ndarray:
        """A column (F, K)."""
        return self.scores[..., self.columns.index(name)]

    def pool(self, wanted: Sequence[str]) -> list[int] | None:
        """Places of candidates of these sources, each once; None if there are not so many."""
        left, found = list(enumerate(self.sources)), []
        for source in wanted:
            place = next((pair for pair in left if pair[1] == source), None)
            if place is None:
                return None
            left.remove(place)
            found.append(place[0])
        return found


def choose(scores: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Index (F,) of the valid candidate (F, K) that scores best, the first of equals; 0 where none is valid."""
    return np.where(valid, np.nan_to_num(scores, nan=-np.inf), -np.inf).argmax(axis=1)


def figures(
    data: Collected, scorers: Mapping[str, np.ndarray], pools: Mapping[str, Sequence[str]] = MappingProxyType(POOLS)
) -> dict[str, object]:
    """PDMS, EPDMS and progress in per cent: plain, selected by each scorer (F, K), and the best of each pool (oracle).

    A candidate that is no plan scores 0. `always`: what each kind of candidate scores by itself, without a choice.
    `gain` is the mean gain of PDMS over the plain plan with its standard error.
    """
    valid = np.isfinite(data.score(PDMS))
    table = {name: np.nan_to_num(data.score(name)) for name in (PDMS, EPDMS, PROGRESS)}
    report: dict[str, object] = {
        "frames": len(valid),
        "expert": {name: _percent(data.expert[:, data.columns.index(name)]) for name in table},
        "plain": {name: _percent(values[:, 0]) for name, values in table.items()},
        "plain_failed": int((~valid[:, 0]).sum()),
        "always": {
            source: {name: _percent(values[:, k]) for name, values in table.items()}
            for k, source in enumerate(data.sources)
        },
    }
    rows = {}
    for pool, wanted in pools.items():
        at = data.pool(wanted)
        if at is None:
            continue
        row: dict[str, object] = {"candidates": len(at)}
        for name, scores in scorers.items():
            picked = np.array(at)[choose(scores[:, at], valid[:, at])]
            row[name] = _row(table, picked)
        row["oracle"] = _row(table, np.array(at)[table[PDMS][:, at].argmax(axis=1)])
        rows[pool] = row
    return {**report, "pools": rows}


def _row(table: Mapping[str, np.ndarray], picked: np.ndarray) -> dict[str, float]:
    rows = np.arange(len(picked))
    gain = table[PDMS][rows, picked] - table[PDMS][:, 0]
    return {
        **{name: _percent(values[rows, picked]) for name, values in table.items()},
        "gain": _percent(gain),
        "gain_error": round(100.0 * float(gain.std() / np.sqrt(len(gain))), 2),
        "changed": round(float((picked != 0).mean()), 3),
    }


def _percent(values: np.ndarray) -> float:
    return round(100.0 * float(np.mean(values)), 2)
