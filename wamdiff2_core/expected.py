"""What a driver will be asked, told beforehand. Imports no torch: nodes say it before they load a model."""

from __future__ import annotations

from dataclasses import dataclass

from wamdiff2_core.tasks import TASKS
from wamdiff2_core.tasks.checks import MAX_INSTRUCTION


@dataclass(frozen=True)
class Expected:
    """Calls to get ready for, see `Driver.get_ready`.

    together: tasks in one batch, too. candidates: plans drawn at once, 0: none; scored: the plain plan among them.
    block_sizes: (): all that the engine is made for. may_lack: cameras that scenes may come without.
    instruction, question: characters of the longest ones.
    """

    tasks: tuple[str, ...] = TASKS
    together: bool = True
    candidates: int = 0
    scored: bool = False
    block_sizes: tuple[int, ...] = ()
    may_lack: tuple[str, ...] = ()
    instruction: int = MAX_INSTRUCTION
    question: int = 300
