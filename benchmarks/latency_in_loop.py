"""Driving score against block size and latency, under the leaderboard's code in our world: the world does not wait.

`python benchmarks/latency_in_loop.py --out out/latency` drives the same routes with every pair and writes a table.
A latency is injected (simulated seconds until a plan acts) or "measured": as long as the plan took on this machine, so
that a busy machine drives worse. `--reference` puts the world's expert in the model's place: the cost of latency alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from wamdiff2_core.agent.settings import AgentSettings
from wamdiff2_core.evaluate.machine import machine
from wamdiff2_core.evaluate.summary import write_json

ROUTES = "24224,24211,24781"  # a pedestrian twice, hard braking; light towns
KEYS = ("driving_score", "route_completion", "successes", "routes")


def main() -> int:
    """0: done; 1: a run failed."""
    args = _arguments()
    rows = []
    for block in args.blocks:
        for latency in args.latencies:
            row = _drive(args, block, latency)
            if row is None:
                return 1
            rows.append(row)
            print(_line(row), flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / "latency.json", {"routes": args.ids, "machine": machine("cpu"), "rows": rows})
    (args.out / "latency.md").write_text(_table(rows), encoding="utf-8")
    return 0


def _drive(args: argparse.Namespace, block: int, latency: str) -> dict[str, Any] | None:
    folder = args.out / f"{'reference' if args.reference else f'block{block}'}_{latency}"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "agent.yaml"
    value = latency if latency == "measured" else float(latency)
    longest = 5.0 if latency == "measured" else max(1.0, 2.0 * float(latency) + 0.3)  # until the next one acts
    settings = {"block_size": block, "latency_s": value, "max_plan_age_s": longest}
    settings.update(yaml.safe_load(args.settings.read_text()) if args.settings else {})
    assert settings.keys() <= {item.name for item in fields(AgentSettings)}
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    command = [sys.executable, "-m", "wamdiff2_cli.main", "leaderboard", "--json", "--ids", args.ids,
               "--out", str(folder), "--config", str(config), "--seed", str(args.seed)]  # fmt: skip
    done = subprocess.run(command + ["--reference"] * args.reference, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    made = json.loads(done.stdout)
    collisions = sum(count for name, count in made["infractions"].items() if name.startswith("collisions"))
    return {"block_size": 0 if args.reference else block, "latency_s": latency, "collisions": collisions,
            **{key: made[key] for key in KEYS}, **made["agent"]}  # fmt: skip


def _line(row: dict[str, Any]) -> str:
    name = "reference" if row["block_size"] == 0 else f"B={row['block_size']}"
    took = "-" if row["planning_ms_p50"] is None else f"{row['planning_ms_p50']:.0f}"
    return (
        f"| {name} | {row['latency_s']} | {row['driving_score']:.1f} | {row['successes']} of {row['routes']} "
        f"| {row['collisions']} | {row['plans']} | {took} | {row['braking_ticks']} |"
    )


def _table(rows: list[dict[str, Any]]) -> str:
    head = "| planner | latency s | driving score | success | collisions | plans | planning ms p50 | ticks braking |\n"
    return head + "|---|---|---|---|---|---|---|---|\n" + "\n".join(map(_line, rows)) + "\n"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--blocks", type=lambda t: [int(v) for v in t.split(",")], default=[1, 8, 32])
    parser.add_argument("--latencies", type=lambda t: t.split(","), default=["0", "0.25", "0.5", "1.0", "measured"])
    parser.add_argument("--ids", default=ROUTES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", type=Path, help="further entries of the agent's settings file")
    parser.add_argument("--reference", action="store_true")
    args = parser.parse_args()
    args.blocks = args.blocks[:1] if args.reference else args.blocks
    return args


if __name__ == "__main__":
    raise SystemExit(main())
