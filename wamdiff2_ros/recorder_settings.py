"""Parameters of the recorder, checked when the node is made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rcl_interfaces.msg import ParameterDescriptor

from wamdiff2_core.errors import ConfigError
from wamdiff2_ros.bag_writer import Limits

EVERYTHING_OF_OURS = (
    "/world/", "/vehicle/", "/wamdiff2/", "/follower/", "/clock", "/diagnostics", "/tf", "/tf_static", "/rosout",
    "/parameter_events",
)  # fmt: skip
MOST_NUMBERED = 10000


@dataclass(frozen=True)
class RecorderSettings:
    """Field names are the parameter names; `DESCRIPTIONS` says what they mean."""

    path: str = ""
    prefixes: tuple[str, ...] = EVERYTHING_OF_OURS
    exclude: tuple[str, ...] = ()
    if_exists: str = "error"
    max_file_mb: float = 1024.0
    max_file_s: float = 0.0
    min_free_mb: float = 64.0
    on_full: str = "wait"
    queue_mb: float = 256.0
    flush_s: float = 0.5
    sync_s: float = 1.0

    def __post_init__(self) -> None:
        """ConfigError naming what is out of its range."""
        if not Path(self.path).name:
            raise ConfigError("recorder: parameter path is needed: the folder that the bag goes to")
        for name, allowed in (("if_exists", ("error", "number")), ("on_full", ("wait", "end"))):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"recorder: {name}: {getattr(self, name)!r} is not one of {', '.join(allowed)}")
        if not 1.0 <= self.queue_mb <= 1e6:
            raise ConfigError(f"recorder: queue_mb: {self.queue_mb} is not within 1..1000000")
        self.limits()

    def limits(self) -> Limits:
        return Limits(**{f.name: getattr(self, f.name) for f in fields(Limits)})

    def wanted(self, topic: str) -> bool:
        return topic.startswith(self.prefixes) and topic not in self.exclude


DESCRIPTIONS = {
    "path": "Folder that the bag goes to",
    "prefixes": "Topics that begin so are recorded; / is all",
    "exclude": "Topics that are left out",
    "if_exists": "error: do not start when the folder is there; number: take folder-1, folder-2, ...",
    "max_file_mb": "MiB after which the next file is begun, 0: one file",
    "max_file_s": "Seconds after which the next file is begun, 0: no limit",
    "min_free_mb": "Writing stops when less than this many MiB are free on the disk",
    "on_full": "On a full disk: wait for room and go on, or end with exit code 1",
    "queue_mb": "MiB of messages that wait for the disk at most; what is more is dropped and counted",
    "flush_s": "Most seconds that a message waits in memory to be written",
    "sync_s": "Seconds between forced writes to the medium (power cut), 0: only closed files",
}


def read_settings(node: Any) -> RecorderSettings:
    """Declare the parameters on `node` and check them. ConfigError."""
    values: dict[str, Any] = {}
    for field in fields(RecorderSettings):
        default = list(field.default) or [""] if isinstance(field.default, tuple) else field.default
        # Dynamic typing: a whole number serves where a float is meant.
        about = ParameterDescriptor(description=DESCRIPTIONS[field.name], read_only=True, dynamic_typing=True)
        values[field.name] = _as_field(
            field.name, field.default, node.declare_parameter(field.name, default, about).value
        )
    return RecorderSettings(**values)


def folder(settings: RecorderSettings) -> Path:
    """Where the bag goes. ConfigError if it is there and another may not be taken."""
    path = Path(settings.path)
    if settings.if_exists == "error" or not path.exists():
        return path
    for number in range(1, MOST_NUMBERED):
        other = path.with_name(f"{path.name}-{number}")
        if not other.exists():
            return other
    raise ConfigError(f"{path} and {MOST_NUMBERED - 1} numbered ones exist already")


def _as_field(name: str, default: Any, value: Any) -> Any:
    if isinstance(default, tuple):
        if isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
            return tuple(part for part in value if part)
        raise ConfigError(f"recorder: {name}: expected a list of names, got {value!r}")
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise ConfigError(f"recorder: {name}: expected {type(default).__name__}, got {value!r}")
    return value
