"""`wamdiff2 plan IMAGES`: where would the model drive? Points on the console, and a picture with the path drawn in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from wamdiff2_cli.kernels import Kernels
from wamdiff2_core.errors import ConfigError

if TYPE_CHECKING:
    from wamdiff2_core.driver import Driver
    from wamdiff2_core.scene import Scene

NAME = "plan"
_MOST = "an engine (--kernels) draws at most 64"  # wamdiff2_core.readiness.ROWS, which would load PyTorch


def run(
    images: Annotated[list[Path], typer.Argument(help="One picture per camera: front [front-left front-right ...]")],
    checkpoint: Annotated[Path | None, typer.Option(help="Checkpoint folder; default: the one here")] = None,
    instruction: Annotated[str, typer.Option(help="Like: turn left in 40 m")] = "follow the road",
    speed: Annotated[float, typer.Option(min=0.0, help="Of the car, m/s")] = 0.0,
    question: Annotated[str | None, typer.Option(help="Also answer this")] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens decoded together; 1: autoregressive")] = 32,
    steps: Annotated[int, typer.Option(min=1, help="Most denoising steps per block")] = 8,
    threshold: Annotated[float, typer.Option(min=0.0, max=1.0, help="Probability from which a token is taken")] = 0.9,
    rule: Annotated[str, typer.Option(help="dynamic, static, sequential or ordered")] = "dynamic",
    candidates: Annotated[int, typer.Option(min=0, help=f"Also draw so many plans at random; {_MOST}")] = 0,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of these draws; 0: none is random")] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Of these draws; default: others each time")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, ...")] = "float32",
    kernels: Kernels = "auto",
    rig: Annotated[Path | None, typer.Option(help="Camera rig file, to draw the path; default: the demo's")] = None,
    out: Annotated[Path, typer.Option(help="Picture to write")] = Path("out/plan.jpg"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else")] = False,
) -> None:
    """Plan, boxes and, with --question, an answer for one moment. Exit code 2 if the model gives no valid plan."""
    from wamdiff2_cli.checkpoints import checkpoint_folder
    from wamdiff2_core import DecodingConfig, Driver
    from wamdiff2_core.evaluate.frames import read_image
    from wamdiff2_core.kernel_choice import foresee
    from wamdiff2_core.scene import EgoState, Plan, Scene

    decoding = DecodingConfig(block_size=block_size, steps=steps, rule=rule, threshold=threshold)
    folder = checkpoint_folder(checkpoint)
    if candidates:
        foresee(folder, device, dtype, kernels, (block_size,)).check_candidates(candidates)
    driver = Driver.from_checkpoint(folder, device, dtype, decoding, kernels)
    pictures = {name: read_image(path) for name, path in zip(_cameras(driver, len(images)), images)}
    scene = Scene(pictures, instruction, EgoState((speed, 0.0)), question)
    results = driver.answer(scene, ("plan", "detect", "ask") if question else ("plan", "detect"))
    drawn = driver.plan_candidates(scene, candidates, temperature, seed) if candidates else []
    _draw(scene, results, drawn, rig, out)
    plain: dict = {task: _plain(result) for task, result in results.items()} | {"picture": str(out)}
    if candidates:
        plain["candidates"] = [_plain(result) for result in drawn]
    if as_json:
        print(json.dumps(plain, indent=2))
    else:
        _tell(plain, Console())
    raise typer.Exit(0 if isinstance(results["plan"], Plan) else 2)


def _cameras(driver: Driver, given: int) -> tuple[str, ...]:
    """Names for the pictures, in the checkpoint's order. ConfigError if their number does not fit."""
    cameras = driver.cameras if driver.ours else driver.cameras[:1]
    if given != len(cameras):
        raise ConfigError(f"expected {len(cameras)} pictures in this order: {' '.join(cameras)}; got {given}")
    return cameras


def _plain(result) -> dict[str, object]:
    from wamdiff2_core.scene import Answer, Detections, Failure, Plan

    cost = result.cost
    told: dict[str, object] = {"forwards": cost.forwards, "ms": round(cost.total_ms, 1)}
    if isinstance(result, Failure):
        return {"failure": result.kind.value, "why": result.message, "text": result.text, **told}
    if isinstance(result, Plan):
        confidence = [round(float(c), 4) for c in result.confidence]
        return {"points_m": result.points.tolist(), "confidence": confidence, "text": result.text, **told}
    if isinstance(result, Detections):
        boxes = [{"label": b.label, "xyxy": b.xyxy, "confidence": round(b.confidence, 4)} for b in result.boxes]
        return {"boxes": boxes, **told}
    assert isinstance(result, Answer)
    return {"question": result.question, "answer": result.text, "confidence": round(result.confidence, 4), **told}


def _tell(plain: dict, console: Console) -> None:
    plan = plain["plan"]
    if "failure" in plan:
        console.print(f"[red]no plan ({plan['failure']}):[/] {plan['why']}", highlight=False)
    else:
        console.print("in    x m ahead   y m left   confidence")
        for k, ((x, y), confidence) in enumerate(zip(plan["points_m"], plan["confidence"])):
            console.print(f"{0.5 * (k + 1):.1f} s {x:10.2f} {y:10.2f} {confidence:12.2f}", highlight=False)
    for candidate in plain.get("candidates", ()):
        end = candidate.get("points_m", [None])[-1]
        told = (
            f"none ({candidate['failure']})" if end is None else f"{end[0]:.2f} m ahead, {end[1]:.2f} m left after 4 s"
        )
        console.print(f"candidate: {told}", highlight=False)
    found = plain["detect"]
    labels = [box["label"] for box in found.get("boxes", [])]
    told = f"unknown ({found['failure']})" if "failure" in found else ", ".join(labels) or "nothing there"
    console.print(f"boxes: {told}")
    if "ask" in plain:
        console.print(f"answer: {plain['ask'].get('answer', 'none: ' + str(plain['ask'].get('why')))}")
    console.print(f"{plan['forwards']} forwards, {plan['ms']:.0f} ms; wrote {plain['picture']}", highlight=False)


def _draw(scene: Scene, results: dict, candidates: list, rig: Path | None, out: Path) -> None:
    """The first picture with path, candidates and boxes; its camera is taken from the rig, scaled to the picture."""
    import cv2

    from wamdiff2_core.overlay import EXPERT_COLOUR, draw_path, overlay
    from wamdiff2_core.rig import load_rig
    from wamdiff2_core.scene import Detections, Plan
    from wamdiff2_ros.graph import share_folder

    name, picture = next(iter(scene.images.items()))
    cameras = {camera.name: camera for camera in load_rig(rig or share_folder("config") / "rig_three.yaml")}
    if name not in cameras:
        raise ConfigError(f"the rig has no camera {name}; it has {', '.join(cameras)}. Give another with --rig FILE")
    camera = replace(cameras[name], width=picture.shape[1], height=picture.shape[0])
    plan, found = results["plan"], results["detect"]
    points = plan.points if isinstance(plan, Plan) else None
    boxes = found.boxes if isinstance(found, Detections) else ()
    picture = picture.copy()
    for candidate in candidates:
        if isinstance(candidate, Plan):
            draw_path(picture, candidate.points, camera, EXPERT_COLOUR, width_m=0.3)
    drawn = overlay(picture, camera, points, boxes, (scene.instruction,))
    out.parent.mkdir(parents=True, exist_ok=True)
    if not cv2.imwrite(str(out), drawn[..., ::-1]):
        raise ConfigError(f"{out} could not be written: expected a name that ends with .jpg or .png")
