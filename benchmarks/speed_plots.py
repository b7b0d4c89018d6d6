"""Two pictures of engine_speed's result: where a frame's time goes, and how near passes are to the device's limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.speed_report import AIMS, PEAK_TFLOPS

COLOURS = {"vision": "#4c78a8", "prefill": "#f2a541", "decode": "#54a24b"}


def stages(report: dict[str, Any], path: Path) -> bool:
    """Median milliseconds of each stage of a frame, one bar a frame, with the 99th percentile of the whole marked."""
    frames = report["rows"].get("frames", {}).get("frames", {})
    if not frames:
        return False
    figure = Figure(figsize=(8, 0.7 * len(frames) + 1.6), layout="constrained")
    axes = figure.add_subplot()
    drawn: dict[str, Any] = {}
    for row, (title, one) in enumerate(frames.items()):
        left = 0.0
        whole = one["ms"]["total"]
        for name, colour in COLOURS.items():
            ms = one["ms"][name]["p50"]
            drawn[name] = axes.barh(row, ms, left=left, color=colour, height=0.55)
            if ms > 0.06 * whole["p50"]:
                axes.text(left + ms / 2, row, f"{ms:.1f}", ha="center", va="center", fontsize=9)
            left += ms
        (drawn["total, p99"],) = axes.plot([whole["p99"]] * 2, [row - 0.38, row + 0.38], color="black")
        if title.startswith("3 "):
            aim = AIMS["frame_ms_p99_3cams"].aim
            (drawn["aim for p99"],) = axes.plot([aim] * 2, [row - 0.38, row + 0.38], color="#b00000", ls="--")
            left = max(left, aim)
        told = f"  p50 {whole['p50']:.1f}, p99 {whole['p99']:.1f}"
        axes.text(max(left, whole["p99"]), row, told, va="center", fontsize=9)
    axes.set_yticks(
        range(len(frames)), [f"{name}\nprompt of {one['prompt']}" for name, one in frames.items()], fontsize=9
    )
    axes.invert_yaxis()
    axes.set_xlabel("ms a frame (median of each stage)")
    axes.margins(x=0.24)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(drawn.values(), drawn.keys(), loc="outside upper center", ncols=len(drawn), frameon=False)
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
                    prompt = one["pass"] == "first"
                    name = f"prompt\n{one['tokens']:,}" if prompt else f"{one['tokens']}"
                    place: dict[str, Any] = {"xytext": (7, -11)}
                    if prompt:  # above the roof, which would cross it
                        place = {"xytext": (0, 42), "ha": "center", "arrowprops": {"arrowstyle": "-", "lw": 0.5}}
                    axes.annotate(name, (a, b), textcoords="offset points", fontsize=8, **place)
    axes.set(xscale="log", yscale="log", xlabel="floating-point operations a byte read", ylabel="TFLOP/s", xlim=span)
    axes.set_ylim(top=4 * PEAK_TFLOPS)
    prefixes = " and ".join(f"{prefix:,}" for prefix in report["prefixes"])
    axes.set_title(f"Passes of the engine behind prefixes of {prefixes}; labels: tokens in a pass", fontsize=10)
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
