"""A whole replay: bag in, report out, and whether the limits were held."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.driver import Driver
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate.limits import Limit, Verdict, check_names, figures_of, judge
from wamdiff2_core.evaluate.machine import machine
from wamdiff2_core.evaluate.report_replay import write_replay_report
from wamdiff2_core.evaluate.summary import write_json
from wamdiff2_core.scene import Camera
from wamdiff2_ros import replay_figures
from wamdiff2_ros.bag_heard import Heard, hear
from wamdiff2_ros.bag_messages import Bag
from wamdiff2_ros.bag_scenes import Footage
from wamdiff2_ros.bag_topics import find_parts
from wamdiff2_ros.replay import TASKS, Replay, choose_moments, replan, wanted_tasks
from wamdiff2_ros.replay_page import viewer, write_lines

PARAMETERS = "/output/parameters"
ARITHMETIC = ("device", "dtype", "threads")  # rounding depends on all of them
PASSED, LIMIT_BROKEN, NO_FRAMES = 0, 3, 4  # 1: an error that stopped it, 2: options that cannot be


@dataclass(frozen=True)
class Request:
    """What is asked of a replay. `topics`: by part; `frames`, `pictures`: at most so many, 0: all and none."""

    bag: Path
    topics: Mapping[str, str] = field(default_factory=dict)
    prefix: str = "/world"
    tasks: str = "auto"
    frames: int = 0
    pictures: int = 150
    tolerance_s: float = 0.05
    timing: bool = True
    limits: Sequence[Limit] = ()

    def __post_init__(self) -> None:
        if self.tasks != "auto" and not set(self.tasks.split(",")) <= set(TASKS):
            raise ConfigError(f"--tasks: expected auto or some of {','.join(TASKS)}; got {self.tasks!r}")


@dataclass
class Opened:
    """A bag that was opened for replaying."""

    bag: Bag
    footage: Footage
    heard: Heard


def open_bag(request: Request, cameras: Sequence[str], optional: Sequence[str] = ()) -> Opened:
    """DataError if it is no bag; ConfigError for topics that cannot be."""
    bag = Bag(request.bag)
    parts = find_parts(bag.topics(), cameras, request.prefix, request.topics)
    footage = Footage(bag, parts, cameras, request.tolerance_s, optional)
    return Opened(bag, footage, hear(bag, parts, footage.clock))


def check_limits(limits: Sequence[Limit], sizes: Sequence[int]) -> None:
    """ConfigError for a limit on a figure that there is not, before anything is computed."""
    rows = [replay_figures.empty_row(size) for size in sizes]
    then, entry = (dict.fromkeys(names) for names in (replay_figures.RECORDED, replay_figures.INPUT))
    check_names(
        limits, figures_of({"results": rows, "recorded": then, "input": {**entry, "topics": [], "problems": []}})
    )


def run_offline(
    request: Request, driver: Driver, settings: Sequence[DecodingConfig], console: Console
) -> tuple[Opened, Replay]:
    """Answer every moment of the bag anew, in this process."""
    opened = open_bag(request, driver.cameras, driver.optional_cameras)
    moments, notes = choose_moments(opened.footage, opened.heard, request.frames)
    said = {ns: str(plan.instruction or "") for ns, plan in opened.heard.trajectory.items()}
    opened.footage.follow(said, moments)
    tasks = wanted_tasks(request.tasks, opened.footage, opened.heard)
    replay = replan(driver, opened.footage, opened.heard, settings, tasks, moments, request.pictures, console)
    replay.notes += notes
    return opened, replay


def finish(
    request: Request, opened: Opened, replay: Replay, sizes: Sequence[int], stated: Mapping[str, object],
    rig: Sequence[Camera], out: Path,
) -> dict[str, Any]:  # fmt: skip
    """Write out/replay.json, out/frames.jsonl and out/report.html; returns the report, its exit code in it."""
    report: dict[str, Any] = {"what": "replay", "settings": dict(stated)}
    report["machine"] = machine(str(stated["device"])) if request.timing else {}
    rows = {row["block_size"]: row for row in replay_figures.results(replay, request.timing)}
    report["results"] = [rows.get(size) or replay_figures.empty_row(size) for size in sizes]
    report["recorded"] = replay_figures.recorded(opened.heard, opened.footage)
    replay.notes += other_arithmetic(opened.bag, stated)
    report["input"] = replay_figures.of_input(opened.footage, opened.heard, replay)
    verdicts = judge(request.limits, figures_of(report))
    report["limits"] = [verdict.plain() for verdict in verdicts]
    report["exit_code"], report["verdict"] = _verdict(replay, verdicts, report["input"]["problems"])
    write_json(out / "replay.json", report)
    write_lines(out / "frames.jsonl", replay)
    write_replay_report(out / "report.html", report, viewer(replay, rig, request.timing))
    opened.bag.close()
    return report


def other_arithmetic(bag: Bag, stated: Mapping[str, object]) -> list[str]:
    """Where the driver of then computed otherwise: it gives other plans. Empty if that is not known."""
    topics = [
        name for name, kind in bag.topics().items() if name.endswith(PARAMETERS) and kind == "std_msgs/msg/String"
    ]
    then: dict[str, object] = {}
    for _, message in bag.messages(topics):
        try:
            then |= json.loads(message.data)["parameters"]
        except (ValueError, KeyError, TypeError):  # not of our driver, or damaged: then it says nothing
            continue
    differ = {name: then[name] for name in ARITHMETIC if name in then and then[name] != stated.get(name)}
    words = ", ".join(f"{name} {value} (here {stated.get(name)})" for name, value in differ.items())
    return [f"the driver of then ran with {words}: the same settings give other plans"] if differ else []


def _verdict(replay: Replay, verdicts: Sequence[Verdict], problems: Sequence[str]) -> tuple[int, str]:
    """Exit code, and in words what it stands for."""
    lacks = f"; {len(problems)} remarks on the bag below" if problems else ""
    if not replay.frames:
        return NO_FRAMES, f"Failed: no frame of the bag could be evaluated{lacks}"
    broken = [verdict for verdict in verdicts if not verdict.held]
    if broken:
        named = ", ".join(str(verdict.limit) for verdict in broken)
        return LIMIT_BROKEN, f"Failed: {len(broken)} of {len(verdicts)} limits broken: {named}{lacks}"
    held = f"all {len(verdicts)} limits held" if verdicts else "no limits were stated"
    return PASSED, f"Passed: {len(replay.frames)} frames evaluated, {held}{lacks}"
