"""Limits on figures: `ade_m=1.5`, `map50>=0.3`, `ade_m@8<=1.2`. A limit on what could not be measured is broken."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from wamdiff2_core.errors import ConfigError

# Of these, more is better: `name=value` is their least. Of all others it is the most.
MORE_IS_BETTER = {"frames", "plans", "plan_hz", "map50", "detection_frames", "answers", "answers_correct"}
MORE_IS_BETTER |= {"answers_as_recorded_share", "compared_with_driven", "compared_with_recorded", "bag_finished"}
MORE_IS_BETTER |= {"plans_as_recorded_share"}
MORE_IS_BETTER |= {"compared_with_expert", "messages_read", "messages_stated", "read_share", "duration_s"}
_LIMIT = re.compile(r"\s*([^<>=\s]+)\s*(<=|>=|=)\s*(\S+)\s*")


@dataclass(frozen=True)
class Limit:
    """A figure's name, `<=` or `>=`, and the value it is held against."""

    name: str
    sign: str
    value: float

    def __str__(self) -> str:
        return f"{self.name} {self.sign} {self.value:g}"


@dataclass(frozen=True)
class Verdict:
    """What became of a limit. `figure` None: it could not be measured."""

    limit: Limit
    figure: float | None
    held: bool

    def plain(self) -> dict[str, Any]:
        return {"limit": str(self.limit), "figure": self.figure, "held": self.held}


def parse_limit(text: str) -> Limit:
    """ConfigError if it is none."""
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise ConfigError(f"limit {text!r}: expected NAME=VALUE, NAME<=VALUE or NAME>=VALUE")
    name, sign, number = match.groups()
    try:
        value = float(number)
    except ValueError as error:
        raise ConfigError(f"limit {text!r}: expected a number, got {number!r}") from error
    if not math.isfinite(value):
        raise ConfigError(f"limit {text!r}: expected a finite number")
    if sign == "=":
        sign = ">=" if base_name(name) in MORE_IS_BETTER else "<="
    return Limit(name, sign, value)


def read_limits(path: Path) -> list[Limit]:
    """Limits of a YAML file: `ade_m: 1.5` or `map50: ">=0.3"`, a line each. ConfigError if they are none."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: expected a YAML file of limits, got {error}") from error
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"{path}: expected lines like `ade_m: 1.5`, got {content!r}")
    limits = []
    for name, value in content.items():
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ConfigError(f"{path}: {name}: expected a number, or a text like '>=0.3'; got {value!r}")
        signed = isinstance(value, str) and value.lstrip().startswith(("<=", ">="))
        limits.append(parse_limit(f"{name}{value}" if signed else f"{name}={value}"))
    return limits


def base_name(name: str) -> str:
    """The figure's name without the part before it (`recorded.`) and the block size behind it (`@8`)."""
    return name.partition("@")[0].removeprefix("recorded.")


def flat(figures: Mapping[str, Any], prefix: str = "") -> dict[str, float | None]:
    """All figures by name: of a list each member (`per_waypoint_m.1` is the first), of a mapping `name.key`.

    None stays None; texts are no figures.
    """
    found: dict[str, float | None] = {}
    for key, value in figures.items():
        name = f"{prefix}{key}"
        if value is None:
            found[name] = None
        elif isinstance(value, (bool, int, float)):
            found[name] = float(value)
        elif isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            found |= flat({str(k + 1): v for k, v in enumerate(value) if isinstance(v, (int, float))}, f"{name}.")
    return found


def figures_of(report: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Figures of a replay's report by name: of every block size (all of them are held), `@SIZE` of one."""
    found: dict[str, list[float | None]] = {}
    for row in report["results"]:
        for name, value in flat(row).items():
            found.setdefault(name, []).append(value)
            found[f"{name}@{row['block_size']}"] = [value]
    then = {name: value for name, value in report["recorded"].items() if name != "settings"}
    found |= {name: [value] for name, value in flat(then, "recorded.").items()}
    entry = report["input"]
    found |= {name: [value] for name, value in flat({k: v for k, v in entry.items() if k != "topics"}).items()}
    found["problems"] = [float(len(entry["problems"]))]
    found |= {f"gap_s.{row['topic']}": [row["max_gap_s"]] for row in entry["topics"]}
    return found


def check_names(limits: Iterable[Limit], known: Iterable[str]) -> None:
    """ConfigError for a figure that there is not. A topic's gap (`gap_s./topic`) may be of a topic that is missing."""
    names = set(known)
    for limit in limits:
        listed = limit.name in names or limit.name.startswith("gap_s./") or _part_of(limit.name, names)
        if not listed:
            shown = ", ".join(sorted(name for name in names if "@" not in name and "/" not in name))
            raise ConfigError(f"limit {limit}: there is no figure {limit.name!r}; there are {shown}, and gap_s./TOPIC")


def judge(limits: Iterable[Limit], figures: Mapping[str, Sequence[float | None]]) -> list[Verdict]:
    """A verdict for each limit: on the worst of its figures, or broken where one of them could not be measured."""
    verdicts = []
    for limit in limits:
        values = figures.get(limit.name, [None])
        known = [value for value in values if value is not None and math.isfinite(value)]
        if not known or len(known) < len(values):
            verdicts.append(Verdict(limit, None, False))
            continue
        worst = min(known) if limit.sign == ">=" else max(known)
        verdicts.append(Verdict(limit, worst, worst >= limit.value if limit.sign == ">=" else worst <= limit.value))
    return verdicts


def _part_of(name: str, names: set[str]) -> bool:
    """Whether it is a member of a list or mapping that may hold none this time: per_waypoint_m.3@8."""
    base, _, size = name.partition("@")
    parent, _, member = base.rpartition(".")
    return parent in LISTS and bool(member) and (not size or f"frames@{size}" in names)


LISTS = {f"{prefix}per_waypoint_{kind}m" for prefix in ("", "recorded.") for kind in ("", "to_recorded_", "to_expert_")}
LISTS |= {"answers_correct_by_kind"}
