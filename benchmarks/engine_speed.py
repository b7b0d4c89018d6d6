"""The speed table of the captured engine: what `make bench` runs on a GPU.

python -m benchmarks.engine_speed                                  one GPU, all rows, under 400 s: results/h200.json
python -m benchmarks.engine_speed --rows copy,engine_step --out x.json     some rows; --keep: beside what x.json has
python -m benchmarks.engine_speed --report                         the JSON as a section of RESULTS.md, and its plots
python -m benchmarks.engine_speed --tiny --device cpu --kernels torch      a rehearsal: out/bench/engine_speed.json

Qwen3-VL-2B's shape with random weights, batch 1, bfloat16. The file is written after every row; a row that fails leaves
its error there and costs no other row: where the device no longer answers, the program starts itself anew for the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import speed_dial, speed_frames, speed_rows, speed_transformers
from benchmarks.speed_report import headlines, rounded, write_report
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
    "dial": speed_dial.dial,
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
    parser.add_argument("--row-limit", type=float, default=150.0, help="seconds after which a row counts as stuck")
    parser.add_argument("--commit", default="", help="of the tree that runs, where git cannot tell")
    parser.add_argument("--kernels", default="auto", help="auto, torch, triton")
    parser.add_argument(
        "--lookahead", type=int, choices=(0, 1), help="launches ahead of the flags; default: 1 on a GPU"
    )
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
    facts["commit"] = options.commit or facts["commit"]
    return {
        "what": "engine speed", "machine": facts, "commit": facts["commit"],
        "command": " ".join(["python -m benchmarks.engine_speed", *arguments]),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "transformers": transformers.__version__}
        | {"triton": _version("triton"), "flashinfer": _version("flashinfer-python")},
        "weights": f"random, shape {sizes.shape}", "prefixes": list(sizes.prefixes),
        "settings": {"kernels": options.kernels, "lookahead": options.lookahead},
        "rows": {},
    }  # fmt: skip


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


class Run:
    """Rows in order, `out` written after each. report: see `head`. arguments: those of the command line."""

    def __init__(self, options: argparse.Namespace, arguments: list[str], report: dict[str, Any]) -> None:
        self.options, self.arguments, self.report = options, arguments, report
        self.began = time.perf_counter()

    def measure(self, setup: Setup) -> None:
        for at, name in enumerate(self.options.rows):
            self.start = time.perf_counter()
            rest = self.options.rows[at + 1 :]
            if self.start - self.began > self.options.total:
                self.note(name, {"error": f"not run: {self.options.total:.0f} s were over"})
                continue
            timer = threading.Timer(self.options.row_limit, self._stuck, (name, rest))
            timer.daemon = True
            timer.start()
            try:
                row = _one(name, setup)
            finally:
                timer.cancel()
            self.note(name, row)
            if (row.get("error") or row.get("flashinfer_problem")) and setup.cuda and poisoned():
                self.again(rest)

    def note(self, name: str, row: dict[str, Any]) -> None:
        """Keep a row, write the file, say it."""
        seconds = round(time.perf_counter() - self.start, 2)
        row = rounded(row) | {"row_s": seconds, "commit": self.report["commit"]}
        self.report["rows"][name] = row
        self.report |= headlines(self.report["rows"])
        self.report["seconds"] = round(time.perf_counter() - self.began, 1)
        self.options.out.parent.mkdir(parents=True, exist_ok=True)
        self.options.out.write_text(json.dumps(self.report, indent=1) + "\n")
        told = row.get("error") or json.dumps({key: value for key, value in row.items() if key != "commit"})
        print(f"{name:<16} {seconds:7.1f} s  {told[:600]}", flush=True)

    def again(self, rest: list[str]) -> None:
        """This program anew, with the rows that are left: a broken CUDA context stays broken as long as its process."""
        if not rest:
            return
        left = self.options.total - (time.perf_counter() - self.began)
        print(f"# the device does not answer: starting anew for {', '.join(rest)}", flush=True)
        more = ["--rows", ",".join(rest), "--keep", "--total", f"{left:.0f}"]
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.engine_speed", *self.arguments, *more])

    def _stuck(self, name: str, rest: list[str]) -> None:
        """In a thread of its own, since the one that measures may wait for the device for ever."""
        self.note(name, {"error": f"stuck: not done after {self.options.row_limit:.0f} s"})
        self.again(rest)
        os._exit(1)


def poisoned() -> bool:
    """Whether this process can no longer use its GPU."""
    try:
        torch.ones(1, device="cuda").add_(1)
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _one(name: str, setup: Setup) -> dict[str, Any]:
    try:
        return ROWS[name](setup)
    except Exception as error:  # noqa: BLE001 - told and in the file; the other rows are worth more than a traceback
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    if options.report:
        print(write_report(json.loads(options.out.read_text()), options.images))
        return 0
    sizes = TINY if options.tiny else REAL
    setup = Setup(
        torch.device(options.device), sizes, options.kernels, options.lookahead, options.seconds,
        options.checkpoint,
    )  # fmt: skip
    told = sys.argv[1:] if arguments is None else arguments
    report = head(options, told)
    if options.keep and options.out.is_file():
        report["rows"] = json.loads(options.out.read_text())["rows"]
    Run(options, told, report).measure(setup)
    failed = [name for name, row in report["rows"].items() if "error" in row]
    print(f"# {options.out}: {report['seconds']} s; failed: {', '.join(failed) or 'none'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
