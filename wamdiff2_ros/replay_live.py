"""A replay through the real driver node: started as a process for each block size, fed from the bag, heard, ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.errors import DataError
from wamdiff2_core.model.checkpoint import block_diffusion_of, kind_of, read_json
from wamdiff2_core.scene import Answer, Cost, Detections, Failure, FailureKind, Plan
from wamdiff2_ros.bag_heard import Heard
from wamdiff2_ros.bag_messages import BOXES_UNKNOWN, STATUS_VALID, boxes_of, plan_points
from wamdiff2_ros.bag_scenes import Moment
from wamdiff2_ros.graph import NodeSpec, inputs_from
from wamdiff2_ros.replay import Made, Replay, choose_moments, frame_of, made_of, spread, true_answers, wanted_tasks
from wamdiff2_ros.replay_player import NODE, PREFIX, NoAnswer, Player
from wamdiff2_ros.replay_run import Opened, Request, open_bag
from wamdiff2_ros.supervisor import Supervisor

# Of Trajectory.status. A contradiction is a plan that was withheld.
KINDS = {1: "empty", 2: "truncated", 3: "invalid", 4: "parse", 5: "range", 6: "input", 8: "contradiction"}
# The player waits for each answer: what is too old on a vehicle is not too old here.
PATIENT = {"max_plan_age_s": 10.0, "max_frame_age_s": 10.0, "odometry_max_age_s": 10.0, "on_stale_plan": "silence"}
PATIENT |= {"plan_rate_hz": 0.0, "detect_rate_hz": 0.0, "ask_rate_hz": 0.0, "overlay": False, "markers": False}
PATIENT |= {"image_reliability": "reliable", "use_sim_time": True}


def run_live(
    request: Request, folder: Path, settings: Sequence[DecodingConfig], stated: Mapping[str, Any], out: Path,
    console: Console, module: str = "", kernels: str = "auto",
) -> tuple[Opened, Replay]:  # fmt: skip
    """Answer every moment of the bag through a driver node. `module`: another node to run, for tests.

    NodeDied if the node ends, NoAnswer if it never answers.
    """
    cameras, optional = checkpoint_cameras(folder)
    opened = open_bag(request, cameras, optional)
    footage = opened.footage
    moments, notes = choose_moments(footage, opened.heard, request.frames)
    tasks = wanted_tasks(request.tasks, footage, opened.heard)
    replay = Replay(notes=notes)
    moments = _frames(opened, moments, replay, request.pictures)
    if not moments:
        return opened, replay
    transport = _transport(opened)
    for config in settings:
        spec = _spec(folder, cameras, transport, tasks, config, stated, module, kernels)
        with Supervisor([spec], out / f"block_{config.block_size}") as nodes, Player(footage, transport) as player:
            player.wait_for_driver(nodes.over)
            _play(player, nodes, moments, tasks, config.block_size, replay, console)
    replay.made.sort(key=lambda one: (one.ns, one.block_size))
    return opened, replay


def checkpoint_cameras(folder: Path) -> tuple[list[str], list[str]]:
    """(cameras, those of them that a scene may lack) of a checkpoint, without loading it. CheckpointError."""
    raw = read_json(folder / "config.json")
    entry = block_diffusion_of(raw, kind_of(raw, folder), folder)
    return list(entry.get("cameras", ["cam_front"])), list(entry.get("optional_cameras", []))


def _frames(opened: Opened, moments: Sequence[Moment], replay: Replay, pictures: int) -> list[Moment]:
    """What the bag tells about each moment, into `replay`; returns the moments that can be shown to the driver."""
    shown = {moment.ns for moment in spread(list(moments), pictures)} if pictures else set()
    truths = true_answers(opened.heard, opened.footage, moments)
    good = []
    for moment in moments:
        scene = opened.footage.scene(moment)
        if scene is None:
            continue
        good.append(moment)
        moving = opened.footage.motion_known(moment)
        replay.frames.append(frame_of(opened.footage, opened.heard, moment, scene, moving, truths.get(moment.ns)))
        if moment.ns in shown:
            replay.pictures[moment.ns] = scene.images
    return good


def _play(
    player: Player, nodes: Supervisor, moments: Sequence[Moment], tasks: Sequence[str], size: int, replay: Replay,
    console: Console,
) -> None:  # fmt: skip
    with Progress(console=console) as progress:
        bar = progress.add_task(f"frames, block size {size}", total=len(moments))
        for k, moment in enumerate(moments):
            answered = player.play(moment, tasks, nodes.over, first=k == 0)
            if not answered and k == 0 and not player.heard.trajectory and not player.heard.boxes:
                raise NoAnswer(f"the driver node has not answered the first frame; it said: {player.heard.notes[-1:]}")
            replay.made.append(_made(player, moment, tasks, size))
            progress.advance(bar)


def _made(player: Player, moment: Moment, tasks: Sequence[str], size: int) -> Made:
    stamp = player.stamp(moment)
    heard = player.heard
    results: dict[str, Any] = {}
    if "plan" in tasks:
        results["plan"] = _plan(heard, stamp)
    if "detect" in tasks:
        boxes = heard.boxes.get(stamp)
        known = boxes is not None and boxes.status != BOXES_UNKNOWN
        results["detect"] = Detections(boxes_of(boxes)) if known else _nothing(heard)
    if "ask" in tasks and stamp in heard.answer:
        said = heard.answer[stamp]
        valid = said.status == STATUS_VALID
        results["ask"] = Answer(said.question, said.text) if valid else Failure(FailureKind.INVALID, said.text)
    stats = heard.stats.get(stamp)
    return made_of(moment.ns, size, results, None if stats is None else float(stats.frame_age_ms))


def _plan(heard: Heard, stamp: int) -> Plan | Failure:
    message, stats = heard.trajectory.get(stamp), heard.stats.get(stamp)
    cost = Cost()
    if stats is not None:
        times = (float(stats.vision_ms), float(stats.prefill_ms), float(stats.decode_ms))
        cost = Cost(int(stats.forwards), (), int(stats.tokens), *times)
    if message is None:
        return _nothing(heard)
    points = plan_points(message)
    if points is None:
        return Failure(FailureKind(KINDS.get(message.status, "invalid")), message.text, cost=cost)
    return Plan(points, points[:, 0], message.text, cost)


def _nothing(heard: Heard) -> Failure:
    return Failure(FailureKind.INPUT, f"the node gave no answer; last it said: {(heard.notes or ['nothing'])[-1]}")


def _transport(opened: Opened) -> str:
    """compressed or raw. DataError if cameras differ: the node takes one kind."""
    types = opened.bag.topics()
    kinds = {types[opened.footage.parts.topics[c]] for c in opened.footage.cameras if c in opened.footage.parts.topics}
    if len(kinds) > 1:
        raise DataError(
            "--live: some cameras are recorded raw and some compressed; the node takes one kind: offline can"
        )
    return "raw" if kinds == {"sensor_msgs/msg/Image"} else "compressed"


def _spec(
    folder: Path, cameras: Sequence[str], transport: str, tasks: Sequence[str], config: DecodingConfig,
    stated: Mapping[str, Any], module: str, kernels: str,
) -> NodeSpec:  # fmt: skip
    parameters = {**PATIENT, "checkpoint": str(folder.resolve()), "cameras": list(cameras), "tasks": list(tasks)}
    parameters |= {"image_transport": transport, "block_size": config.block_size, "steps": config.steps}
    parameters |= {"rule": config.rule, "threshold": config.threshold, "threads": stated["threads"]}
    parameters |= {"device": stated["device"], "dtype": stated["dtype"], "kernels": kernels, "autostart": True}
    remaps = [*inputs_from(PREFIX, cameras, transport), ("/clock", f"{PREFIX}/clock")]
    return NodeSpec(NODE, "driver_node", parameters, remaps, module=module)
