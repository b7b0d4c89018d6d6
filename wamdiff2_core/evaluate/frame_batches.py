"""A checkpoint on labelled frames in large batches: the figures of thousands of frames within seconds on a GPU.

`python -m wamdiff2_core.evaluate.frame_batches CHECKPOINT DATA --out FILE.jsonl.gz --configs "B=32,steps=2|3;B=1"`

The rows are those that `wamdiff2 evaluate frames` makes frame by frame, without milliseconds, up to ties between
tokens of equal probability. `forwards` are those that an answer would have taken alone, its prompt's pass included.
Settings that FILE already holds are skipped; see frame_store.py for reading it on another machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from wamdiff2_core.decode.decoder import Prefix
from wamdiff2_core.decode.result import DecodeResult
from wamdiff2_core.decode.task_scaffold import task_scaffold
from wamdiff2_core.driver import Driver
from wamdiff2_core.errors import ConfigError, Wamdiff2Error
from wamdiff2_core.evaluate.decode_grid import Setting, parse_settings
from wamdiff2_core.evaluate.frame_store import FrameStore, Measured
from wamdiff2_core.evaluate.frame_table import FrameTable, load_table
from wamdiff2_core.evaluate.frames import answer_row, boxes_row, plan_row, truth_of
from wamdiff2_core.model.images import Size
from wamdiff2_core.model.prompt import chat_prompt, human_text
from wamdiff2_core.scene import Cost, Scene
from wamdiff2_core.tasks import TASKS, ask, detect, plan
from wamdiff2_core.tasks.reading import Result, read_answer

MODULES = {"plan": plan, "detect": detect, "ask": ask}
BATCH = {"cpu": 32, "cuda": 512}
# Not cuDNN's: it makes a plan for every shape, and here shapes change as answers end.
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True)
class _Request:
    """One answer to make: of which frame, and the prompt behind the images."""

    frame: int
    task: str
    scene: Scene
    ids: torch.Tensor


class FrameBatches:
    """One checkpoint on one table of frames. Prefixes of the images are computed once and kept between settings.

    They take 2 * layers * kv_heads * head_dim numbers for every prompt token of every frame (12 M parameters, 2,000
    frames, bfloat16: about 2 GB). batch: answers decoded together.
    """

    def __init__(self, driver: Driver, table: FrameTable, batch: int = 0) -> None:
        """ConfigError if the checkpoint is not one of ours or sees other cameras than the table holds."""
        table.require(camera_sizes(driver))
        self.driver, self.table = driver, table.to(driver.loaded.device)
        self.batch = batch or BATCH.get(driver.loaded.device.type, 32)
        self._tokens = [driver.image_format.tokens(size) for size in table.sizes.values()]
        prompt = chat_prompt(driver.tokenizer, human_text("", len(self._tokens)), self._tokens)
        self._images = torch.tensor(prompt.ids[: prompt.images_end])  # every prompt begins with them
        forms = driver.formats
        self._scaffolds = {task: task_scaffold(task, driver.tokenizer, forms[task]) for task in TASKS}
        self._groups = _even(len(table.frames), 2 * self.batch)
        self._requests = [self._asked(part) for part in self._groups]
        self._kept: dict[tuple[int, int | None], Prefix] = {}

    def measure(self, setting: Setting) -> Measured:
        """Decode all frames this way."""
        with sdpa_kernel(KERNELS):
            return self._measure(setting)

    def _measure(self, setting: Setting) -> Measured:
        began = time.perf_counter()
        rows: list[dict] = []
        for number, part in enumerate(self._groups):
            prefix = self._prefix(number, setting.block_size)
            results: dict[tuple[int, str], list[Result]] = {}
            for task in TASKS:
                asked = [request for request in self._requests[number] if request.task == task]
                for request, result in zip(asked, self._answers(task, asked, prefix, part.start, setting), strict=True):
                    results.setdefault((request.frame, task), []).append(result)
            rows += [self._row(frame, results, setting) for frame in range(part.start, part.stop)]
        seconds = round(time.perf_counter() - began, 2)
        info = {"device": str(self.driver.loaded.device), "batch": self.batch, "seconds": seconds}
        return Measured(setting, info, rows)

    def _asked(self, part: slice) -> list[_Request]:
        """All requests of these frames."""
        found = []
        for number in range(part.start, part.stop):
            frame = self.table.frames[number]
            scene = Scene({}, frame.instruction, frame.ego)
            scenes = [("plan", scene), ("detect", scene)]
            scenes += [("ask", replace(scene, question=question)) for question, _ in frame.questions]
            for task, one in scenes:
                text = human_text(MODULES[task].prompt(one), len(self._tokens))
                prompt = chat_prompt(self.driver.tokenizer, text, self._tokens)
                found.append(_Request(number, task, one, torch.tensor(prompt.ids[prompt.images_end :])))
        return found

    def _prefix(self, number: int, block_size: int) -> Prefix:
        """The images of a group of frames, a row each."""
        key = (number, block_size if self.driver.loaded.context == "block_causal" else None)
        if key not in self._kept:
            for other in [other for other in self._kept if other[1] != key[1]]:
                del self._kept[other]  # made for another block size
            part = self._groups[number]
            pixels, grid = self.table.patches(part, self.driver.image_format)
            rows = [self._images] * (part.stop - part.start)
            pixels = pixels.to(self.driver.loaded.model.dtype)
            self._kept[key] = self.driver.decoder.prefill(rows, pixels, grid, block_size)
        return self._kept[key]

    def _answers(
        self, task: str, asked: Sequence[_Request], prefix: Prefix, first: int, setting: Setting
    ) -> list[Result]:
        """Results in the order of the requests; prompts of like length share a batch, which saves padding."""
        driver = self.driver
        order = sorted(range(len(asked)), key=lambda index: len(asked[index].ids))
        results: dict[int, Result] = {}
        for start in range(0, len(order), self.batch):
            part = order[start : start + self.batch]
            outputs = driver.decoder.generate(
                [asked[index].ids for index in part],
                config=setting.config(),
                scaffold=self._scaffolds[task] if setting.scaffold else None,
                prefix=prefix.rows([asked[index].frame - first for index in part]),
                max_new_tokens=[driver.max_new_tokens[task]] * len(part),
            )
            for index, output in zip(part, [outputs] if isinstance(outputs, DecodeResult) else outputs, strict=True):
                results[index] = self._read(asked[index], output)
        return [results[index] for index in range(len(asked))]

    def _read(self, request: _Request, output: DecodeResult) -> Result:
        driver, task = self.driver, request.task
        cost = Cost(output.alone, tuple(output.steps_per_block), len(output.tokens))
        answer = driver.tokenizer.answer(output.tokens, output.confidences)
        return read_answer(task, driver.formats[task], output.status.value, answer, request.scene, driver.limits, cost)

    def _row(self, number: int, results: dict[tuple[int, str], list[Result]], setting: Setting) -> dict:
        """A frame's row, as `frames.answer_frame` makes it, without times."""
        frame = self.table.frames[number]
        made = plan_row(results[number, "plan"][0], frame.points)
        answers = results.get((number, "ask"), [])
        return {
            "block_size": setting.block_size,
            "frame": frame.name,
            "plan": {name: value for name, value in made.items() if not name.endswith("_ms")},
            "detect": boxes_row(results[number, "detect"][0], frame.boxes),
            "ask": [answer_row(*pair, result) for pair, result in zip(frame.questions, answers, strict=True)],
        }


