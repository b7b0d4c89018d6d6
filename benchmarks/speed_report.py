"""The result of engine_speed: its headline figures, a section for RESULTS.md, two plots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEADLINES = (
    "step_ms_b32", "step_ms_b32_fp8", "tps_b1", "tps_b32_8steps", "tps_hf_eager_ar", "tps_hf_graph_ar",
    "batch3_speedup", "dial_ms", "frame_ms_p99_3cams", "copy_tb_s",
)  # fmt: skip


@dataclass(frozen=True)
class Aim:
    """What a figure should reach, and a further mark beyond it. least: the figure should be large."""

    aim: float
    least: bool
    mark: float | None = None

    def said(self) -> str:
        mark = "" if self.mark is None else f", mark {self.mark:g}"
        return f"{'>=' if self.least else '<='} {self.aim:g}{mark}"

    def verdict(self, value: float) -> str:
        """Of the unrounded value."""
        far = [limit for limit in (self.aim, self.mark) if limit is not None and self._holds(value, limit)]
        if not far:
            return "**missed**"
        return "reached" if self.mark is None else f"reached, the mark {'too' if len(far) == 2 else '**missed**'}"

    def _holds(self, value: float, limit: float) -> bool:
        return value >= limit if self.least else value <= limit


ROWS_SAID = {
    "step_ms_b32": "one denoising step of 32 tokens, ms", "step_ms_b32_fp8": "the same with 8-bit weights, ms",
    "tps_b1": "B = 1, tokens/s", "tps_b32_8steps": "B = 32, 8 steps a block, tokens/s",
    "tps_hf_eager_ar": "transformers eager, B = 1, tokens/s",
    "tps_hf_graph_ar": "transformers, static cache in a graph, B = 1, tokens/s",
    "batch3_speedup": "three answers in one batch against one after another, times",
    "dial_ms": "a change of block size after warm-up, the median of the dearest pair, ms",
    "frame_ms_p99_3cams": "a frame of 3 cameras of 600 tokens, p99, ms", "copy_tb_s": "copy bandwidth, TB/s",
    "over_own_ar": "B = 32 against our B = 1, times", "over_eager_ar": "B = 32 against transformers eager, times",
}  # fmt: skip
AIMS = {
    "step_ms_b32": Aim(1.5, False, 1.15), "step_ms_b32_fp8": Aim(1.0, False), "tps_b1": Aim(650.0, True),
    "tps_b32_8steps": Aim(2600.0, True, 3400.0), "over_own_ar": Aim(3.5, True), "over_eager_ar": Aim(100.0, True),
    "batch3_speedup": Aim(2.3, True), "dial_ms": Aim(5.0, False), "frame_ms_p99_3cams": Aim(60.0, False),
}  # fmt: skip
"""On one H200, behind a prefix of 1,024 tokens."""
BASELINES = ("tps_hf_eager_ar", "tps_hf_graph_ar")
PAPER = {"4": 401.4, "8": 561.6, "16": 635.3, "32": 673.4}  # tokens a second, FlashInfer and graphs
PEAK_TFLOPS = 989.0  # an H200's dense bfloat16 products, by its data sheet


def headlines(rows: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    """The figures that have names of their own; None where their row failed or was not run."""

    def get(name: str, *keys: str) -> Any:
        at: Any = rows.get(name, {})
        for key in keys:
            at = at.get(key) if isinstance(at, dict) else None
        return at

    def first(at: Any, key: str) -> float | None:
        """Of the shortest prefix, which stands first."""
        return next(iter(at.values()))[key] if at else None

    frames = get("frames", "frames") or {}
    three = next((one for name, one in frames.items() if name.startswith("3 ")), None)
    return {
        "step_ms_b32": _step(get("engine_step", "passes")),
        "step_ms_b32_fp8": _step(get("engine_step_fp8", "passes")),
        "tps_b1": first(get("engine_ar", "prefixes"), "tps"),
        "tps_b32_8steps": first(get("blocks", "block_sizes", "32"), "tps"),
        "tps_hf_eager_ar": first(get("hf_eager_ar", "prefixes"), "tps"),
        "tps_hf_graph_ar": first(get("hf_graph_ar", "prefixes"), "tps"),
        "batch3_speedup": get("batch3", "speedup"),
        "dial_ms": _dearest(get("dial", "pairs")),
        "frame_ms_p99_3cams": three["ms"]["total"]["p99"] if three else None,
        "copy_tb_s": get("copy", "tb_s"),
    }


def _step(passes: list[dict[str, Any]] | None) -> float | None:
    found = (one["ms"] for one in passes or () if (one["pass"], one["block_size"]) == ("narrow", 32))
    return next(found, None)


def _dearest(pairs: list[dict[str, Any]] | None) -> float | None:
    """What the dearest change of block size costs; below 0 there is only noise."""
    return max(0.0, *(one["difference_ms"] for one in pairs)) if pairs else None


def rounded(value: Any) -> Any:
    """The same with five digits of every fraction."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, (list, tuple)) else value


