"""What the recorder's safety costs, and what a kill -9 loses: real files, a real node process.

python benchmarks/recorder.py [--folder DIR] [--kills 5] [--seconds 4] [--json]
The folder decides on the disk that is measured. Other load on the machine counts; it is printed beside the figures.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from wamdiff2_ros.bag_salvage import salvage
from wamdiff2_ros.bag_writer import BagWriter, Limits, NoRoom
from wamdiff2_ros.mcap_scan import Scan

STRING, IMAGE_BYTES = "std_msgs/msg/String", 300_000
TOPIC = "/made/numbers"


def run(
    folder: Annotated[
        Path | None, typer.Option(help="Where to write; default: the system's folder for such files")
    ] = None,
    kills: Annotated[int, typer.Option(min=0, help="How often a recorder is killed")] = 5,
    seconds: Annotated[float, typer.Option(min=1.0, help="Of each measurement")] = 4.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else")] = False,
) -> None:
    """Throughput and longest flush by how often is synced; seconds lost by kill -9."""
    scratch = Path(tempfile.mkdtemp(prefix="recorder_", dir=folder))
    try:
        syncs = {"only closed files": 0.0, "every 1 s (default)": 1.0, "every chunk": 1e-9}
        report: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 1), "writing": {}, "kills": []}
        for k, (name, sync_s) in enumerate(syncs.items()):
            report["writing"][name] = _write(scratch / f"w{k}", sync_s, seconds)
        report["kills"] = [_kill(scratch / f"k{k}", seconds) for k in range(kills)]
    finally:
        shutil.rmtree(scratch)
    if as_json:
        print(json.dumps(report, indent=2))
        return
    print(f"load average {report['load_average']} on {os.cpu_count()} cores")
    for name, row in report["writing"].items():
        print(f"sync {name}: {row}")
    for row in report["kills"]:
        print(f"kill -9: {row}")


def _write(bag: Path, sync_s: float, seconds: float) -> dict[str, float]:
    """Six cameras' JPEG files as fast as they can be written."""
    writer, data, took = BagWriter(bag, Limits(sync_s=sync_s)), b"\0\1\0\0" + os.urandom(IMAGE_BYTES), []
    writer.add_topic(TOPIC, STRING)
    begin_s = time.perf_counter()
    while time.perf_counter() - begin_s < seconds:
        before_s = time.perf_counter()
        try:
            writer.write(TOPIC, time.time_ns(), data)
        except NoRoom:
            break
        took.append(time.perf_counter() - before_s)
    spent_s = time.perf_counter() - begin_s
    writer.close()
    shutil.rmtree(bag)
    ordered = sorted(took)
    return {
        "mb_per_s": round(len(took) * len(data) / spent_s / 1e6, 1),
        "write_p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1e3, 1),
        "write_most_ms": round(ordered[-1] * 1e3, 1),
    }


def _kill(bag: Path, seconds: float) -> dict[str, float]:
    """A recorder process killed while 50 messages of 20 kB a second arrive."""
    import rclpy
    from std_msgs.msg import UInt8MultiArray

    command = [sys.executable, "-m", "wamdiff2_ros.recorder_node", "--ros-args"]
    command += ["-p", f"path:={bag}", "-p", "prefixes:=[/made/]", "-p", "max_file_mb:=2"]
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node("sender", context=context)
    publisher = node.create_publisher(UInt8MultiArray, TOPIC, 100)
    recorder = subprocess.Popen(command)
    sent_ns: list[int] = []
    for _ in _ticks(60.0, 0.02):
        if publisher.get_subscription_count() == 0:
            continue
        sent_ns.append(time.time_ns())
        publisher.publish(UInt8MultiArray(data=(len(sent_ns) - 1).to_bytes(4, "little") + bytes(20_000)))
        if sent_ns[-1] - sent_ns[0] > seconds * 1e9:
            break
    killed_ns = time.time_ns()
    recorder.kill()
    recorder.wait()
    node.destroy_node()
    rclpy.try_shutdown(context=context)
    report = salvage(bag, bag.with_name(bag.name + "_saved"))
    numbers = [int.from_bytes(m.data[-20_004:-20_000], "little") for m in _messages(bag)]
    lost = [ns for k, ns in enumerate(sent_ns) if k > max(numbers)]
    return {
        "lost_s": round((killed_ns - min(lost, default=killed_ns)) / 1e9, 3),
        "lost_messages": len(lost),
        "missing_before_that": max(numbers) + 1 - min(numbers) - len(set(numbers)),
        "files": len(report.files),
        "closed_files_whole": sum(file.finished for file in report.files),
    }


def _messages(bag: Path) -> Iterator[Any]:
    for file in sorted(bag.glob("*.mcap")):
        yield from Scan(file).found()


def _ticks(limit_s: float, period_s: float) -> Iterator[int]:
    until_s, k = time.monotonic() + limit_s, 0
    while time.monotonic() < until_s:
        yield k
        k += 1
        time.sleep(period_s)


if __name__ == "__main__":
    typer.run(run)
