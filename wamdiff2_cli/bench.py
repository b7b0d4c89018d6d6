"""`wamdiff2 bench`: milliseconds per plan on this machine, by block size."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from wamdiff2_cli.kernels import Kernels
from wamdiff2_core.errors import ConfigError

if TYPE_CHECKING:
    from wamdiff2_core.driver import Driver
    from wamdiff2_core.scene import Scene

NAME = "bench"
TOWN = "Town02"
QUESTION = "what is ahead of us?"


def run(
    checkpoint: Annotated[Path | None, typer.Option(help="Checkpoint folder; default: the one here")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of shards; default: frames rendered now")] = None,
    blocks: Annotated[str, typer.Option("--block-sizes", help="Block sizes, like 1,4,8,16,32")] = "1,4,8,16,32",
    steps: Annotated[int, typer.Option(min=1, help="Most denoising steps per block")] = 8,
    threshold: Annotated[float, typer.Option(min=0.0, max=1.0, help="Probability from which a token is taken")] = 0.9,
    rule: Annotated[str, typer.Option(help="dynamic, static, sequential or ordered")] = "dynamic",
    scenes: Annotated[int, typer.Option(min=1, help="Measured scenes per block size")] = 20,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch")] = 2,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, ...")] = "float32",
    kernels: Kernels = "auto",
    out: Annotated[Path, typer.Option(help="Result")] = Path("out/bench/bench.json"),
    write: Annotated[bool, typer.Option("--write", help="Also append to benchmarks/RESULTS.md")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else")] = False,
) -> None:
    """Medians per block size: a plan alone by stage, its forwards, and plan, boxes and answer together ("scene")."""
    from wamdiff2_cli.checkpoints import checkpoint_folder
    from wamdiff2_cli.evaluate import block_sizes
    from wamdiff2_core import DecodingConfig
    from wamdiff2_core.evaluate.machine import machine
    from wamdiff2_core.evaluate.summary import write_json

    folder, sizes = checkpoint_folder(checkpoint), block_sizes(blocks)
    console = Console(stderr=True, quiet=as_json)
    decoding = DecodingConfig(steps=steps, rule=rule, threshold=threshold)
    results, ran = _measure(folder, data, sizes, decoding, scenes, threads, (device, dtype, kernels), console)
    settings = {"checkpoint": str(folder), "data": str(data or TOWN), "steps": steps, "rule": rule}
    settings |= {"threshold": threshold, "threads": threads, "device": device, "dtype": dtype} | ran
    settings["command"] = "wamdiff2 " + " ".join(sys.argv[1:])
    report = {"what": "bench", "settings": settings, "machine": machine(device), "results": results}
    write_json(out, report)
    _show(report, as_json)
    if write:
        append(results_file(), report)


def _measure(folder, data, sizes, decoding, scenes, threads, place, console) -> tuple[list, dict[str, str]]:
    """Results by block size, and which kernels ran and why: the word that was asked for may be auto."""
    import torch
    from rich.progress import track

    from wamdiff2_core.driver import Driver
    from wamdiff2_core.evaluate.speed import measure
    from wamdiff2_core.expected import Expected

    torch.set_num_threads(threads)
    device, dtype, kernels = place
    driver = Driver.from_checkpoint(folder, device, dtype, decoding, kernels, sizes)
    driver.get_ready(Expected(block_sizes=tuple(sizes)))  # no measured answer includes a capture
    chosen = _rendered(driver, scenes) if data is None else _stored(driver, data, scenes)
    results = []
    for size in track(sizes, "block sizes", console=console, disable=console.quiet):
        results += measure(driver, chosen, [size], decoding.steps)
    return results, {"kernels": driver.kernels, "kernels_reason": driver.kernels_reason}


def _stored(driver: Driver, data: Path, count: int) -> list[Scene]:
    from wamdiff2_core.evaluate.frames import read_frames

    return [frame.scene(driver.cameras, QUESTION) for frame in read_frames(data, count)]


def _rendered(driver: Driver, count: int) -> list[Scene]:
    """Moments of a drive in a town. What is seen matters: the sure tokens of a plan need fewer forwards."""
    from wamdiff2_core.rig import load_rig
    from wamdiff2_core.scene import Scene
    from wamdiff2_ros.graph import share_folder
    from wamdiff2_sim.data.frames import FrameSource

    source = FrameSource(load_rig(share_folder("config") / "rig_three.yaml"), (TOWN,), perturb=False)
    try:
        frames = list(islice(source.frames(0, 0), count))
    finally:
        source.close()
    names = driver.cameras
    return [Scene({n: f.images[n] for n in names}, f.instruction, f.ego, QUESTION) for f in frames]


def _show(report: dict, as_json: bool) -> None:
    from wamdiff2_core.evaluate.tables import print_tables

    if as_json:
        print(json.dumps(report, indent=2))
        return
    console = Console(highlight=False)
    print_tables(report, console)
    console.print(f"commit {report['machine']['commit'] or 'unknown'}; {report['settings']['command']}")


def results_file() -> Path:
    """benchmarks/RESULTS.md of the source tree. ConfigError outside of one."""
    folder = Path(__file__).resolve().parent.parent / "benchmarks"
    if not folder.is_dir():
        raise ConfigError("--write: this is no source tree: it has no folder benchmarks/")
    return folder / "RESULTS.md"


def append(path: Path, report: dict) -> None:
    """Add a report's table to a Markdown file of results."""
    from wamdiff2_core.evaluate.tables import merged_markdown

    head = "" if path.is_file() else "# Measured speed\n\nOne section per run of `wamdiff2 bench --write`.\n"
    where = f"commit `{report['machine']['commit'][:12]}`, `{report['settings']['command']}`"
    with path.open("a", encoding="utf-8") as sink:
        sink.write(f"{head}\n## {report['machine']['cpu']}, {report['settings']['device']}\n\n{where}\n\n")
        sink.write(merged_markdown([report]))
