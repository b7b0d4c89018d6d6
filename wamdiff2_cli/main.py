"""Entry point of the `wamdiff2` command."""

from __future__ import annotations

import errno
import sys
from concurrent.futures.process import BrokenProcessPool
from typing import NoReturn

import typer

from wamdiff2_cli import (
    bench,
    carla,
    dataset,
    demo,
    doctor,
    drive,
    evaluate,
    faults,
    leaderboard,
    plan,
    record,
    replay,
    salvage,
    train,
)
from wamdiff2_core.errors import Wamdiff2Error

app = typer.Typer(
    help="A block-diffusion driver: cameras in; plan, boxes and answers out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for module in (demo, drive, carla, record, salvage, replay, plan, train, dataset, bench, faults, leaderboard, doctor):
    app.command(module.NAME)(module.run)
app.add_typer(evaluate.app, name=evaluate.NAME)


def main() -> None:
    """Run the command. Errors that a user can do something about are one line, without a traceback; exit code 1."""
    try:
        app()
    except Wamdiff2Error as error:
        _end(str(error))
    except BrokenProcessPool:
        _end("a worker process was killed, perhaps for want of memory: run it again, with fewer --workers")
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:
            raise  # a fault of ours; one that names a file is the user's disk or path
        _end(str(error))


def _end(text: str) -> NoReturn:
    print(f"wamdiff2: {text}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
