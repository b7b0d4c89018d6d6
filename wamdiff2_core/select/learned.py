"""A small learned scorer: a network of two hidden layers that foretells NAVSIM's sub-scores of a candidate.

It sees no picture, only the candidate (`features`): whether a plan is one that holds together. Trained by
`python -m wamdiff2_core.select.train` on candidates of our own world; the shipped weights are those of the tiny
checkpoint's candidates (docs/candidates.md).
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wamdiff2_core.errors import CheckpointError
from wamdiff2_core.select.features import FEATURES

HEADS = ("nc", "dac", "ep", "ttc", "comfort", "tlc", "ddc")
LIMIT = 6.0  # standard deviations; features beyond are cut
SHIPPED = Path(__file__).with_name("scorer.npz")


@dataclass(frozen=True)
class LearnedScorer:
    """Weights: scaling (FEATURES,) twice, then (in, out) matrices and (out,) biases of three layers."""

    mean: np.ndarray
    scale: np.ndarray
    w1: np.ndarray
    b1: np.ndarray
    w2: np.ndarray
    b2: np.ndarray
    w3: np.ndarray
    b3: np.ndarray

    def __post_init__(self) -> None:
        hidden = self.w1.shape[-1]
        wanted = {
            "mean": (FEATURES,), "scale": (FEATURES,), "w1": (FEATURES, hidden), "b1": (hidden,),
            "w2": (hidden, hidden), "b2": (hidden,), "w3": (hidden, len(HEADS)), "b3": (len(HEADS),),
        }  # fmt: skip
        for name, shape in wanted.items():
            array = getattr(self, name)
            if array.shape != shape or not np.isfinite(array).all():
                raise CheckpointError(f"scorer: {name}: expected finite numbers of shape {shape}, got {array.shape}")

    @classmethod
    def load(cls, path: Path | None = None) -> LearnedScorer:
        """From a file of `train`; None: the shipped one. CheckpointError if it is none."""
        path = path or SHIPPED
        try:
            with np.load(path, allow_pickle=False) as file:
                return cls(**{name: file[name].astype(np.float32) for name in cls.__dataclass_fields__})
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise CheckpointError(f"{path}: expected the weights of a scorer: {error}") from error

    def save(self, path: Path) -> None:
        """In half precision."""
        np.savez_compressed(
            path, **{name: getattr(self, name).astype(np.float16) for name in self.__dataclass_fields__}
        )

    def parts(self, features: np.ndarray) -> dict[str, np.ndarray]:
        """Foretold sub-scores (...) by name, 0 to 1, of features (..., FEATURES)."""
        x = np.clip((features - self.mean) / self.scale, -LIMIT, LIMIT)
        x = np.maximum(x @ self.w1 + self.b1, 0.0)
        x = np.maximum(x @ self.w2 + self.b2, 0.0)
        chance = 1.0 / (1.0 + np.exp(-(x @ self.w3 + self.b3)))
        return dict(zip(HEADS, np.moveaxis(chance, -1, 0), strict=True))

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Foretold score (...): PDMS times the shares of red lights and of driving direction that v2 adds."""
        return combined(self.parts(features))


def combined(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """NC DAC (5 EP + 5 TTC + 2 C) / 12 TLC DDC: PDMS alone does not mind red lights."""
    mean = (5.0 * parts["ep"] + 5.0 * parts["ttc"] + 2.0 * parts["comfort"]) / 12.0
    return parts["nc"] * parts["dac"] * mean * parts["tlc"] * parts["ddc"]
