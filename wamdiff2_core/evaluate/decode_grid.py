"""Ways to decode, and grids of them written on one line: `B=1;B=8|32,steps=2|3,threshold=0.6|0.9,scaffold=on|off`."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.errors import ConfigError

_SHORT = {"B": "block_size"}
_SWITCH = {"on": True, "off": False}


@dataclass(frozen=True)
class Setting:
    """The decoder's settings, and whether answers of a fixed form follow their scaffold (False: all text is free).

    steps: the most a block may take; a block never takes more than it has tokens.
    """

    block_size: int = 32
    steps: int = 8
    threshold: float = 0.9
    rule: str = "dynamic"
    scaffold: bool = True
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.config()

    def config(self) -> DecodingConfig:
        """What the decoder is told. ConfigError for values that it does not take."""
        values = asdict(self)
        values.pop("scaffold")
        steps = min(self.steps, self.block_size)
        return DecodingConfig(**{**values, "steps": steps})

    def values(self) -> dict[str, object]:
        """As plain values, for a file."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Setting:
        """Back from plain values. ConfigError for a name that is none."""
        unknown = set(values) - {item.name for item in fields(cls)}
        if unknown:
            raise ConfigError(f"decoding: unknown {', '.join(sorted(unknown))}")
        return cls(**values)  # type: ignore[arg-type]

    def __str__(self) -> str:
        parts = [f"B={self.block_size}", f"steps={self.steps}", f"threshold={self.threshold:g}"]
        if self.rule != "dynamic":
            parts.append(f"rule={self.rule}")
        if not self.scaffold:
            parts.append("scaffold=off")
        if self.temperature:
            parts += [f"temperature={self.temperature:g}", f"seed={self.seed}"]
        return ",".join(parts)


def parse_settings(text: str) -> list[Setting]:
    """Settings of a line: parts by `;`, each `name=value,...`, alternatives by `|`, all combined.

    No way to decode is there twice: B=1 with four steps is B=1 with two, for a block never takes more steps than it
    has tokens; the first one stays.
    """
    found: dict[tuple, Setting] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        options = [_options(item) for item in part.split(",")]
        for chosen in itertools.product(*options):
            names = [name for name, _ in chosen]
            if len(set(names)) < len(names):
                raise ConfigError(f"decoding {part!r}: expected each name once")
            setting = Setting(**dict(chosen))  # type: ignore[arg-type]
            found.setdefault((setting.config(), setting.scaffold), setting)
    if not found:
        raise ConfigError(f"decoding: expected such as 'B=32,steps=3,threshold=0.6;B=1', got {text!r}")
    return list(found.values())


def _options(item: str) -> list[tuple[str, object]]:
    """(name, value) for each alternative of `name=a|b`."""
    name, equals, values = (piece.strip() for piece in item.partition("="))
    name = _SHORT.get(name, name)
    kinds = typing.get_type_hints(Setting)
    if not equals or name not in kinds:
        raise ConfigError(f"decoding {item!r}: expected name=value with a name of B, {', '.join(kinds)}")
    return [(name, _value(name, kinds[name], value.strip())) for value in values.split("|")]


def _value(name: str, kind: type, text: str) -> object:
    if kind is bool:
        if text not in _SWITCH:
            raise ConfigError(f"decoding: {name}: expected on or off, got {text!r}")
        return _SWITCH[text]
    try:
        return kind(text)
    except ValueError as error:
        raise ConfigError(f"decoding: {name}: expected {kind.__name__}, got {text!r}") from error
