"""A camera at 30 Hz against a model of 250 ms: python benchmarks/freshness.py [--seconds 60]

The worker takes the newest frame there is: at most one period old when it is taken (and a tenth more, the jitter of the
sender), and at publication older by what its answer took: the inference, and what the node adds. Memory must be flat.
Writes out/bench/freshness.json; exit code 1 where frames are older or memory grows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from node_run import NodeRun, quantiles, resident_mb

GROWTH_MB = 5.0
JITTER = 0.1  # of a period


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate-hz", type=float, default=30.0)
    parser.add_argument("--inference-s", type=float, default=0.25)
    parser.add_argument("--size", default="640x384")
    parser.add_argument("--out", type=Path, default=Path("out/bench/freshness.json"))
    options = parser.parse_args()
    run = NodeRun({"cam_front": options.size}, options.rate_hz, options.inference_s)
    try:
        run.spin_until_running()
        run.spin(3.0)  # caches and queues fill
        begin_mb, begin = resident_mb(), len(run.stats)
        run.spin(options.seconds)
        grown_mb = resident_mb() - begin_mb
        stats = run.stats[begin:]
    finally:
        run.close()
    ages = [message.frame_age_ms for message in stats]
    taken = [message.busy_ms + message.wait_ms for message in stats]
    period_ms = 1e3 / options.rate_hz
    late = sum(age > period_ms * (1.0 + JITTER) for age in taken)
    both = [m.frame_age_ms - m.inference_ms - period_ms for m in stats]
    result = {
        "seconds": options.seconds,
        "rate_hz": options.rate_hz,
        "inference_s": options.inference_s,
        "plans": len(stats),
        "frames_dropped": int(stats[-1].frames_dropped - stats[0].frames_dropped),
        "age_when_taken_ms": quantiles(taken),
        "age_at_publication_ms": quantiles(ages),
        "beyond_period_and_inference_ms": quantiles(both),
        "node_adds_ms": quantiles([message.images_ms + message.prompt_ms for message in stats]),
        "late_frames": late,
        "memory_growth_mb": round(grown_mb, 2),
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    return int(late > 0 or grown_mb > GROWTH_MB)


if __name__ == "__main__":
    sys.exit(main())
