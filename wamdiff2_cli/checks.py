"""What a machine can run: one small check per line of `wamdiff2 doctor`, each with what to do when it fails."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from wamdiff2_cli.engine_checks import engine_findings
from wamdiff2_cli.findings import MISSING, OK, OPTIONAL, Finding
from wamdiff2_core.errors import Wamdiff2Error

PROBE_S = 180.0  # against hanging: on a busy machine it takes half a minute to import torch
SETUP = "run `make setup`"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def findings(checkpoint: Path | None) -> Iterator[Finding]:
    """All checks, as they get done."""
    yield _python()
    yield _processor()
    yield _torch()
    yield _cuda()
    yield _packages("transformers", "tokenizers", "safetensors", "numpy", "scipy", "cv2", "yaml")
    yield _ros()
    yield _messages()
    yield _packages("rosbags", "jinja2", "matplotlib", name="bags and reports")
    yield _renderer()
    yield _town()
    yield _checkpoint(checkpoint)
    yield from _engine(checkpoint)
    yield from _extras()


def _python() -> Finding:
    return Finding("python", OK, f"{platform.python_version()} ({sys.executable})")


def _processor() -> Finding:
    from wamdiff2_core.evaluate.machine import cpu_name

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = f"{cores} cores, {cpu_name()}"
    if cores >= 2:
        return Finding("processor", OK, found)
    return Finding("processor", OPTIONAL, found, "the demo plans more slowly than its 4 Hz on one core")


def _torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("torch", MISSING, "not installed", SETUP)
    import torch

    return Finding("torch", OK, f"{torch.__version__}, {torch.get_num_threads()} threads")


def _cuda() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("cuda", OPTIONAL, "torch is not installed", SETUP)
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
        return Finding("cuda", OK, f"{', '.join(names)}, CUDA {torch.version.cuda}")
    why = "this torch is built for CPU" if torch.version.cuda is None else "torch sees no NVIDIA GPU"
    return Finding("cuda", OPTIONAL, why, "not needed for the demo; for training and large checkpoints")


def _packages(*names: str, name: str = "packages") -> Finding:
    missing = [package for package in names if importlib.util.find_spec(package) is None]
    if missing:
        return Finding(name, MISSING, f"not installed: {', '.join(missing)}", SETUP)
    return Finding(name, OK, ", ".join(f"{package} {version}".strip() for package, version in _versions(names)))


def _versions(names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    owners = metadata.packages_distributions()
    for name in names:
        owner = next(iter(owners.get(name, ())), None)
        yield name, metadata.version(owner) if owner else ""


def _ros() -> Finding:
    do = f"{SETUP}, or source /opt/ros/<distribution>/setup.bash"
    spec = importlib.util.find_spec("rclpy")
    if spec is None or spec.origin is None:
        return Finding("ros 2", MISSING, "rclpy is not importable", do)
    done = _probe("import rclpy; rclpy.init(); rclpy.shutdown(); print(rclpy.get_rmw_implementation_identifier())")
    if done.returncode != 0:
        return Finding("ros 2", MISSING, f"rclpy does not start: {_last_line(done)}", do)
    source = "installed under /opt/ros" if "/opt/ros/" in spec.origin else "from wheels"
    distribution = os.environ.get("ROS_DISTRO", "kilted" if source == "from wheels" else "")
    return Finding("ros 2", OK, f"{distribution} {source} ({Path(spec.origin).parent}), {_last_line(done)}".strip())


def _messages() -> Finding:
    done = _probe("import wamdiff2.msg as m; m.Trajectory(), m.Stats(), m.DriveStatus(); print(m.__path__[0])")
    if done.returncode == 0:
        return Finding("messages", OK, _last_line(done))
    return Finding("messages", MISSING, f"not built: {_last_line(done)}", f"{SETUP}, or build this folder with colcon")


def _renderer() -> Finding:
    """A context is made in a process of its own: a broken driver may end it."""
    done = _probe("import wamdiff2_sim.render.context as m; c = m.create_context(); print(m.describe(c)); c.release()")
    if done.returncode == 0:
        return Finding("renderer (EGL)", OK, _last_line(done))
    do = "apt-get install libegl1 libgl1 libegl-mesa0 libgl1-mesa-dri, or set WAMDIFF2_EGL_DEVICE to another number"
    return Finding("renderer (EGL)", MISSING, _last_line(done), do)


def _town() -> Finding:
    from wamdiff2_sim.roads.roadmap import load_map

    try:
        town = load_map("Town01")
    except Wamdiff2Error as error:
        return Finding("town maps", MISSING, str(error), "get the whole repository, wamdiff2_sim/roads/maps included")
    return Finding("town maps", OK, f"Town01: {len(town.lanes)} lanes, {len(town.junctions)} junctions")


def _checkpoint(folder: Path | None) -> Finding:
    from wamdiff2_ros.graph import default_checkpoint

    try:
        folder = folder or default_checkpoint()
        return Finding("checkpoint", OK, describe_checkpoint(folder))
    except (Wamdiff2Error, OSError) as error:
        return Finding("checkpoint", MISSING, str(error), "name a checkpoint folder with --checkpoint DIR")


def describe_checkpoint(folder: Path) -> str:
    """Load it and say what it is. Raises CheckpointError as `load_model` does."""
    from wamdiff2_core.driver import Driver

    driver = Driver.from_checkpoint(folder)
    millions = sum(p.numel() for p in driver.loaded.model.parameters()) / 1e6
    sizes = driver.loaded.block_diffusion.get("block_sizes", [1])
    kind, kernels = driver.loaded.kind, driver.kernels
    return f"{folder}: {kind}, {millions:.1f} M weights, block sizes {sizes}, kernels {kernels} on the CPU"


def _engine(folder: Path | None) -> Iterator[Finding]:
    from wamdiff2_ros.graph import default_checkpoint

    try:
        folder = folder or default_checkpoint()
    except (Wamdiff2Error, OSError):
        folder = None  # the line before says so; which kernels can run here is known without
    yield from engine_findings(folder)


def _extras() -> Iterator[Finding]:
    browser = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    yield _extra("chromium", browser or "", "apt-get install chromium", "the test that loads report.html")
    yield _extra("carla", _origin("carla"), "pip install carla (the simulator's version)", "the CARLA bridge")
    coco = _origin("faster_coco_eval")
    yield _extra("faster-coco-eval", coco, "pip install 'wamdiff2[evaluate]'", "mAP of boxes in summaries")


def _extra(name: str, found: str, do: str, what_for: str) -> Finding:
    if found:
        return Finding(name, OK, found)
    return Finding(name, OPTIONAL, "not installed", f"{do}: only for {what_for}")


def _origin(package: str) -> str:
    spec = importlib.util.find_spec(package)
    return str(spec.origin) if spec is not None and spec.origin else ""


def _probe(code: str) -> subprocess.CompletedProcess[str]:
    try:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess([], 1, "", f"no answer within {PROBE_S:.0f} s")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"ended by signal {-done.returncode}"
    lines = (done.stdout if done.returncode == 0 else done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
