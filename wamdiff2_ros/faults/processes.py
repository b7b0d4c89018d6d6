"""The processes of the fault test: started one by one, killed, frozen, restarted, told things; memory watched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from wamdiff2_ros.graph import NodeSpec
from wamdiff2_ros.supervisor import GRACE_S, environment, wait_all, write_parameters

MB = 1024.0 * 1024.0


@dataclass
class Life:
    """One process from its start to its end. `memory`: (steady seconds, own MB) as sampled."""

    name: str
    number: int
    process: subprocess.Popen[bytes]
    log: Path
    started_s: float
    memory: list[tuple[float, float]] = field(default_factory=list)
    killed: bool = False  # by us
    by_force: bool = False  # kill -9
    ended_s: float = 0.0


class Processes:
    """`specs[name](number)` is the node to start as the process's so-manieth life; `base`: parameter file."""

    def __init__(
        self, specs: dict[str, Callable[[int], NodeSpec]], folder: Path, base: Path | None, domain: int
    ) -> None:
        self._specs = specs
        self._folder = folder
        self._base = base
        own = {"ROS_DOMAIN_ID": str(domain), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "OMP_NUM_THREADS": "1"}
        self._environment = {**environment(), **own}
        self.lives: list[Life] = []
        self.grace_s = GRACE_S
        self._now: dict[str, Life] = {}
        self.died: list[str] = []  # those that ended without being told, with exit code
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, name: str) -> Life:
        """Start a process; if it was there before, its next life begins."""
        number = sum(life.name == name for life in self.lives)
        spec = self._specs[name](number)
        log = self._folder / f"{name}_{number}.log"
        parameters = write_parameters(self._folder / f"{name}_{number}.yaml", [spec], self._base)
        command = [sys.executable, "-m", spec.module or f"wamdiff2_ros.{spec.executable}", "--ros-args"]
        command += ["--params-file", str(parameters), "-r", f"__node:={spec.name}"]
        for topic, other in spec.remappings:
            command += ["-r", f"{topic}:={other}"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, env=self._environment,
                start_new_session=True,
            )  # fmt: skip
        life = Life(name, number, process, log, time.monotonic())
        self.lives.append(life)
        self._now[name] = life
        return life

    def life(self, name: str) -> Life:
        return self._now[name]

    def tell(self, name: str, **command: Any) -> None:
        """Give a sensor process a command. One that has just been killed does not hear it."""
        pipe = self._now[name].process.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(command).encode() + b"\n")
            pipe.flush()
        except BrokenPipeError:
            if not self._now[name].killed:
                raise

    def kill(self, name: str) -> None:
        """kill -9."""
        life = self._now[name]
        life.killed = life.by_force = True
        life.ended_s = time.monotonic()
        life.process.kill()
        life.process.wait()

    def freeze(self, name: str) -> None:
        os.kill(self._now[name].process.pid, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        os.kill(self._now[name].process.pid, signal.SIGCONT)

    def end(self, name: str) -> int:
        """End a process as Ctrl-C does, and return its exit code; one that stays for too long is killed."""
        life = self._now[name]
        life.killed = True
        life.process.send_signal(signal.SIGINT)
        wait_all([life.process], self.grace_s)
        if life.process.poll() is None:
            self.died.append(f"{name} did not end on SIGINT within {self.grace_s:.0f} s")
            life.process.kill()
        return int(life.process.wait())

    def end_all(self) -> dict[str, int]:
        """End what still runs, the recorder last but for its witness. Returns exit codes."""
        last = ("recorder", "watcher")
        order = sorted(self._now, key=lambda name: last.index(name) if name in last else -1)
        return {name: self.end(name) for name in order if self._now[name].process.poll() is None}

    def look(self) -> list[str]:
        """Sample memory; return the names of those that have ended without being told, once each."""
        ended = []
        for name, life in self._now.items():
            code = life.process.poll()
            if code is None:
                life.memory.append((time.monotonic(), own_mb(life.process.pid)))
            elif not life.killed:
                life.killed = True
                self.died.append(f"{name} ended with exit code {code}: {life.log}")
                ended.append(name)
        return ended


def own_mb(pid: int) -> float:
    """Resident memory of a process without what it shares: libraries, and the middleware's segments."""
    memory = psutil.Process(pid).memory_info()
    return float(memory.rss - memory.shared) / MB


def growth_mb(memory: list[tuple[float, float]], warm_up_s: float, least_s: float) -> float | None:
    """Growth of own memory after the warm-up: median of the last fifth minus that of the first fifth.

    None for a process that did not live `least_s` seconds longer than the warm-up.
    """
    if not memory:
        return None
    used = [mb for at_s, mb in memory if at_s >= memory[0][0] + warm_up_s]
    if memory[-1][0] - memory[0][0] < warm_up_s + least_s or len(used) < 10:
        return None
    fifth = len(used) // 5
    return sorted(used[-fifth:])[fifth // 2] - sorted(used[:fifth])[fifth // 2]
