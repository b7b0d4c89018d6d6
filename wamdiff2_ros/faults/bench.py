"""The nodes under test with their sensors and witness, and what can be done to them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import Wamdiff2Error
from wamdiff2_ros import graph
from wamdiff2_ros.faults.client import ParameterClient
from wamdiff2_ros.faults.disk import Disk
from wamdiff2_ros.faults.events import EventLog
from wamdiff2_ros.faults.processes import Processes
from wamdiff2_ros.graph import NodeSpec

PREFIX = "/vehicle"
JUMP_LEAD_S = 0.3  # commands are on their way for less
MODULE = "wamdiff2_ros.faults"
# Not the domain of the environment: nodes of others must neither be broken nor heard. Their ports are free on Linux.
DOMAINS = range(215, 232)


class Bench:
    """`driver`: parameters of the driver node; cameras is among them. Starts nothing by itself."""

    prefix = PREFIX

    def __init__(
        self, out: Path, pictures: Path, driver: Mapping[str, Any], disk: Disk, seed: int, base: Path, module: str = ""
    ) -> None:
        self.out = out
        self.cameras: Sequence[str] = list(driver["cameras"])
        self.block_size = int(driver["block_size"])
        self.disk = disk
        self.rng = random.Random(seed)
        self.begin_s = time.monotonic()
        self._raw = driver.get("image_transport") == "raw"
        self.driver = dict(driver)
        self._module = module
        self._pictures = pictures
        self._jumps: list[float] = [0.0]
        self.sensor_log = out / "sensors.jsonl"
        self.witness_log = out / "witness.jsonl"
        self.log_path = out / "controller.jsonl"
        self.log = EventLog(self.log_path)
        self.domain = DOMAINS[os.getpid() % len(DOMAINS)]
        self.processes = Processes(self._specs(), out / "log", base, self.domain)

    def topic(self, camera: str) -> str:
        return f"{PREFIX}/{camera}/image" + ("" if self._raw else "/compressed")

    def camera_of(self, topic: str) -> str:
        return next(camera for camera in self.cameras if self.topic(camera) == topic)

    @property
    def bags(self) -> list[Path]:
        """Folders of the bags, in the order of recording."""
        return sorted(self.disk.folder.glob("bag_*"))

    def start(self) -> None:
        for name in ("watcher", "recorder", "ego", *self.cameras, "follower", "wamdiff2"):
            self.processes.start(name)

    def jump(self, by_s: float) -> None:
        """Let sensor time jump for all sensors at one moment."""
        at_s = time.monotonic() + JUMP_LEAD_S
        self._jumps += [at_s, by_s]
        for name in ("ego", *self.cameras):
            self.processes.tell(name, jump_at_s=at_s, jump_by_s=by_s)

    def set_parameters(self, values: Mapping[str, Any]) -> str:
        """Ask the driver; its reply, which is written down as well."""
        with ParameterClient("wamdiff2", self.domain) as client:
            reply = client.set(values)
        self.log.write("reply", text=reply, values=dict(values))
        return reply

    def adapt(self, values: Mapping[str, Any]) -> None:
        """Set parameters of the driver for this life and all later ones. Wamdiff2Error if it does not take them."""
        self.driver.update(values)
        reply = self.set_parameters(values)
        if reply != "accepted":  # all that is judged later rests on them
            raise Wamdiff2Error(f"the driver was to take {dict(values)}: {reply}")

    def recorder_back(self) -> None:
        """Make sure that a recorder runs, whether or not it survived."""
        if self.processes.life("recorder").process.poll() is not None:
            self.processes.start("recorder")

    def _specs(self) -> dict[str, Any]:
        specs: dict[str, Any] = {
            "watcher": lambda k: self._own("watcher", {"log": self.witness_log, "prefix": PREFIX}),
            "ego": lambda k: self._own("ego", {**self._sensor(), "prefix": PREFIX}),
            "recorder": lambda k: graph.recorder(self.disk.folder / f"bag_{k:03d}", _RECORDED),
            "follower": lambda k: graph.follower(PREFIX),
            "wamdiff2": self._driver_spec,
        }
        return specs | {camera: self._camera_spec(camera) for camera in self.cameras}

    def _driver_spec(self, number: int) -> NodeSpec:
        inputs = graph.inputs_from(PREFIX, self.cameras, "raw" if self._raw else "compressed")
        return NodeSpec("wamdiff2", "driver_node", self.driver, inputs, module=self._module)

    def _camera_spec(self, camera: str) -> Any:
        own = {"camera": camera, "topic": self.topic(camera), "pictures": self._pictures}
        return lambda k: NodeSpec(camera, "", {**self._sensor(), **own, "life": k}, module=f"{MODULE}.camera")

    def _own(self, name: str, parameters: Mapping[str, Any]) -> NodeSpec:
        return NodeSpec(name, "", parameters, module=f"{MODULE}.{name}")

    def _sensor(self) -> dict[str, Any]:
        return {"log": self.sensor_log, "begin_s": self.begin_s, "jumps": list(self._jumps)}


_RECORDED = {"prefixes": [f"{PREFIX}/", "/wamdiff2/", "/follower/", "/diagnostics"]}
