"""Two pictures of engine_speed's result: where a frame's time goes, and how near passes are to the device's limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.speed_report import PEAK_TFLOPS

COLOURS = {"vision": "#4c78a8", "prefill": "#f2a541", "decode": "#54a24b"}


def stages(report: dict[str, Any], path: Path) -> bool:
    """Median milliseconds of each stage of a frame, one bar a frame, with the 99th percentile of the whole marked."""
    frames = report["rows"].get("frames", {}).get("frames", {})
    if not frames:
        return False
    figure = Figure(figsize=(8, 0.7 * len(frames) + 1.6), layout="constrained")
    axes = figure.add_subplot()
    for row, one in enumerate(frames.values()):
        left = 0.0
        for name, colour in COLOURS.items():
            ms = one["ms"][name]["p50"]
            axes.barh(row, ms, left=left, color=colour, label=name if row == 0 else None, height=0.55)
            left += ms
        p99 = one["ms"]["total"]["p99"]
        axes.plot([p99, p99], [row - 0.38, row + 0.38], color="black", label="total, p99" if row == 0 else None)
        axes.text(max(left, p99), row, f"  p50 {one['ms']['total']['p50']:.1f} ms", va="center", fontsize=9)
    axes.set_yticks(
        range(len(frames)), [f"{name}\nprompt of {one['prompt']}" for name, one in frames.items()], fontsize=9
    )
    axes.invert_yaxis()
    axes.set_xlabel("ms a frame (median of each stage)")
    axes.margins(x=0.16)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    _save(figure, path)
    return True


def roofline(report: dict[str, Any], path: Path) -> bool:
    """TFLOP/s of each pass over its operations a byte, below the copy bandwidth and the data sheet's peak."""
    copy, rows = report["copy_tb_s"], report["rows"]
    passes = {label: rows.get(name, {}).get("passes", []) for name, label in _KINDS.items()}
    if not copy or not any(passes.values()):
        return False
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    span = [0.5, 9000.0]
    knee = PEAK_TFLOPS / copy
    told = f"copy bandwidth {copy:.2f} TB/s; an H200's bf16 peak by its data sheet, {PEAK_TFLOPS:.0f} TFLOP/s"
    roof = [span[0] * copy, min(PEAK_TFLOPS, span[1] * copy), min(PEAK_TFLOPS, span[1] * copy)]
    axes.plot([span[0], min(knee, span[1]), span[1]], roof, color="black", lw=1, label=told)
    for label, found in passes.items():
        x = [one["flops"] / one["bytes"] for one in found]
        y = [one["flops"] / one["ms"] / 1e9 for one in found]
        axes.plot(x, y, _MARKS[label], label=label, ms=6, alpha=0.8)
        if label == "bf16":
            for one, a, b in zip(found, x, y):
                if one["prefix"] in (0, report["prefixes"][0]):
                    name = f"prompt of {one['tokens']}" if one["pass"] == "first" else f"{one['tokens']}"
                    axes.annotate(name, (a, b), xytext=(7, -11), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="floating-point operations a byte read", ylabel="TFLOP/s", xlim=span)
    axes.set_title("Passes of the engine; labels: tokens in a pass", fontsize=10)
    figure.legend(loc="outside lower center", frameon=False, fontsize=9)
    axes.grid(alpha=0.25)
    _save(figure, path)
    return True


_KINDS = {"engine_step": "bf16", "engine_step_fp8": "fp8 weights"}
_MARKS = {"bf16": "o", "fp8 weights": "^"}


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
