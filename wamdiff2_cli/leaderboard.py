"""`wamdiff2 leaderboard`: the official Bench2Drive code drives our agent through our world on CARLA's maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

NAME = "leaderboard"
ROOT = Path(__file__).resolve().parent.parent
AGENT = ROOT / "wamdiff2_ros/bench2drive_agent.py"
REFERENCE = ROOT / "wamdiff2_ros/bench2drive_reference_agent.py"


def run(
    routes: Annotated[int, typer.Option(min=0, help="How many, spread over towns; 0: all that our towns have")] = 5,
    ids: Annotated[str, typer.Option(help="These routes instead, like 24211,24224")] = "",
    towns: Annotated[str, typer.Option(help="Only in these, like Town01,Town03")] = "",
    config: Annotated[Path, typer.Option(help="The agent's settings")] = ROOT / "config/bench2drive_agent.yaml",
    agent: Annotated[Path, typer.Option(help="Agent file with get_entry_point")] = AGENT,
    reference: Annotated[bool, typer.Option(help="Let the world's expert drive instead of a model")] = False,
    out: Annotated[Path, typer.Option(help="results.json, summary.json, metric/ go there")] = Path("out/leaderboard"),
    resume: Annotated[bool, typer.Option(help="Go on where an earlier run in --out ended")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of traffic, lights and sensor noise")] = 0,
    vehicles: Annotated[int, typer.Option(min=0, help="Background traffic")] = 15,
    people: Annotated[int, typer.Option(min=0, help="Pedestrians")] = 6,
    chatter: Annotated[bool, typer.Option(help="Show what the leaderboard prints")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json and nothing else")] = False,
) -> None:
    """Drive official routes in our own world (no CARLA server) and score them with the official code."""
    from wamdiff2_sim.leaderboard.run import Job, run

    if agent == AGENT and not reference:
        _check(config)
    job = Job(
        REFERENCE if reference else agent, str(config.resolve()), out, routes, _listed(ids), _listed(towns), resume,
        seed, (vehicles, people), chatter,
    )  # fmt: skip
    summary = run(job)
    if as_json:
        print(json.dumps(summary))
        return
    _show(summary, out)


def _check(config: Path) -> None:
    """What is wrong with the settings shows now: the leaderboard would score each route 0 and end well."""
    from wamdiff2_core.agent.settings import load_settings
    from wamdiff2_core.errors import ConfigError, Wamdiff2Error

    settings = load_settings(config)
    if settings.mode == "ros":
        return
    folder = settings.checkpoint_folder
    if not folder.is_dir():
        raise ConfigError(f"{config}: checkpoint: expected a folder, got {folder}")
    from wamdiff2_core.evaluate.kernels_used import settled

    try:
        settled(folder, (settings.device,), settings.dtype, settings.kernels, (settings.block_size,))
    except Wamdiff2Error as error:
        raise ConfigError(f"{config}: {error}") from error


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _show(summary: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("route", "town", "scenario", "score", "completed", "status", "infractions", box=None)
    for row in summary["routes_table"]:
        wrong = ", ".join(f"{name} {count}" for name, count in row["infractions"].items())
        score, completed = f"{row['driving_score']:.1f}", f"{row['route_completion']:.0f} %"
        table.add_row(row["id"], row["town"], row["scenario"], score, completed, row["status"], wrong)
    abilities = Table("ability", "routes", "success", "score", box=None)
    for name, figures in summary["by_ability"].items():
        if figures["routes"]:
            success = f"{figures['successes']} of {figures['routes']}"
            abilities.add_row(name, str(figures["routes"]), success, f"{figures['driving_score']:.1f}")
    console = Console()
    console.print(table, "", abilities, "")
    if (out / "failures.log").is_file():
        console.print(f"what went wrong, with tracebacks: {out / 'failures.log'}")
    console.print(
        f"driving score {summary['driving_score']:.1f}, {summary['successes']} of {summary['routes']} routes succeeded "
        f"({summary['world']}); {out / 'results.json'}, {out / 'summary.json'}"
    )