def names_cameras(driver: Driver) -> bool:
    """Does the checkpoint say which cameras it sees? Those made from a plain Qwen3-VL do not."""
    return driver.ours and "cameras" in driver.loaded.block_diffusion


def camera_sizes(driver: Driver) -> dict[str, Size]:
    """Cameras and image sizes of one of our checkpoints, in the order in which it sees them. ConfigError for others."""
    if not names_cameras(driver):
        raise ConfigError(f"{driver.loaded.folder}: expected a checkpoint that names its cameras; use frame_run")
    return {name: size for name, size in driver.image_sizes.items() if name in driver.cameras}


def fingerprint(checkpoint: Path) -> str:
    """Of the weights: what tells a checkpoint from a later one in the same folder."""
    seen = hashlib.sha256()
    for file in sorted(checkpoint.glob("*.safetensors")):
        with file.open("rb") as source:
            seen.update(hashlib.file_digest(source, "sha256").digest())
    return seen.hexdigest()[:16]


def evaluate(
    checkpoint: Path,
    data: Path | FrameTable,
    out: Path,
    settings: Sequence[Setting],
    device: str = "cpu",
    dtype: str = "float32",
    frames: int = 0,
    holdout: int = 0,
    batch: int = 0,
) -> Iterator[Measured]:
    """Rows of each setting, in order, as soon as they are in `out`. data: a folder, or a table read before.

    The table costs more time than a setting: read it once for several checkpoints of equal cameras.
    """
    driver = Driver.from_checkpoint(checkpoint, device, dtype, kernels="lean")  # batches of hundreds of rows
    table = data if isinstance(data, FrameTable) else load_table(data, camera_sizes(driver), frames, holdout)
    head: dict[str, object] = {"weights": fingerprint(checkpoint), "frames": table.digest, "dtype": dtype}
    head["checkpoint"] = str(checkpoint)
    batches = FrameBatches(driver, table, batch)
    store = FrameStore.open(out, head, [truth_of(frame) for frame in table.frames])
    done = {one.setting: one for one in store.measured}
    for setting in settings:
        if setting not in done:
            store.add(batches.measure(setting))
            done[setting] = store.measured[-1]
        yield done[setting]


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring. 0: done; 1: an input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="rows: FILE.jsonl.gz")
    parser.add_argument("--configs", default="B=32,steps=3,threshold=0.6", help="see decode_grid.py")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--frames", type=int, default=0, help="at most so many, spread evenly; 0: all")
    parser.add_argument("--holdout", type=int, default=0, help="only shards whose number this divides; 0: all")
    parser.add_argument("--batch", type=int, default=0, help="answers decoded together; 0: by device")
    options = vars(parser.parse_args(argv))
    try:
        settings = parse_settings(options.pop("configs"))
        for measured in evaluate(settings=settings, **options):
            print(json.dumps(measured.figures()), flush=True)
    except Wamdiff2Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _even(count: int, most: int) -> list[slice]:
    """Consecutive slices of nearly equal length, at most `most`, that cover 0 to count."""
    parts = -(-count // most)
    bounds = [count * index // parts for index in range(parts + 1)]
    return [slice(low, high) for low, high in zip(bounds, bounds[1:])]


if __name__ == "__main__":
    raise SystemExit(main())
