"""Instructions and questions come from outside: made plain, and never longer than stated.

Words like `<|im_end|>` or `<image>` need no care here: the tokenizer spells them out (core's model/tokenizer.py).
"""

from __future__ import annotations

import unicodedata

from wamdiff2_core.errors import DataError

_SPACES = frozenset({"Cc", "Zl", "Zp"})  # line ends, tabs, escape sequences: a space instead
_NOTHING = frozenset({"Cf", "Cs", "Co", "Cn"})  # direction marks, half characters, private ones: left out
QUOTED = 40


def plain_text(text: str, limit: int) -> tuple[str, int]:
    """(text on one line with single spaces, how many characters were not text and are gone).

    Raises DataError for more than `limit` characters: a text that was cut could say the opposite of the whole.
    """
    stripped = text.strip()
    if len(stripped) > limit:
        raise DataError(f"{len(stripped)} characters, at most {limit} are taken: {stripped[:QUOTED]!r}...")
    kinds = [unicodedata.category(letter) for letter in stripped]
    kept = "".join(_replaced(letter, kind) for letter, kind in zip(stripped, kinds, strict=True))
    return " ".join(kept.split()), sum(kind in _SPACES | _NOTHING for kind in kinds)


def _replaced(letter: str, kind: str) -> str:
    if kind in _NOTHING:
        return ""
    return " " if kind in _SPACES else letter
