"""What a node runs with, and what of it came from nowhere: parameter files and names that nothing uses.

rcl ignores a parameter file whose node name is misspelt, and a parameter that nobody declares; both are named here.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from wamdiff2_core.errors import ConfigError

OUR_NODES = ("/wamdiff2", "/follower", "/world", "/recorder", "/carla_bridge")


class _Loader(yaml.SafeLoader):
    """Takes 1e-3 for a number, as rcl does; to PyYAML it is text unless it has both a dot and a sign."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def _sections(content: Any, prefix: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """(node name split at slashes, parameters) of a parameter file's content: namespaces may be nested maps."""
    if not isinstance(content, Mapping):
        return []
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in content.items():
        if key == "ros__parameters":
            found.append((prefix, value))
        else:
            found += _sections(value, (*prefix, *tokens(str(key))))
    return found


def matches(section: Sequence[str], node: Sequence[str]) -> bool:
    """Whether rcl applies a section to a node. `*` stands for one token, `**` for any number of them."""
    if not section:
        return not node
    if section[0] == "**":
        return any(matches(section[1:], node[k:]) for k in range(len(node) + 1))
    return bool(node) and section[0] in ("*", node[0]) and matches(section[1:], node[1:])


def unused_sections(path: Path, nodes: Iterable[str]) -> list[str]:
    """Sections of a parameter file that apply to none of these nodes (full names). ConfigError if it cannot be read."""
    names = [tokens(name) for name in nodes]
    return [_joined(s) for s in _read(path) if not any(matches(s, name) for name in names)]


def file_parameters(path: Path, node: str) -> dict[str, Any]:
    """What a parameter file sets for the node with this full name; empty if none of its sections is for it."""
    values: dict[str, Any] = {}
    for section, given in _sections(_content(path)):
        if matches(section, tokens(node)) and isinstance(given, Mapping):
            values |= given
    return values


def file_sections(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """(name of its nodes, parameters) of all sections of a parameter file that set something, in their order."""
    return [(_joined(name), dict(given)) for name, given in _sections(_content(path)) if isinstance(given, Mapping)]


def file_warning(path: Path, node: str) -> str:
    """A sentence if no section of the file applies to the node with this full name, else empty."""
    found = _read(path)
    if any(matches(section, tokens(node)) for section in found):
        return ""
    return f"parameter file {path} applies to no node here: it is for {_listed(found)}; this node is {node}"


def run_warning(path: Path, nodes: Sequence[str]) -> str:
    """A sentence if a node of a run (full names) gets nothing from the file while a section of it reaches none of them.

    A section for one of our own nodes that does not take part in this run is as it should be.
    """
    without = [node for node in nodes if file_warning(path, node)]
    nobody = [section for section in unused_sections(path, nodes) if section not in OUR_NODES]
    if not (without and nobody):
        return ""
    return (
        f"parameter file {path}: {', '.join(nobody)} is no node of this run; nothing in it is for {', '.join(without)}"
    )


def parameter_file_warnings(node: Any, args: Sequence[str]) -> list[str]:
    """Sentences about the files named by `--params-file` in `args` that do not reach `node`."""
    paths = [Path(args[k + 1]) for k, word in enumerate(args[:-1]) if word == "--params-file"]
    return [warning for path in paths if (warning := file_warning(path, node.get_fully_qualified_name()))]


def unknown_names(given: Iterable[str], declared: Iterable[str]) -> list[str]:
    """A sentence for each given parameter that the node does not have."""
    known = set(declared)
    return [
        f"parameter {name!r} was given but does not exist{_hint(name, known)}" for name in given if name not in known
    ]


def as_json(node: str, stamp_s: float, why: str, parameters: Mapping[str, Any]) -> str:
    """The parameters in force, for `~/output/parameters`. `why`: "configure" or the names that were changed."""
    plain = {name: list(v) if isinstance(v, (tuple, bytes)) else v for name, v in sorted(parameters.items())}
    return json.dumps({"node": node, "stamp_s": stamp_s, "why": why, "parameters": plain})


def one_line(parameters: Mapping[str, Any]) -> str:
    """The parameters in force, for the log."""
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in sorted(parameters.items()))


def tokens(name: str) -> tuple[str, ...]:
    """A full node name split at its slashes."""
    return tuple(token for token in name.split("/") if token)


def _read(path: Path) -> list[tuple[str, ...]]:
    return [section for section, _ in _sections(_content(path))]


def _content(path: Path) -> Mapping[Any, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: expected a ROS parameter file, got {error}") from error
    if not isinstance(content, (Mapping, type(None))):
        raise ConfigError(f"{path}: expected a ROS parameter file, sections by node name; got {content!r:.60}")
    return content or {}


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _listed(found: Sequence[Sequence[str]]) -> str:
    return ", ".join(_joined(section) for section in found) or "nobody"


def _joined(section: Sequence[str]) -> str:
    return "/" + "/".join(section)
