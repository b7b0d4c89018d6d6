"""The pictures of the proof, from the dict of results.collect. What was not measured is said in its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from wamdiff2_core.scene import PLAN_STEP_S

INK, BLUE, GREEN, ORANGE, RED, GREY = "#1f2933", "#2f6fde", "#1f9d61", "#e08a1e", "#d64545", "#c3ccd6"
STAGES = ("ar", "direct", "stage1", "stage2", "stage3", "kl", "ar_teacher")
NAMES = {
    "ar": "AR", "direct": "direct", "stage1": "stage 1", "stage2": "+ stage 2", "stage3": "+ stage 3",
    "kl": "forward KL", "ar_teacher": "AR teacher", "same": "same", "base": "first AR", "teacher_ar": "large AR",
    "teacher_blocks": "large diffusion", "answers": "teacher's answers",
}  # fmt: skip
COLOURS = {"ar": INK, "direct": RED, "stage1": "#9db8ea", "stage2": "#6790e3", "stage3": BLUE,
           "kl": ORANGE, "ar_teacher": GREEN}  # fmt: skip
SIZES = {"o": 16, "*": 70}
MISSING = "not measured"


def draw_all(results: dict, folder: Path) -> list[Path]:
    """Write all pictures; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, draw in (
        ("stages", stages),
        ("exposure", exposure),
        ("steps", steps),
        ("forks", forks),
        ("blocks", blocks),
    ):
        path = folder / f"distill_{name}.png"
        draw(results).savefig(path, format="png", metadata={"Software": ""})
        drawn.append(path)
    return drawn


def stages(results: dict) -> Figure:
    """Four figures of each row: mean over seeds, standard deviation, and every seed as a dot."""
    figure, axes = _figure(11.0, 3.6, 4)
    panels = (("closed_loop", "driving score, %", 1.0, None), ("ade_m", "ADE, m (less is better)", 1.0, None),
              ("map50", "mAP50, %", 100.0, None), ("answers", "right answers, %", 100.0, None))  # fmt: skip
    for ax, (key, title, scale, _) in zip(axes, panels, strict=True):
        _bars(ax, {row: results["rows"].get(row, {}).get(key) for row in STAGES}, scale)
        ax.set_title(title, fontsize=10, color=INK)
    return figure


def exposure(results: dict) -> Figure:
    """Mean error by waypoint of both ways to decode, and their gap with its standard error."""
    figure, axes = _figure(9.0, 3.4, 2)
    found = results["exposure"].get("stage3")
    if found is None:
        return _nothing(figure, axes)
    seconds = [PLAN_STEP_S * (k + 1) for k in range(len(found["gap_m"]))]
    axes[0].plot(seconds, found["autoregressive_m"], "o-", color=INK, label="autoregressive, B = 1")
    axes[0].plot(seconds, found["diffusion_m"], "o-", color=BLUE, label="diffusion, B = 32")
    axes[0].set_ylabel("mean L2 to the expert, m")
    axes[0].legend(frameon=False)
    axes[0].set_ylim(bottom=0)
    for curve in found["seeds"].values():
        axes[1].plot(seconds, curve, "-", color=GREY, linewidth=1)
    error = [0.0 if value is None else value for value in found["gap_error_m"]]
    axes[1].errorbar(seconds, found["gap_m"], yerr=error, fmt="o-", color=BLUE, capsize=3,
                     label=f"mean of {found['frames']} frames; grey: single seeds")  # fmt: skip
    axes[1].axhline(0.0, color=INK, linewidth=0.8)
    axes[1].set_ylabel("autoregressive minus diffusion, m")
    axes[1].legend(frameon=False)
    for ax in axes:
        ax.set_xlabel("seconds ahead")
    return figure


