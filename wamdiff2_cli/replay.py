"""`wamdiff2 replay BAG`: plan a bag's frames once more, with other settings or another checkpoint, and compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from wamdiff2_cli.kernels import Kernels

if TYPE_CHECKING:
    from wamdiff2_core.decode.config import DecodingConfig
    from wamdiff2_core.evaluate.limits import Limit
    from wamdiff2_ros.replay import Replay
    from wamdiff2_ros.replay_run import Opened, Request

NAME = "replay"
SHOWN_PROBLEMS = 12


def run(
    bag: Annotated[Path, typer.Argument(help="Bag folder or file of a demo or of a vehicle, whole or broken")],
    checkpoint: Annotated[Path | None, typer.Option(help="Checkpoint folder; default: the one here")] = None,
    blocks: Annotated[str, typer.Option("--block-sizes", help="Block sizes, like 1,8,32")] = "32",
    steps: Annotated[int, typer.Option(min=1, help="Most denoising steps per block")] = 8,
    threshold: Annotated[float, typer.Option(min=0.0, max=1.0, help="Probability from which a token is taken")] = 0.9,
    rule: Annotated[str, typer.Option(help="dynamic, static, sequential or ordered")] = "dynamic",
    tasks: Annotated[str, typer.Option(help="plan,detect,ask; auto: what the bag has to compare with")] = "auto",
    frames: Annotated[int, typer.Option(min=0, help="At most so many, spread over the bag; 0: all")] = 0,
    prefix: Annotated[str, typer.Option(help="Of the recorded topics: PREFIX/<camera>/image, ...")] = "/world",
    topic: Annotated[list[str] | None, typer.Option(help="PART=TOPIC, like cam_front=/camera/image_raw")] = None,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Seconds between the cameras' pictures")] = 0.05,
    limit: Annotated[list[str] | None, typer.Option(help="Like ade_m=1.5 or map50>=0.3; broken: exit code 3")] = None,
    limits: Annotated[Path | None, typer.Option(help="YAML file of limits")] = None,
    live: Annotated[bool, typer.Option("--live", help="Through a driver node of its own instead of offline")] = False,
    timing: Annotated[bool, typer.Option(help="Measure times; without, the same bag gives the same bytes")] = True,
    pictures: Annotated[int, typer.Option(min=0, help="Frames with pictures in the report")] = 150,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, ...")] = "float32",
    kernels: Kernels = "auto",
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch")] = 2,
    rig: Annotated[Path | None, typer.Option(help="Camera rig file; default: the demo's")] = None,
    out: Annotated[Path, typer.Option(help="Folder for replay.json, frames.jsonl, report.html")] = Path("out/replay"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else")] = False,
) -> None:
    """Plan every recorded frame again, for each block size; compare with what was driven and planned then.

    Exit codes: 0 all limits held; 1 an error; 2 wrong options; 3 a limit broken or not measurable; 4 no frame at all.
    """
    from wamdiff2_cli.checkpoints import checkpoint_folder
    from wamdiff2_cli.evaluate import block_sizes
    from wamdiff2_core import DecodingConfig
    from wamdiff2_core.evaluate.kernels_used import settled, told
    from wamdiff2_core.rig import load_rig
    from wamdiff2_ros import replay_run
    from wamdiff2_ros.graph import share_folder

    sizes, folder = block_sizes(blocks), checkpoint_folder(checkpoint)
    stated_limits = _limits(limit or [], limits)
    replay_run.check_limits(stated_limits, sizes)
    request = replay_run.Request(
        bag, _topics(topic or []), prefix, tasks, frames, pictures, tolerance, timing, stated_limits
    )
    cameras = load_rig(rig or share_folder("config") / "rig_three.yaml")
    settings = [DecodingConfig(size, min(steps, size), rule, threshold) for size in sizes]
    stated = {"bag": str(bag), "checkpoint": str(folder), "steps": steps, "threshold": threshold, "rule": rule}
    stated |= {"tasks": tasks, "live": live, "device": device, "dtype": dtype, "threads": threads}
    choice = settled(folder, (device,), dtype, kernels, sizes)
    stated |= told(choice)
    console = Console(stderr=True, quiet=as_json)
    opened, replay = (_live if live else _offline)(request, folder, settings, stated, choice.word, out, console)
    report = replay_run.finish(request, opened, replay, sizes, stated, cameras, out)
    _show(report, out, as_json)
    raise typer.Exit(report["exit_code"])


def _offline(
    request: Request, folder: Path, settings: Sequence[DecodingConfig], stated: dict[str, Any], kernels: str, out: Path,
    console: Console,
) -> tuple[Opened, Replay]:  # fmt: skip
    import torch

    from wamdiff2_core import Driver
    from wamdiff2_ros.replay_run import run_offline

    torch.set_num_threads(stated["threads"])
    sizes = [one.block_size for one in settings]
    driver = Driver.from_checkpoint(folder, stated["device"], stated["dtype"], kernels=kernels, block_sizes=sizes)
    return run_offline(request, driver, settings, console)


def _live(
    request: Request, folder: Path, settings: Sequence[DecodingConfig], stated: dict[str, Any], kernels: str, out: Path,
    console: Console,
) -> tuple[Opened, Replay]:  # fmt: skip
    from wamdiff2_cli.needs_ros import check_ros
    from wamdiff2_ros.replay_live import run_live

    check_ros()
    return run_live(request, folder, settings, stated, out / "nodes", console, kernels=kernels)


def _topics(given: Sequence[str]) -> dict[str, str]:
    from wamdiff2_core.errors import ConfigError

    topics = {}
    for text in given:
        part, sign, topic = text.partition("=")
        if not (part and sign and topic):
            raise ConfigError(f"--topic: expected PART=TOPIC, got {text!r}")
        topics[part] = topic
    return topics


def _limits(given: Sequence[str], file: Path | None) -> list[Limit]:
    from wamdiff2_core.evaluate.limits import parse_limit, read_limits

    return [*(read_limits(file) if file is not None else []), *(parse_limit(text) for text in given)]


def _show(report: dict[str, Any], out: Path, as_json: bool) -> None:
    from wamdiff2_core.evaluate.tables import print_tables

    if as_json:
        print(json.dumps(report, indent=2))
        return
    print_tables(report, Console())
    console = Console(stderr=True)
    problems = report["input"]["problems"]
    for problem in problems[:SHOWN_PROBLEMS]:
        console.print(f"- {problem}", highlight=False, markup=False)
    if len(problems) > SHOWN_PROBLEMS:
        console.print(f"- and {len(problems) - SHOWN_PROBLEMS} more, see the report")
    for verdict in report["limits"]:
        figure = "not measured" if verdict["figure"] is None else f"{verdict['figure']:.3g}"
        told = f"{'held' if verdict['held'] else 'BROKEN'}: {verdict['limit']} ({figure})"
        console.print(told, highlight=False, markup=False)
    console.print(f"{report['verdict']}\nwrote {out / 'replay.json'} and {out / 'report.html'}", highlight=False)
