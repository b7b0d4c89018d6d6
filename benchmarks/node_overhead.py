"""What the node adds to the model's time, by stage: python benchmarks/node_overhead.py [--seconds 20] [--sizes rig|hd]

Compressed cameras from another process; receipt of the newest frame to the publication of the plan, without inference.
Writes out/bench/node_overhead.json. The target is 10 ms with six cameras on two free cores.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from node_run import NodeRun, quantiles

from wamdiff2_ros.stages import NAMES

SIX = ("cam_front", "cam_front_left", "cam_front_right", "cam_back", "cam_back_left", "cam_back_right")
SIZES = {
    "rig": dict(zip(SIX, ("640x384", *["320x192"] * 5), strict=True)),  # config/rig_six.yaml
    "hd": dict.fromkeys(SIX, "1600x900"),
}
TARGET_MS = 10.0


def measure(sizes: dict[str, str], seconds: float, rate_hz: float, inference_s: float, model: str) -> dict[str, object]:
    run = NodeRun(sizes, rate_hz, inference_s, model)
    try:
        run.spin_until_running()
        load = os.getloadavg()[0]
        run.spin(seconds)
        stats = list(run.stats)
    finally:
        run.close()
    stages = {name: quantiles([getattr(message, name) for message in stats]) for name in (*NAMES, "overhead_ms")}
    return {
        "cameras": sizes,
        "rate_hz": rate_hz,
        "inference_s": inference_s,
        "model": model,
        "seconds": seconds,
        "plans": len(stats),
        "load_average": load,
        "cores": os.cpu_count(),
        "target_ms": TARGET_MS,
        "stages": stages,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate-hz", type=float, default=10.0)
    parser.add_argument("--inference-s", type=float, default=0.03)
    parser.add_argument("--model", choices=("sleep", "busy"), default="sleep", help="what its core does meanwhile")
    parser.add_argument("--sizes", choices=SIZES, default="rig")
    parser.add_argument("--out", type=Path, default=Path("out/bench/node_overhead.json"))
    options = parser.parse_args()
    result = measure(SIZES[options.sizes], options.seconds, options.rate_hz, options.inference_s, options.model)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{result['plans']} plans, load average {result['load_average']:.1f} on {result['cores']} cores; ms:")
    for name, figures in result["stages"].items():  # type: ignore[attr-defined]
        print(f"  {name:14} median {figures['median']:8.2f}   p95 {figures['p95']:8.2f}   max {figures['max']:8.2f}")


if __name__ == "__main__":
    main()
