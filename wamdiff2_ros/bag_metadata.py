"""What rosbag2 wants to know about a bag beside its messages: metadata.yaml, and the same inside each MCAP file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from rosbags.interfaces import Qos
from rosbags.rosbag2.metadata import dump_qos_v9
from ruamel.yaml import YAML

BAG_VERSION = 9
NEVER_NS = 2**63 - 1  # rosbag2's starting time of a bag without messages
METADATA_NAME = "metadata.yaml"


@dataclass(frozen=True)
class Topic:
    """A topic as it goes into the bag. `definition`: text; `encoding` ros2msg or ros2idl, empty: not known.

    The offered profiles stay those of the first moment: readers compare them between metadata and files.
    """

    name: str
    type_name: str
    definition: str = ""
    encoding: str = "ros2msg"
    type_hash: str = ""
    qos: tuple[Qos, ...] = ()

    def channel_metadata(self) -> dict[str, str]:
        """What the channel of an MCAP file says beside its name and type."""
        profiles = dump_qos_v9(list(self.qos))
        said = {"offered_qos_profiles": yaml_text(profiles) if profiles else ""}
        return said | ({"topic_type_hash": self.type_hash} if self.type_hash else {})


@dataclass
class FileFacts:
    """One MCAP file: times in nanoseconds since 1970, messages by topic."""

    path: str
    start_ns: int = NEVER_NS
    end_ns: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def take(self, topic: str, log_ns: int) -> None:
        self.start_ns, self.end_ns = min(self.start_ns, log_ns), max(self.end_ns, log_ns)
        self.counts[topic] += 1


def describe(
    topics: Sequence[Topic], files: Sequence[FileFacts], custom: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The content of rosbag2_bagfile_information."""
    counts: Counter[str] = Counter()
    for file in files:
        counts.update(file.counts)
    return {
        "version": BAG_VERSION,
        "storage_identifier": "mcap",
        **_span(files),
        "topics_with_message_count": [
            {
                "topic_metadata": {
                    "name": topic.name,
                    "type": topic.type_name,
                    "serialization_format": "cdr",
                    "offered_qos_profiles": dump_qos_v9(list(topic.qos)),
                    "type_description_hash": topic.type_hash,
                },
                "message_count": counts[topic.name],
            }
            for topic in topics
        ],
        "compression_format": "",
        "compression_mode": "",
        "relative_file_paths": [file.path for file in files],
        "files": [{"path": file.path, **_span([file])} for file in files],
        "custom_data": dict(custom) if custom else None,
        "ros_distro": os.environ.get("ROS_DISTRO") or "unknown",
    }


def yaml_text(value: Any) -> str:
    """`value` as YAML, as rosbag2 reads it."""
    yaml, out = YAML(typ="safe"), StringIO()
    yaml.default_flow_style = False
    yaml.dump(value, out)
    return out.getvalue().strip()


def write_metadata(folder: Path, information: Mapping[str, Any], sync: bool = True) -> None:
    """Writes metadata.yaml so that it is there as a whole or not at all, also after a power cut (`sync`). OSError."""
    target = folder / METADATA_NAME
    new = target.with_suffix(".yaml.tmp")
    try:
        with new.open("w", encoding="utf-8") as file:
            file.write(yaml_text({"rosbag2_bagfile_information": dict(information)}) + "\n")
            file.flush()
            if sync:
                os.fsync(file.fileno())
        new.replace(target)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the folder's list of names last through a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _span(files: Sequence[FileFacts]) -> dict[str, Any]:
    start = min((file.start_ns for file in files), default=NEVER_NS)
    end = max((file.end_ns for file in files), default=0)
    return {
        "starting_time": {"nanoseconds_since_epoch": start},
        "duration": {"nanoseconds": max(0, end - start)},
        "message_count": sum(sum(file.counts.values()) for file in files),
    }
