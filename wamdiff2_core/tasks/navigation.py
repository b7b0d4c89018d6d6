"""Navigation commands as the words of an instruction, and back."""

from __future__ import annotations

import re

from wamdiff2_core.scene import Command

SAID_FROM_M = 50.0  # a manoeuvre is announced from this distance before the junction
STEP_M = 5

_WORDS = {Command.LEFT: "turn left", Command.RIGHT: "turn right", Command.STRAIGHT: "go straight"}
_FOLLOW = "follow the road"
_PATTERN = re.compile(r"(turn left|turn right|go straight)(?: now| in [0-9]{1,3} m)?", re.ASCII)


def navigation_text(command: Command, distance_m: float) -> str:
    """The instruction for a manoeuvre whose junction begins in `distance_m` metres (0 or less: we are inside it).

    Distances are rounded to 5 m; a manoeuvre further away than 50 m is not said yet.
    """
    if command is Command.FOLLOW or distance_m > SAID_FROM_M:
        return _FOLLOW
    rounded = STEP_M * round(distance_m / STEP_M)
    return f"{_WORDS[command]} in {rounded} m" if rounded > 0 else f"{_WORDS[command]} now"


def parse_navigation(text: str) -> Command | None:
    """The command an instruction stands for; None for any other sentence (upper case and outer spaces are forgiven)."""
    words = text.strip().lower()
    if words == _FOLLOW:
        return Command.FOLLOW
    match = _PATTERN.fullmatch(words)
    if match is None:
        return None
    return next(command for command, said in _WORDS.items() if said == match[1])
