"""The golden Bench2Drive sets unpacked, and small made-up result files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden" / "bench2drive"
SETS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
LISTS = (
    "collisions_layout", "collisions_pedestrian", "collisions_vehicle", "red_light", "stop_infraction",
    "outside_route_lanes", "min_speed_infractions", "yield_emergency_vehicle_infractions", "scenario_timeouts",
    "route_dev", "vehicle_blocked", "route_timeout",
)  # fmt: skip


def unpack(name: str, root: Path) -> tuple[Path, dict[str, Any]]:
    """Write a golden set below `root`: its input folder, and what the official tools made of it."""
    for path in (p for p in (GOLDEN / name).rglob("*") if p.is_file()):
        data = path.read_bytes()
        target = root / path.relative_to(GOLDEN / name)
        if path.suffix == ".gz":
            data, target = gzip.decompress(data), target.with_suffix("")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return root / "input", json.loads((root / "expected.json").read_text())


def record(number: int | str = 1711, rep: int = 0, status: str = "Completed", **changes: Any) -> dict[str, Any]:
    """A record of the leaderboard; `score` sets both scores, names of infraction lists set those."""
    score = changes.pop("score", 100.0)
    infractions = {name: changes.pop(name, []) for name in LISTS}
    row = {
        "index": 0,
        "route_id": f"RouteScenario_{number}_rep{rep}",
        "scenario_name": "ParkingCutIn_1",
        "weather_id": "1",
        "save_name": f"RouteScenario_{number}_rep{rep}_Town12",
        "status": status,
        "num_infractions": 0,
        "infractions": infractions,
        "scores": {"score_route": score, "score_penalty": 1.0, "score_composed": score},
        "meta": {"route_length": 100.0, "duration_game": 20.0, "duration_system": 60.0},
        "town_name": "Town12",
    }
    return {**row, **changes}


def write_results(path: Path, *records: object, progress: object = None) -> Path:
    """A result file with these records, finished unless `progress` says otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = {"global_record": {}, "progress": progress or [len(records)] * 2, "records": list(records)}
    value = {"_checkpoint": checkpoint, "entry_status": "Finished", "eligible": True, "sensors": []}
    path.write_text(json.dumps(value))
    return path
