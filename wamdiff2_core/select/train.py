"""Trains the learned scorer: `python -m wamdiff2_core.select.train FILE.npz ... --out scorer.npz [--held HELD.npz]`.

FILE: candidates and their scores from `python -m wamdiff2_core.select.collect`. Each sub-score has an output of its own
and is learnt by cross entropy; seconds on one core. With --held, figures of selection on frames not trained on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from wamdiff2_core.errors import DataError, Wamdiff2Error
from wamdiff2_core.select.features import FEATURES, asked_for, features
from wamdiff2_core.select.figures import Collected, figures
from wamdiff2_core.select.learned import HEADS, LIMIT, LearnedScorer

COLUMNS = ("v11_nc", "v11_dac", "v11_ep", "v11_ttc", "v11_comfort", "v2_tlc", "v2_ddc")
BATCH = 128  # frames


def features_of(data: Collected) -> np.ndarray:
    """Features (F, K, FEATURES) of collected candidates; zeros stand for those that are no plans."""
    asked = np.array([asked_for(text) for text in data.instruction])
    points, sure, likelihood = (np.nan_to_num(one) for one in (data.points, data.sure, data.likelihood))
    return features(points, sure, likelihood, data.ego, asked)


def train(
    files: Sequence[Collected], hidden: int = 64, epochs: int = 30, rate: float = 2e-3, seed: int = 0
) -> LearnedScorer:
    """A scorer of these candidates. DataError if there are fewer frames than a batch."""
    torch.manual_seed(seed)
    x = np.concatenate([features_of(one) for one in files])
    targets = np.concatenate([np.stack([one.score(name) for name in COLUMNS], axis=-1) for one in files])
    if len(x) < BATCH:
        raise DataError(f"scorer: expected {BATCH} frames or more to learn from, got {len(x)}")
    known = torch.tensor(np.isfinite(targets).all(axis=-1))
    seen = x[known.numpy()]
    mean, scale = seen.mean(axis=0), seen.std(axis=0) + 1e-2
    inputs = torch.tensor(np.clip((x - mean) / scale, -LIMIT, LIMIT))
    net = nn.Sequential(
        nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, hidden), nn.ReLU(),
        nn.Linear(hidden, len(HEADS)),
    )  # fmt: skip
    _fit(net, inputs, torch.tensor(np.nan_to_num(targets), dtype=torch.float32), known, epochs, rate)
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    weights = [array.detach().numpy() for layer in layers for array in (layer.weight.T, layer.bias)]
    return LearnedScorer(mean, scale, *weights)


def _fit(net: nn.Sequential, inputs: Tensor, targets: Tensor, known: Tensor, epochs: int, rate: float) -> None:
    optimiser = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=1e-4)
    per_epoch = len(inputs) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=epochs * per_epoch)
    net.train()
    for _ in range(epochs):
        for part in torch.randperm(len(inputs))[: per_epoch * BATCH].split(BATCH):
            loss = binary_cross_entropy_with_logits(net(inputs[part]), targets[part], reduction="none")
            loss = loss.mean(dim=-1)[known[part]].mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    net.eval()


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring. 0: done; 1: an input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--held", type=Path)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    got = parser.parse_args(argv)
    try:
        scorer = train([Collected.read(path) for path in got.files], got.hidden, got.epochs, seed=got.seed)
        scorer.save(got.out)
        if got.held:
            held = Collected.read(got.held)
            foretold = LearnedScorer.load(got.out).scores(features_of(held))
            print(json.dumps(figures(held, {"learned": foretold}), indent=2))
    except Wamdiff2Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
