"""`wamdiff2 evaluate drivebench`: answers to DriveBench's questions, by letter, text and an outside judge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wamdiff2_cli import evaluate_texts as texts
from wamdiff2_cli.kernels import Kernels

NAME = "drivebench"
Prompts = Annotated[Path | None, typer.Option(help="DriveBench's evaluate/prompts.py; else a rubric of ours")]
Descriptions = Annotated[Path | None, typer.Option(help="DriveBench's data/visual_description.json")]


def run(
    questions: Annotated[Path, typer.Argument(help="JSON list of questions, with `pred` unless a checkpoint answers")],
    checkpoint: texts.Checkpoint = None,
    images: texts.Images = None,
    corruption: Annotated[str, typer.Option(help="Folder of corruption/ whose pictures are shown, like Fog")] = "",
    judge_url: texts.Url = "",
    judge_model: texts.Model = "",
    judge_key_env: texts.KeyEnv = "",
    prompts: Prompts = None,
    descriptions: Descriptions = None,
    tokenizer: texts.Tokenizer = "ptb",
    decoding: texts.Decoding = "B=32,steps=8,threshold=0.9",
    device: texts.Device = "cpu",
    dtype: texts.Dtype = "float32",
    kernels: Kernels = "auto",
    workers: texts.Workers = 1,
    fill: texts.Fill = "refuse",
    most: texts.Most = 0,
    out: Annotated[Path, typer.Option(help="predictions.json, drivebench.json")] = Path("out/evaluate/drivebench"),
    as_json: texts.AsJson = False,
) -> None:
    """Answer DriveBench's questions with a checkpoint, or take a file with answers, and score them."""
    from wamdiff2_core.evaluate.drivebench import row
    from wamdiff2_core.evaluate.drivebench import run as drivebench

    ask = texts.ask_job(checkpoint, out / drivebench.ROWS, decoding, device, dtype, workers, fill, kernels)
    job = drivebench.DriveBenchJob(
        questions, out, ask, images, corruption, texts.endpoint(judge_url, judge_model, judge_key_env), prompts,
        descriptions, tokenizer, most,
    )  # fmt: skip
    report = drivebench.evaluate(job)
    texts.show(row.measured(report, out), report, as_json)
