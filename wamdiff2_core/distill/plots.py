"""Pictures of a run, made from its log.csv and evaluation.csv: OUT/plots/*.png and an overview of all of them.

`python -m wamdiff2_core.distill.plots OUT` makes them anew, also for a run that is under way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogFormatterSciNotation, LogLocator, MaxNLocator, ScalarFormatter

from wamdiff2_core.distill.csv_file import read_csv, step_of
from wamdiff2_core.distill.log import EVALUATION, LOG
from wamdiff2_core.distill.recipe import Recipe
from wamdiff2_core.distill.step import KINDS
from wamdiff2_core.errors import DataError, Wamdiff2Error

PANEL = (4.6, 3.2)  # inches
INK, SOFT, GREY = "#1f2933", "#52606d", "#c3ccd6"
COLOURS = ("#2f6fde", "#e08a1e", "#1f9d61", "#b4458f", "#6b7a8c", "#c0392b")
TITLES = {
    "ar": ("autoregressive loss", "nats per token"),
    "diffusion": ("diffusion loss", "nats per masked token"),
    "distill": ("divergence from the teacher", "nats per token"),
}
FIGURES = {
    "ade_m": ("plans: ADE", "m"),
    "fde_m": ("plans: FDE", "m"),
    "map50": ("boxes: mAP50", ""),
    "answers_correct": ("right answers", "share"),
    "parse_failures_share": ("answers that do not parse", "share"),
    "failures_share": ("failed answers", "share"),
    "forwards_per_plan": ("forward passes per plan", ""),
    "driving_score": ("driving score", "%"),
    "route_completion": ("route completion", "share"),
    "collisions_per_route": ("collisions", "per route"),
}
Draw = Callable[[Axes], None]
Phases = Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Curves:
    """A file's columns as arrays (N,) over `step` (N,), NaN where a cell is empty."""

    step: np.ndarray
    values: dict[str, np.ndarray]

    @classmethod
    def read(cls, path: Path) -> Curves:
        """DataError for a cell that is no number."""
        rows = read_csv(path)
        names = dict.fromkeys(name for row in rows for name in row)
        try:
            values = {name: np.array([float(row.get(name, "nan")) for row in rows]) for name in names}
        except ValueError as error:
            raise DataError(f"{path}: expected numbers: {error}") from error
        return cls(np.array([step_of(path, row) for row in rows]), values)

    def line(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values where there are any."""
        known = np.isfinite(self.values[name])
        return self.step[known], self.values[name][known]


def write_plots(out: Path, recipe: Recipe | None = None) -> list[Path]:
    """All pictures of the run in `out`; their paths, the overview last, [] without a log. recipe: to show its phases.

    DataError for a log that cannot be read.
    """
    curves, found = Curves.read(out / LOG), Curves.read(out / EVALUATION)
    if not len(curves.step):
        return []
    phases = _phases(curves, recipe)
    pictures = {
        "losses": _loss_panels(curves, phases),
        "rates": _rate_panels(curves),
        "evaluation": _evaluation_panels(found),
    }
    folder = out / "plots"
    folder.mkdir(exist_ok=True)
    paths = [_save(folder / f"{name}.png", panels) for name, panels in pictures.items() if panels]
    every = [draw for panels in pictures.values() for draw in panels]
    return [*paths, _save(folder / "overview.png", every, recipe.name if recipe else out.name)]


def _loss_panels(curves: Curves, phases: Phases) -> list[Draw]:
    """The total, and a panel for each kind of loss."""
    panels: list[Draw] = [partial(_losses, curves=curves, names=["loss"], phases=phases)]
    for kind in KINDS:
        names = [name for name in curves.values if name.endswith(f"_{kind}")]
        if names:
            panels.append(partial(_losses, curves=curves, names=names, phases=phases, kind=kind))
    return panels


def _rate_panels(curves: Curves) -> list[Draw]:
    return [
        partial(_plain, curves=curves, name="lr", title="learning rate", unit="of the text model"),
        partial(_plain, curves=curves, name="tokens_per_s", title="speed", unit="trained tokens per second"),
    ]


def _evaluation_panels(found: Curves) -> list[Draw]:
    """A panel for each figure; its lines are the evaluators (and settings) that give it."""
    groups: dict[str, list[str]] = {}
    for name in found.values:
        if "/" in name:
            groups.setdefault(name.rpartition("/")[2], []).append(name)
    return [partial(_evaluations, found=found, figure=figure, names=names) for figure, names in groups.items()]


def _losses(axes: Axes, curves: Curves, names: Sequence[str], phases: Phases, kind: str = "") -> None:
    """Raw values thin, their moving average on top, one colour a task."""
    title, unit = TITLES.get(kind, ("total loss", "weighted sum, nats per token"))
    smooth = []
    for colour, name in zip(COLOURS * len(names), names):
        steps, values = curves.line(name)
        smooth.append(moving_average(values))
        single = "o" if len(steps) == 1 else None
        axes.plot(steps, values, color=colour, linewidth=0.8, alpha=0.3)
        axes.plot(steps, smooth[-1], color=colour, linewidth=1.8, marker=single, label=name.removesuffix(f"_{kind}"))
    _scale(axes, np.concatenate(smooth) if smooth else np.zeros(0))
    _mark_phases(axes, phases)
    if len(names) > 1:
        axes.legend(frameon=False, fontsize=8, ncols=min(3, len(names)), loc="upper right")
    _finish(axes, title, unit)


def _plain(axes: Axes, curves: Curves, name: str, title: str, unit: str) -> None:
    steps, values = curves.line(name)
    axes.plot(steps, values, color=COLOURS[0], linewidth=1.5, marker="o" if len(steps) == 1 else None)
    axes.set_ylim(0, 1.15 * max(values.max(initial=0.0), 1e-12))
    if name == "tokens_per_s":
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    else:
        axes.yaxis.set_major_formatter(_short_numbers)
    _finish(axes, title, unit)


def _evaluations(axes: Axes, found: Curves, figure: str, names: Sequence[str]) -> None:
    title, unit = FIGURES.get(figure, (figure.replace("_", " "), ""))
    highest = max(float(found.line(name)[1].max(initial=0.0)) for name in names)
    for colour, name in zip(COLOURS * len(names), names):
        steps, values = found.line(name)
        label = name.rpartition("/")[0]
        axes.plot(steps, values, "o-", color=colour, linewidth=1.5, markersize=4, label=label, clip_on=False)
    axes.set_ylim(0.0, 1.2 * highest or 1.0)
    axes.legend(frameon=False, fontsize=8)
    _finish(axes, title, unit)


def moving_average(values: np.ndarray, share: float = 0.04) -> np.ndarray:
    """Mean over a window of this share of all values, centred; at the ends over what there is of it."""
    half = int(share * len(values) / 2)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)


def _scale(axes: Axes, values: np.ndarray) -> None:
    """Logarithmic where the values spread over more than a factor of ten; limits by what is shown smoothed."""
    positive = values[values > 0]
    if len(positive) == len(values) and len(values) and positive.max() > 10 * positive.min():
        axes.set_yscale("log")
        axes.set_ylim(positive.min() / 1.6, positive.max() * 2.5)
        axes.yaxis.set_major_locator(
            LogLocator(subs=(1.0, 2.0, 5.0) if positive.max() < 300 * positive.min() else (1,))
        )
        axes.yaxis.set_major_formatter(_short_numbers if positive.min() > 1e-3 else LogFormatterSciNotation())
        axes.yaxis.set_minor_formatter("")
    elif len(values):
        low, high = float(values.min()), float(values.max())
        room = max(high - low, 0.05 * abs(high), 1e-6)
        axes.set_ylim(low - 0.15 * room, high + 0.35 * room)


def _short_numbers(value: float, _position: object = None) -> str:
    return f"{value:g}"


def _phases(curves: Curves, recipe: Recipe | None) -> list[tuple[float, str]]:
    """(first step, block sizes) of each phase of the recipe that the log has reached."""
    if recipe is None or not recipe.phases or "progress" not in curves.values:
        return []
    found, begin = [], 0.0
    for phase in recipe.phases:
        if begin <= curves.values["progress"][-1]:
            first = float(np.interp(begin, curves.values["progress"], curves.step)) if begin else float(curves.step[0])
            sizes = sorted(phase.blocks)
            found.append((first, f"B {sizes[0]}" if len(sizes) == 1 else f"B {sizes[0]}-{sizes[-1]}"))
        begin = phase.until
    return found


def _mark_phases(axes: Axes, phases: Phases) -> None:
    """A dotted line where a phase begins, its block sizes above the picture."""
    if not phases:
        return
    for step, _ in phases:
        axes.axvline(step, color=GREY, linewidth=1.0, linestyle=":", zorder=0)
    above = axes.secondary_xaxis("top")
    above.set_xticks([step for step, _ in phases], [text for _, text in phases], ha="left", fontsize=7, color=SOFT)
    above.tick_params(length=0, pad=1)
    above.spines["top"].set_visible(False)


def _finish(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, color=INK, fontsize=11, loc="left")
    axes.set_xlabel("step", fontsize=9)
    axes.set_ylabel(unit, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep="") if axes.get_xlim()[1] >= 10_000 else ScalarFormatter())
    axes.grid(color=GREY, linewidth=0.5, alpha=0.6, which="major")
    axes.spines[["top", "right"]].set_visible(False)


def _save(path: Path, panels: Sequence[Draw], title: str = "") -> Path:
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    width, height, above = PANEL[0] * columns, PANEL[1] * rows, 0.35 if title else 0.0
    figure = Figure(figsize=(width, height + above), dpi=110)
    FigureCanvasAgg(figure)
    # Margins in inches, set by hand: a layout that measures its texts takes most of the time.
    figure.subplots_adjust(0.75 / width, 0.5 / height, 1 - 0.2 / width, 1 - (0.45 + above) / (height + above), 0.3, 0.5)
    for number, draw in enumerate(panels):
        draw(figure.add_subplot(rows, columns, number + 1))
    if title:
        figure.suptitle(title, color=INK, fontsize=13, y=1 - 0.1 / (height + above))
    figure.savefig(path)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring. 0: done; 1: there is nothing to show; 2: no folder was named."""
    names = sys.argv[1:] if arguments is None else arguments
    if not names or names[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if names else 2
    try:
        paths = [path for name in names for path in write_plots(Path(name))]
    except Wamdiff2Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(str(path) for path in paths) or f"error: no lines in {LOG} of {', '.join(names)}")
    return 0 if paths else 1


if __name__ == "__main__":
    raise SystemExit(main())