def steps(results: dict) -> Figure:
    """ADE and right answers against forwards, scaffold and free text apart, with the front."""
    figure, axes = _figure(9.0, 3.6, 2)
    found = results["steps"].get("stage3")
    if found is None:
        return _nothing(figure, axes)
    for scaffold, colour, label in ((True, BLUE, "with scaffold"), (False, ORANGE, "free text")):
        points = [p for p in found["points"] if p["scaffold"] == scaffold and p["ade_m"] is not None]
        for block, marker in ((32, "o"), (1, "*")):
            mine = [p for p in points if p["block_size"] == block]
            look = {"s": SIZES[marker], "marker": marker, "color": colour, "alpha": 0.8}
            axes[0].scatter([p["forwards_per_plan"] for p in mine], [p["ade_m"] for p in mine], **look,
                            label=f"{label}, B = {block}")  # fmt: skip
    axes[0].plot([p["forwards_per_plan"] for p in found["front"]], [p["ade_m"] for p in found["front"]], "-",
                 color=BLUE, linewidth=1, label="front")  # fmt: skip
    axes[0].set_xlabel("forwards per plan")
    axes[0].set_ylabel("ADE, m")
    _doubling(axes[0])
    axes[0].legend(frameon=False, fontsize=8)
    asked = [p for p in found["points"] if p["answers_correct"] is not None and p["scaffold"]]
    for block, marker in ((32, "o"), (1, "*")):
        mine = [p for p in asked if p["block_size"] == block]
        shares = [100.0 * p["answers_correct"] for p in mine]
        axes[1].scatter([p["forwards_per_answer"] for p in mine], shares, s=SIZES[marker], marker=marker, color=GREEN,
                        label=f"free-text answers, B = {block}")  # fmt: skip
    axes[1].set_xlabel("forwards per answer")
    axes[1].set_ylabel("right answers, %")
    axes[1].legend(frameon=False, fontsize=8)
    return figure


def forks(results: dict) -> Figure:
    """Distinct plans and their entropy at a fork."""
    figure, axes = _figure(9.0, 3.4, 2)
    rows = ("ar", "stage1", "stage2", "stage3", "kl", "ar_teacher")
    for ax, (key, title) in zip(axes, (("modes", "distinct plans of those drawn"), ("entropy", "their entropy, nats"))):
        _bars(ax, {row: (results["forks"].get(row) or {}).get(key) for row in rows}, 1.0)
        ax.set_title(title, fontsize=10, color=INK)
    return figure


def blocks(results: dict) -> Figure:
    """ADE against steps at every block size: "next" + causal beside "same" + block-causal."""
    figure, axes = _figure(10.5, 3.2, 4, same_y=True)
    rows = {"stage1": ("next, causal", BLUE), "same": ("same, block-causal", ORANGE)}
    if not any(results["blocks"].get(row) for row in rows):
        return _nothing(figure, axes)
    for ax, block in zip(axes, (4, 8, 16, 32), strict=True):
        for row, (label, colour) in rows.items():
            found = results["blocks"].get(row)
            points = [
                p for p in (found or {"points": []})["points"] if p["block_size"] == block and p["ade_m"] is not None
            ]
            ax.plot([p["steps"] for p in points], [p["ade_m"] for p in points], "o-", color=colour,
                    label=label if points else f"{label}: {MISSING}")  # fmt: skip
        ax.set_title(f"B = {block}", fontsize=10, color=INK)
        _doubling(ax)
        ax.set_xlabel("steps per block")
    axes[0].set_ylabel("ADE, m")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def _bars(ax: Any, values: dict[str, dict | None], scale: float) -> None:
    """A bar per row; rows without a value say so."""
    for at, (row, value) in enumerate(values.items()):
        if value is None:
            ax.text(at, 0.02, MISSING, rotation=90, ha="center", va="bottom", fontsize=8, color=RED,
                    transform=ax.get_xaxis_transform())  # fmt: skip
            continue
        seeds = [scale * seed for seed in value["seeds"]]
        error = None if value["spread"] is None else scale * value["spread"]
        ax.bar(at, scale * value["mean"], color=COLOURS.get(row, GREY), width=0.7, yerr=error, capsize=3, alpha=0.85)
        ax.scatter([at] * len(seeds), seeds, color="white", edgecolor=INK, s=14, zorder=3, linewidth=0.8)
    ax.set_xticks(range(len(values)), [NAMES[row] for row in values], rotation=55, ha="right", fontsize=8)
    ax.set_xlim(-0.6, len(values) - 0.4)


def _doubling(ax: Any) -> None:
    """A logarithmic x axis with plain numbers on it."""
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def _nothing(figure: Figure, axes: Sequence[Any]) -> Figure:
    for ax in axes:
        ax.text(0.5, 0.5, MISSING, ha="center", color=RED, transform=ax.transAxes)
    return figure


def _figure(width: float, height: float, panels: int, same_y: bool = False) -> tuple[Figure, Sequence[Any]]:
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, sharey=same_y)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes
