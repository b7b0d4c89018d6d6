"""`wamdiff2 evaluate lingoqa`: answers to LingoQA's questions, judged by its own classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wamdiff2_cli import evaluate_texts as texts
from wamdiff2_cli.kernels import Kernels

NAME = "lingoqa"


def run(
    references: Annotated[Path, typer.Argument(help="Parquet file of questions with their reference answers")],
    predictions: Annotated[Path | None, typer.Option(help="predictions.csv to score, instead of a checkpoint")] = None,
    checkpoint: texts.Checkpoint = None,
    images: texts.Images = None,
    judge: Annotated[Path | None, typer.Option(help="Folder with Lingo-Judge (config, tokenizer, safetensors)")] = None,
    judge_url: texts.Url = "",
    judge_model: texts.Model = "",
    judge_key_env: texts.KeyEnv = "",
    tokenizer: texts.Tokenizer = "ptb",
    decoding: texts.Decoding = "B=32,steps=8,threshold=0.9",
    device: texts.Device = "cpu",
    dtype: texts.Dtype = "float32",
    kernels: Kernels = "auto",
    workers: texts.Workers = 1,
    fill: texts.Fill = "refuse",
    most: texts.Most = 0,
    out: Annotated[Path, typer.Option(help="predictions.csv, scores.csv, lingoqa.json")] = Path("out/evaluate/lingoqa"),
    as_json: texts.AsJson = False,
) -> None:
    """Answer LingoQA's questions with a checkpoint, or take a file of answers, and score them."""
    from wamdiff2_core.evaluate.lingoqa import row
    from wamdiff2_core.evaluate.lingoqa import run as lingoqa

    ask = texts.ask_job(checkpoint, out / lingoqa.ROWS, decoding, device, dtype, workers, fill, kernels)
    job = lingoqa.LingoJob(
        references, out, ask, images,
        predictions, judge, texts.endpoint(judge_url, judge_model, judge_key_env), tokenizer, most, device,
    )  # fmt: skip
    report = lingoqa.evaluate(job)
    texts.show(row.measured(report, out), report, as_json)
