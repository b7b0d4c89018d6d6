"""The speed table of the captured engine: what `make bench` runs on a GPU.

python -m benchmarks.engine_speed                                  one GPU, all rows, under 400 s: results/h200.json
python -m benchmarks.engine_speed --rows copy,engine_step --out x.json     some rows; --keep: beside what x.json has
python -m benchmarks.engine_speed --report                         the JSON as a section of RESULTS.md, and its plots
python -m benchmarks.engine_speed --tiny --device cpu --kernels torch      a rehearsal: out/bench/engine_speed.json

Qwen3-VL-2B's shape with random weights, batch 1, bfloat16. The file is written after every row; a row that fails leaves
its error there and costs no other row.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import speed_frames, speed_rows, speed_transformers
from benchmarks.speed_report import headlines, write_report
from benchmarks.speed_setup import REAL, TINY, Setup
from wamdiff2_core.evaluate.machine import machine

OUT, ELSEWHERE = Path("benchmarks/results/h200.json"), Path("out/bench/engine_speed.json")
ROWS: dict[str, Callable[[Setup], dict[str, Any]]] = {
    "copy": speed_rows.copy_bandwidth,
    "prebuild": speed_rows.prebuild,
    "engine_step": speed_rows.engine_step,
    "blocks": speed_rows.blocks,
    "engine_ar": speed_rows.engine_ar,
    "engine_step_fp8": speed_rows.engine_step_fp8,
    "batch3": speed_rows.batch3,
    "frames": speed_frames.frames,
    "hf_graph_ar": speed_transformers.graph_ar,
    "hf_eager_ar": speed_transformers.eager_ar,
    "ladder": speed_rows.ladder,
    "trained": speed_frames.trained,
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS), help=", ".join(ROWS))
    parser.add_argument("--seconds", type=float, default=12.0, help="that each row may repeat its calls for")
    parser.add_argument("--total", type=float, default=380.0, help="seconds after which no further row begins")
    parser.add_argument("--kernels", default="auto", help="auto, torch, triton")
    parser.add_argument(
        "--lookahead", type=int, choices=(0, 1), help="launches ahead of the flags; default: 1 on a GPU"
    )
    parser.add_argument("--pdl", action="store_true", help="dependent launches")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/tiny"), help="for the row `trained`")
    parser.add_argument("--tiny", action="store_true", help="a shape of nothing, for a rehearsal")
    parser.add_argument("--out", type=Path, help=f"default: {OUT} on an H200, else {ELSEWHERE}")
    parser.add_argument("--keep", action="store_true", help="keep the other rows that --out has")
    parser.add_argument(
        "--report", action="store_true", help="measure nothing: print Markdown of --out, draw its plots"
    )
    parser.add_argument("--images", type=Path, default=Path("docs/images"), help="where --report draws")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.rows if name not in ROWS]
    if unknown:
        parser.error(f"--rows: expected some of {', '.join(ROWS)}; got {', '.join(unknown)}")
    if options.device.startswith("cuda") and not options.report and not torch.cuda.is_available():
        parser.error("no CUDA device here: `wamdiff2 bench` measures a CPU; --tiny --device cpu rehearses this")
    there = options.device.startswith("cuda") and not options.tiny and not options.report
    h200 = there and "H200" in torch.cuda.get_device_name(options.device)
    options.out = options.out or (OUT if h200 or options.report else ELSEWHERE)
    if options.out == OUT and not h200 and not options.report:
        parser.error(f"--out: {OUT} is for an H200's figures; name another file")
    return options


def head(options: argparse.Namespace, arguments: list[str]) -> dict[str, Any]:
    """What a result says about itself."""
    import transformers

    sizes = TINY if options.tiny else REAL
    facts = machine(options.device)
    return {
        "what": "engine speed", "machine": facts, "commit": facts["commit"],
        "command": " ".join(["python -m benchmarks.engine_speed", *arguments]),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "transformers": transformers.__version__}
        | {"triton": _version("triton"), "flashinfer": _version("flashinfer-python")},
        "weights": f"random, shape {sizes.shape}", "prefixes": list(sizes.prefixes),
        "settings": {"kernels": options.kernels, "lookahead": options.lookahead, "pdl": options.pdl},
        "rows": {},
    }  # fmt: skip


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def measure(setup: Setup, report: dict[str, Any], names: list[str], out: Path, total: float = 380.0) -> int:
    """Run rows in order, writing `out` after each; returns how many failed."""
    began, failed = time.perf_counter(), 0
    for name in names:
        start = time.perf_counter()
        if start - began > total:
            row: dict[str, Any] = {"error": f"not run: {total:.0f} s were over"}
        else:
            row = _one(name, setup)
        failed += "error" in row
        row = rounded(row) | {"row_s": round(time.perf_counter() - start, 2), "commit": report["commit"]}
        report["rows"][name] = row
        report |= headlines(report["rows"])
        report["seconds"] = round(time.perf_counter() - began, 1)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")
        told = row.get("error") or json.dumps({key: value for key, value in row.items() if key != "commit"})
        print(f"{name:<16} {row['row_s']:7.1f} s  {told[:600]}", flush=True)
    return failed


def rounded(value: Any) -> Any:
    """The same with five digits of every fraction."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, (list, tuple)) else value


def _one(name: str, setup: Setup) -> dict[str, Any]:
    try:
        return ROWS[name](setup)
    except Exception as error:  # noqa: BLE001 - told and in the file; the other rows are worth more than a traceback
        traceback.print_exc()
        if setup.cuda:
            torch.cuda.empty_cache()
        return {"error": f"{type(error).__name__}: {error}"}


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    if options.report:
        print(write_report(json.loads(options.out.read_text()), options.images))
        return 0
    sizes = TINY if options.tiny else REAL
    setup = Setup(
        torch.device(options.device), sizes, options.kernels, options.lookahead, options.pdl, options.seconds,
        options.checkpoint,
    )  # fmt: skip
    report = head(options, sys.argv[1:] if arguments is None else arguments)
    if options.keep and options.out.is_file():
        report["rows"] = json.loads(options.out.read_text())["rows"]
    failed = measure(setup, report, options.rows, options.out, options.total)
    print(f"# {options.out}: {report['seconds']} s, {failed} of {len(options.rows)} rows failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
