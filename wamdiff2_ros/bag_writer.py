"""Writing bags without rosbag2: MCAP files with the metadata that rosbag2 wants. No rclpy here."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal

from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from wamdiff2_core.errors import ConfigError

BAG_VERSION: Literal[9] = 9


def message_folder() -> Path:
    """Where our .msg files are: beside an installed package (share/wamdiff2/msg), else in the source tree.

    ConfigError if they are in neither place.
    """
    source = Path(__file__).resolve().parent.parent / "msg"
    if (source / "Trajectory.msg").is_file():
        return source
    with resources.as_file(resources.files("wamdiff2_ros")) as here:
        for parent in Path(here).parents:
            shared = parent / "share" / "wamdiff2" / "msg"
            if (shared / "Trajectory.msg").is_file():
                return shared
    raise ConfigError("the message definitions (msg/*.msg) were not found beside wamdiff2_ros")


def typestore() -> Typestore:
    """The types of ROS 2 plus our own."""
    store = get_typestore(Stores.ROS2_KILTED)
    types = {}
    for path in sorted(message_folder().glob("*.msg")):
        types.update(get_types_from_msg(path.read_text(encoding="utf-8"), f"wamdiff2/msg/{path.stem}"))
    store.register(types)
    return store


class BagWriter:
    """One bag folder; topics are added as they turn up. Close it, or its metadata is missing."""

    def __init__(self, path: Path) -> None:
        """Makes the folder. ConfigError if there is something already, or if it cannot be made."""
        if path.exists():
            raise ConfigError(f"{path} exists already; a bag is not written over")
        self.path = path
        self.count = 0
        self._store = typestore()
        self._connections: dict[str, object] = {}
        self._writer = Writer(path, version=BAG_VERSION, storage_plugin=StoragePlugin.MCAP)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer.open()
        except OSError as error:
            raise ConfigError(f"{path}: a bag cannot be made there: {error}") from error

    def add_topic(self, topic: str, type_name: str) -> None:
        """`type_name` like sensor_msgs/msg/Image. ConfigError if its definition is not known."""
        if type_name not in self._store.fielddefs:
            raise ConfigError(f"no definition of {type_name} is known")
        self._connections[topic] = self._writer.add_connection(topic, type_name, typestore=self._store)

    def write(self, topic: str, stamp_ns: int, data: bytes) -> None:
        """`data` is CDR as it came over the wire."""
        self._writer.write(self._connections[topic], stamp_ns, data)  # type: ignore[arg-type]
        self.count += 1

    def close(self) -> None:
        """Write index and metadata; a second call does nothing."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None  # type: ignore[assignment]
