"""Control of a real driver node process: transition times, memory over reconfigurations, time to end in an answer.

python benchmarks/node_control.py [--times 10] [--out out/bench/node_control.json]. Uses the shipped checkpoint on the
CPU for memory and transitions, and a driver whose answers take a minute for the ends.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("ROS_DOMAIN_ID", "93")
os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
sys.path[:0] = [str(ROOT), str(ROOT / "test" / "ros")]

from remote import Remote  # noqa: E402

LIMIT_S = 300.0
CAMERAS = ("cam_front", "cam_front_left", "cam_front_right")
SIGNALS = {
    "SIGINT": (signal.SIGINT,),
    "SIGTERM": (signal.SIGTERM,),
    "two SIGINT": (signal.SIGINT, signal.SIGINT),
}


def reconfigured(times: int) -> dict[str, Any]:
    """Switch between two copies of the checkpoint in one process; milliseconds per transition, megabytes after each."""
    tiny = ROOT / "checkpoints" / "tiny"
    took: dict[str, list[float]] = {name: [] for name in ("deactivate", "cleanup", "configure", "activate")}
    with tempfile.TemporaryDirectory() as other:
        folders = [tiny, Path(shutil.copytree(tiny, Path(other) / "tiny2"))]
        arguments = ("-p", "autostart:=false", "-p", f"checkpoint:={folders[0]}")
        node = Remote("wamdiff2_ros.driver_node", *arguments, cameras=CAMERAS, limit_s=LIMIT_S)
        try:
            active, clean = [], []
            for turn in range(times + 1):
                if turn:
                    for name in ("deactivate", "cleanup"):
                        took[name].append(timed(node, name))
                    clean.append(round(node.memory_mb()))
                    assert node.set(checkpoint=str(folders[turn % 2])) == []
                for name in ("configure", "activate"):
                    took[name].append(timed(node, name))
                count = len(node.plans())
                node.until(lambda: len(node.plans()) > count + 2, "plans", node.send)  # noqa: B023
                active.append(round(node.memory_mb()))
            code = node.end(signal.SIGINT)
        finally:
            node.close()
    return {
        "transitions_ms": {name: round(median(values)) for name, values in took.items()},
        "active_mb": active,
        "cleaned_up_mb": clean,
        "exit_code": code,
    }


def ended(times: int) -> dict[str, Any]:
    """Seconds from the signal, or the shutdown transition, to the end of a process that is in an answer."""
    result: dict[str, Any] = {}
    for name, signals in {**SIGNALS, "shutdown transition": ()}.items():
        seconds, codes = [], set()
        for _ in range(times):
            node = Remote("control_process", "-p", "checkpoint:=slow", limit_s=LIMIT_S)
            try:
                node.until(lambda: "answering" in node.lines, "an answer", node.send)  # noqa: B023
                sent_s = time.monotonic()
                if not signals:
                    assert node.change("shutdown")
                codes.add(node.end(*signals))
                seconds.append(round(time.monotonic() - sent_s, 2))
                assert "Traceback" not in node.log, node.log
            finally:
                node.close()
        result[name] = {"seconds": sorted(seconds), "exit_codes": sorted(codes)}
    return result


def timed(node: Remote, transition: str) -> float:
    started_s = time.monotonic()
    assert node.change(transition), node.log
    return (time.monotonic() - started_s) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "bench" / "node_control.json")
    given = parser.parse_args()
    result = {"cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
    result |= {"reconfigured": reconfigured(given.times), "ended_in_an_answer": ended(given.times)}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