def write_report(report: dict[str, Any], images: Path) -> str:
    """Markdown of the whole result; draws engine_stages.png and engine_roofline.png where their rows are there."""
    from benchmarks import speed_plots

    rows = report["rows"]
    machine = report["machine"]
    lines = [
        f"## Captured engine, {machine.get('gpu', machine['cpu'])}", "",
        f"commit `{report['commit'][:12]}`, `{report['command']}`; {report['weights']}; "
        + ", ".join(f"{name} {version}" for name, version in report["versions"].items() if version),
        "", *_headlines(report), *_speeds(rows), *_dial(rows), *_passes(rows, report["copy_tb_s"]),
        *_frames(rows), *_ladder(rows, report), *_trained(rows), *_errors(rows),
    ]  # fmt: skip
    for name, draw in (("engine_stages.png", speed_plots.stages), ("engine_roofline.png", speed_plots.roofline)):
        if draw(report, images / name):
            lines += [f"![{name}](../docs/images/{name})", ""]
    return "\n".join(lines)


def number(value: float | None, digits: int = 4) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def _table(head: list[str], body: list[list[str]]) -> list[str]:
    marks = "|".join([":---", *["---:"] * (len(head) - 1)])
    return [f"| {' | '.join(head)} |", f"|{marks}|", *(f"| {' | '.join(row)} |" for row in body), ""]


def _headlines(report: dict[str, Any]) -> list[str]:
    """Every headline and what was aimed at; both ratios behind the figure they are made of."""
    ours = report["tps_b32_8steps"]
    ratios = {"over_own_ar": report["tps_b1"], "over_eager_ar": report["tps_hf_eager_ar"]}
    found: dict[str, float | None] = {}
    for name in HEADLINES:
        found[name] = report.get(name)  # a file may be older than a figure
        if name == "tps_b32_8steps":
            found |= {ratio: ours / other if ours and other else None for ratio, other in ratios.items()}
    body = []
    for name, value in found.items():
        aim, key = AIMS.get(name), f" (`{name}`)" if name in HEADLINES else ""
        told = "baseline" if name in BASELINES else "-" if aim is None else aim.said()
        verdict = "" if aim is None else "not measured" if value is None else aim.verdict(value)
        body.append([ROWS_SAID[name] + key, number(value), told, verdict])
    return _table(["figure", "measured", "aim", "reached?"], body)


def _speeds(rows: dict[str, Any]) -> list[str]:
    """Tokens a second by prefix."""
    found: dict[str, dict[str, Any]] = {}
    for name, label in (
        ("hf_eager_ar", "transformers eager, AR"),
        ("hf_graph_ar", "transformers, static cache in a graph, AR"),
        ("engine_ar", "engine, B = 1"),
    ):
        if "prefixes" in rows.get(name, {}):
            found[label] = rows[name]["prefixes"]
    papers: dict[str, float] = {}
    for size, one in rows.get("blocks", {}).get("block_sizes", {}).items():
        label = f"engine, B = {size}, {min(8, int(size))} steps a block"
        found[label], papers[label] = one, PAPER[size]
    if not found:
        return []
    prefixes = list(next(iter(found.values())))
    body = [[name, *(number(one[p]["tps"]) for p in prefixes), number(papers.get(name))] for name, one in found.items()]
    return _table(["tokens/s behind a prefix of", *(f"{int(p):,}" for p in prefixes), "paper"], body)


