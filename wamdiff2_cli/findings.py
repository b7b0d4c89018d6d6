"""One line of `wamdiff2 doctor`, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass

OK, MISSING, OPTIONAL = "ok", "missing", "optional"


@dataclass(frozen=True)
class Finding:
    """`state`: ok; missing (the demo cannot run); optional (something else cannot run). `do`: the way out."""

    name: str
    state: str
    found: str
    do: str = ""

    def plain(self) -> dict[str, str]:
        return asdict(self)
