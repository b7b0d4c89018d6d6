"""Runs nodes as processes where `ros2 launch` is absent: starts, watches and ends them, leaving none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from wamdiff2_core.errors import Wamdiff2Error
from wamdiff2_ros.graph import NodeSpec, share_folder
from wamdiff2_ros.process import SUPERVISED
from wamdiff2_ros.settings_report import file_parameters, file_sections, run_warning

GRACE_S = 10.0  # from SIGINT to SIGTERM; the recorder has an index to write, the driver a scene to finish
LAST_LINES = 15
LONG_LINE = 160  # characters


class NodeDied(Wamdiff2Error):
    """A node ended although the run was not over; the message holds its last lines."""


@dataclass
class _Running:
    spec: NodeSpec
    process: subprocess.Popen[bytes]
    log: Path


class Supervisor:
    """Use as a context manager: leaving it ends every node. `folder` takes the nodes' logs and parameter files."""

    def __init__(self, nodes: Sequence[NodeSpec], folder: Path, parameter_file: Path | None = None) -> None:
        self._nodes = nodes
        self._folder = folder
        self._parameter_file = parameter_file
        self._running: list[_Running] = []
        self.killed: list[str] = []

    def __enter__(self) -> Supervisor:
        self._folder.mkdir(parents=True, exist_ok=True)
        parameters = write_parameters(self._folder / "params.yaml", self._nodes, self._parameter_file)
        if self._parameter_file is not None:
            warning = run_warning(self._parameter_file, [f"/{spec.name}" for spec in self._nodes])
            if warning:
                print(f"warning: {warning}", file=sys.stderr, flush=True)
        try:
            for spec in self._nodes:
                self._running.append(self._start(spec, parameters))
        except OSError:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def over(self) -> bool:
        """True once a node that ends the run has ended well. Raises NodeDied if another ended, or that one badly."""
        over = False
        for node in self._running:
            code = node.process.poll()
            if code is None:
                continue
            if node.spec.ends_run and code == 0:
                over = True
            else:
                raise NodeDied(f"node {node.spec.name} ended with exit code {code}\n{last_lines(node.log)}")
        return over

    def stop(self) -> dict[str, int]:
        """End all nodes, the recorder last, and return their exit codes. A node that stays is killed (see `killed`)."""
        order = sorted(self._running, key=lambda node: node.spec.executable == "recorder_node")
        for late in (False, True):
            part = [node for node in order if (node.spec.executable == "recorder_node") == late]
            self._end(part)
        codes = {node.spec.name: int(node.process.wait()) for node in self._running}
        self._running = []
        return codes

    def _start(self, spec: NodeSpec, parameters: Path) -> _Running:
        command = [sys.executable, "-m", spec.module or f"wamdiff2_ros.{spec.executable}", "--ros-args"]
        command += ["--params-file", str(parameters), "-r", f"__node:={spec.name}"]
        for name, topic in spec.remappings:
            command += ["-r", f"{name}:={topic}"]
        log = self._folder / f"{spec.name}.log"
        # An own session: Ctrl-C in the terminal reaches the supervisor only, which then ends the nodes in order.
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,
            )
        return _Running(spec, process, log)

    def _end(self, nodes: list[_Running]) -> None:
        for send in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            alive = [node for node in nodes if node.process.poll() is None]
            for node in alive:
                node.process.send_signal(send)
                if send == signal.SIGKILL:
                    self.killed.append(node.spec.name)
            wait_all([node.process for node in alive], GRACE_S)


def wait_all(processes: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    """Wait until all have ended, `limit_s` seconds at most."""
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s and any(process.poll() is None for process in processes):
        time.sleep(0.02)


def environment() -> dict[str, str]:
    """The nodes' environment: shared memory large enough for images, unbuffered logs, and who to die with."""
    profile = str(share_folder("config") / "fastdds.xml")
    variables = dict(os.environ)
    old = variables.get("ROS_DISTRO") in ("humble", "jazzy")
    variables.setdefault("FASTRTPS_DEFAULT_PROFILES_FILE" if old else "FASTDDS_DEFAULT_PROFILES_FILE", profile)
    variables["PYTHONUNBUFFERED"] = "1"
    variables[SUPERVISED] = str(os.getpid())
    return variables


def write_parameters(path: Path, nodes: Sequence[NodeSpec], base: Path | None) -> Path:
    """One parameter file for all nodes: `base`, with each node's own parameters put in. ConfigError: see `base`.

    Each node's section holds all that `base` sets for it and stands last: in rcl the last section that is for a node
    wins, be it for all nodes, so that what a command was given would lose against a `/**` at the end of the file.
    """
    content: dict[str, dict[str, Any]] = {}
    for name, given in [] if base is None else file_sections(base):
        content.setdefault(name, {}).update(given)
    for spec in nodes:
        content.pop(f"/{spec.name}", None)
    for spec in nodes:
        given = {} if base is None else file_parameters(base, f"/{spec.name}")
        content[f"/{spec.name}"] = given | {name: _plain(value) for name, value in spec.parameters.items()}
    filled = {name: {"ros__parameters": given} for name, given in content.items() if given}  # rcl wants no empty one
    path.write_text(yaml.safe_dump(filled, sort_keys=False), encoding="utf-8")
    return path


def last_lines(log: Path) -> str:
    """The end of a node's log, long lines that report no trouble (all parameters in force) cut short."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    cut = [f"{line[:LONG_LINE]} ..." if "[INFO]" in line and len(line) > LONG_LINE else line for line in lines]
    return "\n".join(f"  {line}" for line in cut)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, (tuple, Mapping)) else value
