"""A camera at 30 Hz against a model of 250 ms: python benchmarks/freshness.py [--seconds 60]

The worker takes the newest frame there is, at most one period after it came (and a tenth more, the jitter of the
sender); of one that would be older than a period and an inference when its plan is published it waits for the next.
That age counts from the stamp, which the sender sets before it sends. Memory must be flat. Writes
out/bench/freshness.json; exit code 1 where a frame was taken later, more than one in a hundred was older when its plan
was published, or memory grows.
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
OLDER_SHARE = 0.01


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
    ages = [message.frame_age_ms + message.convert_ms + message.publish_ms for message in stats]
    taken = [message.busy_ms + message.wait_ms for message in stats]
    period_ms = 1e3 / options.rate_hz
    late = sum(age > period_ms * (1.0 + JITTER) for age in taken)
    both = [age - message.inference_ms - period_ms for age, message in zip(ages, stats, strict=True)]
    older = sum(beyond >= 0.0 for beyond in both)
    result = {
        "seconds": options.seconds,
        "rate_hz": options.rate_hz,
        "inference_s": options.inference_s,
        "plans": len(stats),
        "frames_dropped": int(stats[-1].frames_dropped - stats[0].frames_dropped),
        "age_when_taken_ms": quantiles(taken),
        "age_at_publication_ms": quantiles(ages),
        "beyond_period_and_inference_ms": quantiles(both),
        "node_adds_ms": quantiles([m.images_ms + m.prompt_ms + m.convert_ms + m.publish_ms for m in stats]),
        "late_frames": late,
        "older_at_publication": older,
        "memory_growth_mb": round(grown_mb, 2),
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    return int(late > 0 or older > OLDER_SHARE * len(stats) or grown_mb > GROWTH_MB)


if __name__ == "__main__":
    sys.exit(main())
