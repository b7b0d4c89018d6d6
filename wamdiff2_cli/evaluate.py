"""`wamdiff2 evaluate`: figures of a checkpoint on labelled frames and on drives, and their tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from wamdiff2_cli import evaluate_all, evaluate_coco, evaluate_drivebench, evaluate_lingoqa, evaluate_navsim
from wamdiff2_cli.kernels import Kernels
from wamdiff2_core.errors import ConfigError

NAME = "evaluate"
OUT = Path("out")
app = typer.Typer(help="Measure a checkpoint: on labelled frames, on drives, on benchmarks.", no_args_is_help=True)
for module in (evaluate_all, evaluate_lingoqa, evaluate_drivebench, evaluate_coco, evaluate_navsim):
    app.command(module.NAME)(module.run)

Blocks = Annotated[str, typer.Option("--block-sizes", help="Block sizes, like 1,4,8,16,32")]
Rule = Annotated[str, typer.Option(help="Which tokens a step keeps: dynamic, static, sequential or ordered")]
Steps = Annotated[int, typer.Option(min=1, help="Most denoising steps per block")]
Threshold = Annotated[float, typer.Option(min=0.0, max=1.0, help="Probability from which a token is taken")]
Workers = Annotated[int, typer.Option(min=1, help="Processes")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else")]


def block_sizes(text: str) -> tuple[int, ...]:
    """Block sizes of a list like 1,4,32. ConfigError if it is none."""
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--block-sizes: expected integers like 1,4,8,16,32; got {text!r}") from error
    if min(values) < 1 or len(set(values)) != len(values):
        raise ConfigError(f"--block-sizes: expected different integers >= 1, got {text!r}")
    return values


@app.command("frames")
def frames(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint folder")],
    data: Annotated[Path, typer.Argument(help="Folder of shards (wamdiff2 dataset)")],
    blocks: Blocks = "1,4,8,16,32",
    steps: Steps = 8,
    threshold: Threshold = 0.9,
    rule: Rule = "dynamic",
    count: Annotated[int, typer.Option("--frames", min=0, help="Most, spread over all shards; 0: all")] = 500,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, ...")] = "float32",
    kernels: Kernels = "auto",
    workers: Workers = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch in each process")] = 1,
    out: Annotated[Path, typer.Option(help="Result; rows go to a .jsonl beside it")] = Path("out/evaluate/frames.json"),
    as_json: AsJson = False,
) -> None:
    """Plans, boxes and answers on labelled frames: errors, mAP50, right answers, failures, forwards, milliseconds."""
    from wamdiff2_core.evaluate import frame_run
    from wamdiff2_sim.question_kinds import kind_of

    job = frame_run.FrameJob(
        checkpoint, data, out, block_sizes(blocks), steps, threshold, rule, count, device, dtype, workers, threads,
        kernels,
    )  # fmt: skip
    _show(frame_run.run(job, Console(stderr=True, quiet=as_json), kind_of), out, as_json)


@app.command("recount")
def recount(
    result: Annotated[Path, typer.Argument(help="Result of `evaluate frames`, its .jsonl beside it")],
    as_json: AsJson = False,
) -> None:
    """Figures anew from the rows of a result that was measured where the package for mAP was missing."""
    from wamdiff2_core.evaluate import frame_run
    from wamdiff2_sim.question_kinds import kind_of

    _show(frame_run.recount(result, kind_of), result, as_json)


@app.command("drive")
def drive(
    checkpoint: Annotated[str, typer.Argument(help='Checkpoint folder, or "expert"')],
    blocks: Blocks = "1,4,8,16,32",
    steps: Steps = 8,
    threshold: Threshold = 0.9,
    rule: Rule = "dynamic",
    towns: Annotated[str, typer.Option(help="Towns, like Town01,Town02")] = "",
    routes_per_town: Annotated[int, typer.Option(min=1)] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Of the first route in each town")] = 1000,
    latency: Annotated[float, typer.Option(help="Simulated seconds that a plan takes; negative: as measured")] = 0.2,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, ...")] = "float32",
    kernels: Kernels = "auto",
    workers: Workers = 2,
    out: Annotated[Path, typer.Option(help="Result; rows go to a .jsonl beside it")] = Path("out/evaluate/drive.json"),
    as_json: AsJson = False,
) -> None:
    """Closed loop in the embedded world: route completion, collisions, red lights on towns never trained on."""
    from wamdiff2_sim import evaluate as closed_loop

    arguments = closed_loop.arguments(
        checkpoint=checkpoint, out=out, towns=towns.split(",") if towns else list(closed_loop.TOWNS),
        routes_per_town=routes_per_town, block_sizes=list(block_sizes(blocks)), steps=steps, threshold=threshold,
        rule=rule, seed=seed, latency=latency, device=device, dtype=dtype, workers=workers, kernels=kernels,
    )  # fmt: skip
    _show(closed_loop.evaluate(arguments), out.with_suffix(".json"), as_json)


@app.command("bench2drive")
def bench2drive(
    results: Annotated[list[Path], typer.Argument(help="Folder of leaderboard result files; several: one per seed")],
    map_lookups: Annotated[Path | None, typer.Option(help="JSON: where failed routes' first junctions are")] = None,
    metric_dir: Annotated[Path | None, typer.Option(help="Folder of SAVE_NAME/metric_info.json, for one run")] = None,
    out: Annotated[Path, typer.Option(help="summary.json, report.md and report.html go there")] = OUT / "bench2drive",
    as_json: AsJson = False,
) -> None:
    """Bench2Drive's scores of result files, like its official tools: driving score, success, abilities, comfort."""
    from wamdiff2_core.evaluate.bench2drive import command

    made = command.evaluate(results, out, map_lookups, metric_dir)
    if as_json:
        print(json.dumps(made.summary, indent=2))
    else:
        command.show(made, Console())
        Console(stderr=True).print(f"wrote {out}")


@app.command("table")
def table(
    results: Annotated[list[Path], typer.Argument(help="Result files of frames, drive and bench")],
    out: Annotated[Path | None, typer.Option(help="Markdown file to write; else it is printed")] = None,
) -> None:
    """Result files as Markdown tables, for a README or a model card."""
    from wamdiff2_core.evaluate.tables import merged_markdown, read_report

    text = merged_markdown([read_report(path) for path in results])
    if out is None:
        print(text, end="")
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
        Console(stderr=True).print(f"wrote {out}")


def _show(report: dict, out: Path, as_json: bool) -> None:
    from wamdiff2_core.evaluate.tables import print_tables

    if as_json:
        print(json.dumps(report, indent=2))
        return
    print_tables(report, Console())
    Console(stderr=True).print(f"wrote {out}")
