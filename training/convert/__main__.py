"""`python -m training.convert navsim|bench2drive|world INPUT... --out FILE`: conversation files for training.

FILE is a JSON list, or JSON lines when its name ends in .jsonl. What cannot be used is counted and named.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from training.convert import bench2drive, navsim, world
from training.convert.common import FORMS, Sample, write_samples
from wamdiff2_core.distill.stream.conversations import Tally
from wamdiff2_core.errors import Wamdiff2Error
from wamdiff2_core.tasks import TASKS


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m training.convert", description=__doc__)
    kinds = top.add_subparsers(dest="kind", required=True)
    scenes = kinds.add_parser("navsim", help="scenes exported from NAVSIM as JSON (docs/data.md)")
    scenes.add_argument("input", type=Path, nargs="+", help="files of scenes")
    scenes.add_argument("--command", help="for scenes without one: left, straight, right or follow")
    scenes.add_argument("--images", help="path of the front image where scenes name none, like 'front/{id}.jpg'")
    clips = kinds.add_parser("bench2drive", help="folder with clips of the Bench2Drive data set")
    clips.add_argument("input", type=Path, nargs=1)
    clips.add_argument("--rate", type=int, default=10, help="annotations a second")
    clips.add_argument("--every", type=int, default=5, help="take each so many-th frame")
    shards = kinds.add_parser("world", help="folder with shards of our world")
    shards.add_argument("input", type=Path, nargs=1)
    shards.add_argument("--holdout", type=int, default=0, help="leave out shards whose number this divides")
    shards.add_argument("--tasks", nargs="+", choices=TASKS, default=[])
    for kind in (scenes, clips, shards):
        kind.add_argument("--out", type=Path, required=True)
        forms = world.FORMS if kind is shards else FORMS
        kind.add_argument("--form", choices=forms, default=forms[0], help="prompts and answers as these checkpoints'")
    return top


def samples_of(arguments: argparse.Namespace, tally: Tally) -> Iterator[Sample]:
    """The converter that was asked for."""
    if arguments.kind == "navsim":
        return navsim.convert(arguments.input, tally, arguments.form, arguments.command, arguments.images)
    if arguments.kind == "bench2drive":
        return bench2drive.convert(arguments.input[0], tally, arguments.form, arguments.rate, arguments.every)
    return world.convert(arguments.input[0], tally, arguments.form, arguments.holdout, tuple(arguments.tasks))


def main(arguments: Sequence[str] | None = None) -> int:
    given, tally = parser().parse_args(arguments), Tally()
    try:
        count = write_samples(samples_of(given, tally), given.out)
    except Wamdiff2Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{given.out}: {count} samples; {tally.summary()}")
    for name in tally.bad_names[:20]:
        print(f"  {name}", file=sys.stderr)
    return 0 if count else 1


if __name__ == "__main__":
    raise SystemExit(main())
