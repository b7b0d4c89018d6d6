"""Which topic of a bag plays which part: named by the user, by our own names, or guessed where only one can be it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from wamdiff2_core.errors import ConfigError

PICTURES = ("sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/Image")
INPUTS = {
    "odometry": "nav_msgs/msg/Odometry",
    "instruction": "std_msgs/msg/String",
    "question": "std_msgs/msg/String",
}
OUTPUTS = {
    "trajectory": "wamdiff2/msg/Trajectory",
    "stats": "wamdiff2/msg/Stats",
    "boxes": "wamdiff2/msg/Boxes",
    "answer": "wamdiff2/msg/Answer",
}
WORLD = {
    "true_boxes": ("/ground_truth/boxes", "wamdiff2/msg/Boxes"),
    "status": ("/status", "wamdiff2/msg/DriveStatus"),
    "route": ("/route", "nav_msgs/msg/Path"),
}
GUESSED = {"odometry": "nav_msgs/msg/Odometry", "trajectory": OUTPUTS["trajectory"], "stats": OUTPUTS["stats"]}
GUESSED["answer"] = OUTPUTS["answer"]  # of the other types a bag may well hold several


@dataclass
class Parts:
    """Topic of each part that is there. `missing`: why a part is not, in words. `guessed`: what was guessed."""

    topics: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    guessed: list[str] = field(default_factory=list)

    def get(self, part: str) -> str | None:
        return self.topics.get(part)

    def of(self, topic: str) -> str:
        """The part that a topic plays."""
        return next(part for part, name in self.topics.items() if name == topic)


def find_parts(
    types: Mapping[str, str], cameras: Sequence[str], prefix: str = "/world", given: Mapping[str, str] | None = None
) -> Parts:
    """Parts of a bag with topics of these `types`. `given`: topic by part; ConfigError if one cannot be."""
    parts = Parts()
    _given(parts, types, cameras, given or {})
    for camera in cameras:
        names = [f"{prefix}/{camera}/image{end}" for end in ("/compressed", "")]
        _by_name(parts, types, camera, names, PICTURES)
    for part, kind in INPUTS.items():
        _by_name(parts, types, part, [f"{prefix}/{part}"], (kind,))
    for part, kind in OUTPUTS.items():
        _by_name(parts, types, part, [f"/wamdiff2/output/{part}"], (kind,))
    for part, (end, kind) in WORLD.items():
        _by_name(parts, types, part, [f"{prefix}{end}"], (kind,))
    _guess_cameras(parts, types, cameras)
    for part, kind in GUESSED.items():
        if part not in parts.topics:
            _guess(parts, part, [name for name in types if types[name] == kind and name not in parts.topics.values()])
    for part in (*cameras, *INPUTS, *OUTPUTS, *WORLD):
        if part not in parts.topics:
            parts.missing.setdefault(part, "the bag holds no such topic")
    return parts


def _given(parts: Parts, types: Mapping[str, str], cameras: Sequence[str], given: Mapping[str, str]) -> None:
    wanted = {**dict.fromkeys(cameras, PICTURES), **{part: (kind,) for part, kind in {**INPUTS, **OUTPUTS}.items()}}
    wanted |= {part: (kind,) for part, (_, kind) in WORLD.items()}
    for part, topic in given.items():
        if part not in wanted:
            raise ConfigError(f"--topic {part}={topic}: expected one of {', '.join(wanted)}")
        if topic not in types:
            raise ConfigError(f"--topic {part}={topic}: the bag holds {', '.join(sorted(types)) or 'no topic'}")
        if types[topic] not in wanted[part]:
            raise ConfigError(f"--topic {part}={topic}: expected {' or '.join(wanted[part])}, it is {types[topic]}")
        parts.topics[part] = topic


def _by_name(parts: Parts, types: Mapping[str, str], part: str, names: Sequence[str], kinds: Collection[str]) -> None:
    if part in parts.topics:
        return
    for name in names:
        if types.get(name) in kinds:
            parts.topics[part] = name
            return
        if name in types:
            parts.missing[part] = f"{name} is {types[name] or 'of no known type'}, expected {' or '.join(kinds)}"


def _guess_cameras(parts: Parts, types: Mapping[str, str], cameras: Sequence[str]) -> None:
    """By a name that stands in the topic; else the only pictures there are for the only camera that is left."""
    free = _streams({name: kind for name, kind in types.items() if kind in PICTURES}, set(parts.topics.values()))
    for camera in [camera for camera in cameras if camera not in parts.topics]:
        _guess(parts, camera, [topic for base, topic in free.items() if camera in base.split("/")])
        free = {base: topic for base, topic in free.items() if topic not in parts.topics.values()}
    left = [camera for camera in cameras if camera not in parts.topics]
    if len(left) == 1:
        _guess(parts, left[0], list(free.values()))
    elif free:
        for camera in left:
            parts.missing[camera] = f"no telling which of {', '.join(sorted(free.values()))} it is: use --topic"


def _streams(types: Mapping[str, str], taken: Collection[str]) -> dict[str, str]:
    """Topic by name without its transport: the raw and the compressed pictures of a camera are one stream."""
    streams: dict[str, str] = {}
    for topic in sorted(types):
        base = topic.removesuffix("/compressed")
        if not {base, f"{base}/compressed"} & set(taken) and (base not in streams or types[topic] == PICTURES[0]):
            streams[base] = topic
    return streams


def _guess(parts: Parts, part: str, candidates: Sequence[str]) -> None:
    if len(candidates) == 1:
        parts.topics[part] = candidates[0]
        parts.missing.pop(part, None)
        parts.guessed.append(f"{part} is taken to be {candidates[0]}, the only topic that it can be")
    elif candidates:
        parts.missing[part] = f"no telling which of {', '.join(sorted(candidates))} it is: use --topic"
