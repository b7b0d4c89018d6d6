"""Evaluation during training: every so many minutes and at the end, by whatever evaluators the entry point hands over.

An evaluator gets the checkpoint folder that was just saved and the step it belongs to, and returns figures by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from wamdiff2_core.errors import ConfigError, Wamdiff2Error

Evaluator = Callable[[Path, int], Mapping[str, float]]


class EvaluationError(Wamdiff2Error):
    """An evaluator failed. The run's state was saved before: the same command goes on from there."""


class Watch:
    """When to evaluate, and with what. minutes: of training between two evaluations; 0: only at the end.

    Time is that of training, on which all ranks agree: each asks its own watch, and all hear the same.
    """

    def __init__(self, evaluators: Mapping[str, Evaluator], minutes: float = 0.0) -> None:
        """ConfigError for a negative time, or a name that a column of evaluation.csv could not begin with."""
        wrong = [name for name in evaluators if not name or "/" in name]
        if minutes < 0 or wrong:
            raise ConfigError(f"evaluation: expected minutes >= 0 and names without '/', got {minutes}, {wrong}")
        self.evaluators, self._period_s = dict(evaluators), 60.0 * minutes
        self._since_s = 0.0

    def begin(self, seconds: float) -> None:
        """A sitting begins after so many seconds of training."""
        self._since_s = seconds

    def due(self, seconds: float) -> bool:
        """Is it time again? Says so once."""
        if not self._period_s or seconds - self._since_s < self._period_s:
            return False
        self._since_s = seconds
        return True

    def evaluate(self, checkpoint: Path, step: int) -> dict[str, float]:
        """Figures of all evaluators, as `evaluator/figure`. Training's random numbers go on as if nothing had been.

        EvaluationError, with the evaluator's name, for whatever goes wrong in one.
        """
        figures: dict[str, float] = {}
        with torch.random.fork_rng(devices=[]):
            for name, evaluator in self.evaluators.items():
                try:
                    found = evaluator(checkpoint, step)
                except Exception as error:
                    raise EvaluationError(
                        f"evaluator {name} at step {step} of {checkpoint}: {type(error).__name__}: {error}"
                    ) from error
                figures |= {f"{name}/{key}": float(value) for key, value in found.items()}
        return figures
