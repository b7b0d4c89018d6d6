"""Options that `wamdiff2 evaluate lingoqa` and `drivebench` share, and how their results are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from wamdiff2_core.errors import ConfigError

if TYPE_CHECKING:
    from wamdiff2_core.evaluate.everything.benchmark import Measured
    from wamdiff2_core.evaluate.text_answers import AskJob

Checkpoint = Annotated[Path | None, typer.Option(help="Folder of the checkpoint that answers")]
Images = Annotated[Path | None, typer.Option(help="Folder that the pictures are named from")]
Decoding = Annotated[str, typer.Option(help="How to decode, like B=8,steps=4,threshold=0.6")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, ...")]
Workers = Annotated[int, typer.Option(min=1, help="Processes that answer")]
Fill = Annotated[str, typer.Option(help="Cameras without a picture: refuse (the question fails) or black")]
Most = Annotated[int, typer.Option(min=0, help="Only the first questions; 0: all")]
Tokenizer = Annotated[
    str, typer.Option(help="Words of BLEU, ROUGE-L, CIDEr: ptb (official, needs Java) or words (ours)")
]
Url = Annotated[str, typer.Option(help="A judge's OpenAI-compatible endpoint, like http://127.0.0.1:8000/v1")]
Model = Annotated[str, typer.Option(help="The model to ask there")]
KeyEnv = Annotated[str, typer.Option(help="Environment variable with the endpoint's key")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else")]


def ask_job(
    checkpoint: Path | None, rows: Path, decoding: str, device: str, dtype: str, workers: int, fill: str, kernels: str
) -> AskJob | None:
    """Who answers; None without a checkpoint. ConfigError for more than one way to decode."""
    from wamdiff2_core.evaluate.decode_grid import parse_settings
    from wamdiff2_core.evaluate.text_answers import AskJob

    settings = parse_settings(decoding)
    if len(settings) != 1:
        raise ConfigError(f"--decoding: expected one way, got {len(settings)}; `wamdiff2 evaluate all` takes many")
    if checkpoint is None:
        return None
    return AskJob(checkpoint, rows, settings[0], device, dtype, workers, fill=fill, kernels=kernels)


def endpoint(url: str, model: str, key_env: str) -> dict[str, Any] | None:
    """An endpoint's entry; None where none is named."""
    if not url and not model:
        return None
    return {"base_url": url, "model": model, "key_env": key_env}


def show(measured: Measured, report: dict[str, Any], as_json: bool) -> None:
    """Figures and problems on the console, or the result as JSON."""
    from rich.table import Table
    from rich.text import Text

    if as_json:
        print(json.dumps(report, indent=2))
        return
    console = Console(highlight=False)
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("figure", "value", "unit", "samples", "what to know"):
        shown.add_column(name)
    for one in measured.figures:
        value = "not known" if one.value is None else f"{one.value:.4g}"
        shown.add_row(*map(Text, (one.name, value, one.unit, str(one.count or ""), one.note)))
    console.print(measured.data, markup=False)
    console.print(shown)
    for line in measured.problems:
        console.print(Text(line), style="yellow")
    Console(stderr=True).print(f"wrote {', '.join(f for f in measured.files if Path(f).is_file())}", markup=False)
