"""`python -m training.proof COMMAND ...`: see `--help` of each command and docs/distillation.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from training.proof.rows import ROWS, Decoding
from wamdiff2_core.errors import ConfigError, Wamdiff2Error

FRAME_OPTIONS = ("device", "dtype", "frames", "sweep_frames", "fork_frames", "fork_draws", "overlap_frames", "minutes",
                 "once", "batch", "parts")  # fmt: skip


def names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in names(text))


def decodings(texts: Sequence[str]) -> dict[str, Decoding]:
    """ROW=BLOCK,STEPS,THRESHOLD[,RULE] texts as a table."""
    found = {}
    for text in texts:
        row, _, values = text.partition("=")
        parts = values.split(",")
        if row not in ROWS or len(parts) not in (3, 4):
            raise ConfigError(f"decoding {text!r}: expected ROW=BLOCK,STEPS,THRESHOLD and perhaps ,RULE")
        found[row] = Decoding(int(parts[0]), int(parts[1]), float(parts[2]), *parts[3:])
    return found


def train(options: argparse.Namespace) -> int:
    from training.proof.train import RECIPES, Plan, Session

    plan = Plan(
        options.run, options.data, options.rows, options.seeds, options.device, options.recipes or RECIPES,
        tuple(options.overrides), options.wait_minutes, options.vision_from,
    )  # fmt: skip
    return Session(plan).run()


def evaluate(options: argparse.Namespace) -> int:
    from training.proof.drives import Evaluation, Tour

    tour = Tour(
        options.run, options.rows, options.seeds, options.towns, options.routes_per_town, options.first_route,
        options.workers, options.minutes, options.device, options.dtype, egl_devices=options.egl_devices,
        plan_period_s=options.plan_period, length_m=_two(options.route_m), expert=options.expert, retry=options.retry,
        decoding=decodings(options.decoding),
    )  # fmt: skip
    return Evaluation(tour).run()


def frames(options: argparse.Namespace) -> int:
    from training.proof.frames import Look, Watch

    values = {name: getattr(options, name) for name in FRAME_OPTIONS}
    return Watch(Look(options.run, options.data, options.rows, options.seeds, **values)).run()


def report(options: argparse.Namespace) -> int:
    from training.proof.report import write

    write(options.run, options.out, options.docs, options.rows, options.seeds)
    return 0


def _two(values: Sequence[int]) -> tuple[float, float]:
    if len(values) != 2 or not 0 < values[0] <= values[1]:
        raise ConfigError(f"route-m: expected shortest,longest, got {values}")
    return float(values[0]), float(values[1])


def _common(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    parser.add_argument("--run", type=Path, required=True, help="folder of the whole proof")
    parser.add_argument("--rows", type=names, default=tuple(ROWS), help=f"of {', '.join(ROWS)}")
    parser.add_argument("--seeds", type=numbers, default=(0, 1, 2))
    parser.set_defaults(action=run)
    return parser


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m training.proof", description=__doc__)
    commands = top.add_subparsers(required=True)
    one = _common(commands.add_parser("train", help="train rows, one after the other, on one device"), train)
    one.add_argument("--data", type=names, required=True, help="folders with shard_*")
    one.add_argument("--device", default="cuda:0")
    one.add_argument("--recipes", type=Path, help="folder of ROW.yaml files (default: training/recipes)")
    one.add_argument("--vision-from", type=Path, help="checkpoint whose vision tower the random models take over")
    one.add_argument("--wait-minutes", type=float, default=60.0, help="longest wait for other processes' runs")
    one.add_argument("overrides", nargs="*", help="key=value or ROW.key=value")
    two = _common(commands.add_parser("evaluate", help="closed-loop drives of finished checkpoints"), evaluate)
    _drive_options(two)
    three = _common(commands.add_parser("frames", help="finished checkpoints on held-out frames"), frames)
    _frame_options(three)
    five = _common(commands.add_parser("overlap", help="only the agreement of students with teachers"), frames)
    _frame_options(five)
    five.set_defaults(parts=("overlap",))
    four = _common(commands.add_parser("report", help="figures, plots and tables of all that was measured"), report)
    four.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of distill.json")
    four.add_argument("--docs", type=Path, default=Path("docs"), help="folder of distillation.md and images/")
    return top


def _frame_options(three: argparse.ArgumentParser) -> None:
    from training.proof.frames import PARTS

    three.add_argument("--data", type=Path, required=True, help="folder of held-out shards, complete")
    three.add_argument("--device", default="cuda:0")
    three.add_argument("--parts", type=names, default=PARTS, help=f"of {', '.join(PARTS)}")
    three.add_argument("--dtype", default="auto")
    three.add_argument("--minutes", type=float, default=0.0, help="0: until all is measured")
    three.add_argument("--once", action="store_true", help="measure what is finished now, wait for nothing")
    three.add_argument("--frames", type=int, default=0, help="at most so many held-out frames; 0: all")
    three.add_argument("--sweep-frames", type=int, default=512, help="for the sweeps over decoding settings")
    three.add_argument("--fork-frames", type=int, default=256)
    three.add_argument("--fork-draws", type=int, default=16)
    three.add_argument("--overlap-frames", type=int, default=512)
    three.add_argument("--batch", type=int, default=0, help="answers decoded together; 0: by device")


def _drive_options(two: argparse.ArgumentParser) -> None:
    from wamdiff2_sim.evaluate import TOWNS

    two.add_argument("--workers", type=int, default=2)
    two.add_argument("--routes-per-town", type=int, default=4)
    two.add_argument("--first-route", type=int, default=1000, help="seed of the first route and its traffic")
    two.add_argument("--towns", type=names, default=TOWNS)
    two.add_argument("--minutes", type=float, default=0.0, help="0: until all is driven")
    two.add_argument("--device", default="cpu")
    two.add_argument("--dtype", default="auto")
    two.add_argument("--plan-period", type=float, default=0.25)
    two.add_argument("--route-m", type=numbers, default=(150, 220), help="shortest and longest route")
    two.add_argument("--egl-devices", type=numbers, default=(), help="graphics devices for the workers in turn")
    two.add_argument("--expert", action="store_true", help="let the expert drive, too, as row `expert`")
    two.add_argument("--retry", action="store_true", help="drive again what failed")
    two.add_argument("--decoding", action="append", default=[], help="ROW=BLOCK,STEPS,THRESHOLD[,RULE]")


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 1: something failed or an input is wrong; other codes: see the command."""
    try:
        options = parser().parse_args(arguments)
        return options.action(options)
    except Wamdiff2Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