def _dial(rows: dict[str, Any]) -> list[str]:
    """Every change of block size, beside the same call without one."""
    keys = ("changed_ms", "same_ms", "difference_ms", "largest_ms", "changes")
    body = [
        [f"{one['from']} to {one['to']}", *(number(one[key]) for key in keys)]
        for one in rows.get("dial", {}).get("pairs", ())
    ]
    head = ["block size, ms of a call", "changed", "not changed", "median difference", "largest", "changes"]
    return _table(head, body) if body else []


def _passes(rows: dict[str, Any], copy: float | None) -> list[str]:
    body = []
    for name, label in (("engine_step", "bf16"), ("engine_step_fp8", "fp8")):
        for one in rows.get(name, {}).get("passes", ()):
            share = one["bytes"] / one["ms"] / 1e9
            told = f"{100 * share / copy:.0f}%" if copy else "-"
            cells = [str(one["tokens"]), str(one["prefix"]), number(one["ms"]), f"{share:.2f}", told]
            body.append([f"{label}, {one['pass']}, B = {one['block_size']}", *cells])
    return _table(["one pass", "tokens", "prefix", "ms", "TB/s", "of the copy"], body) if body else []


def _frames(rows: dict[str, Any]) -> list[str]:
    body = [
        [name, str(one["prompt"]), *(f"{number(ms['p50'])}, {number(ms['p99'])}" for ms in one["ms"].values())]
        for name, one in rows.get("frames", {}).get("frames", {}).items()
    ]
    head = ["a whole frame, ms p50, p99", "prompt", "vision", "prefill", "decode", "total"]
    return _table(head, body) if body else []


def _trained(rows: dict[str, Any]) -> list[str]:
    body = [
        [f"B = {size}, {rule}", str(one["forwards"]), number(one["tokens_per_forward"]), number(one["tps"])]
        for size, rules in rows.get("trained", {}).get("block_sizes", {}).items()
        for rule, one in rules.items()
    ]
    return _table(["trained checkpoint, a plan", "forwards", "tokens/forward", "tokens/s"], body) if body else []


def _ladder(rows: dict[str, Any], report: dict[str, Any]) -> list[str]:
    one = rows.get("ladder", {})
    if "paper" not in one:
        return []
    paper, baseline = one["paper"], report["tps_hf_eager_ar"]
    if "flashinfer_problem" not in one:  # measured before FlashInfer was a kernel set of the engine
        steps = [
            ("eager, B = 1", baseline, paper["eager_b1"]),
            ("eager, B = 32", one["eager_b32_tps"], paper["eager_b32"]),
            (f"+ FlashInfer; ours: {one['kernels']}", one["kernels_b32_tps"], paper["flashinfer_b32"]),
            ("+ graphs", one["graphs_b32_tps"], paper["flashinfer_graphs_b32"]),
        ]  # fmt: skip
        return _table(["tokens/s", "ours", "paper"], [[name, number(a), number(b)] for name, a, b in steps])
    both = [
        ("eager, B = 1", baseline, baseline, paper["eager_b1"]),
        ("eager, B = 32", one["eager_b32_tps"], one["eager_b32_tps"], paper["eager_b32"]),
        ("+ kernels", one["kernels_b32_tps"], one["flashinfer_b32_tps"], paper["flashinfer_b32"]),
        ("+ graphs", one["graphs_b32_tps"], one["flashinfer_graphs_b32_tps"], paper["flashinfer_graphs_b32"]),
    ]  # fmt: skip
    problem = one["flashinfer_problem"]
    return [
        *_table(
            ["tokens/s", f"ours, {one['kernels']}", "ours, FlashInfer", "paper, FlashInfer"],
            [[name, *map(number, values)] for name, *values in both],
        ),
        *([f"FlashInfer's steps were not taken: {problem}", ""] if problem else []),
    ]


def _errors(rows: dict[str, Any]) -> list[str]:
    failed = [f"- `{name}` failed: {row['error']}" for name, row in rows.items() if "error" in row]
    return [*failed, ""] if failed else []
