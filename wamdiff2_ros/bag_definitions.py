"""Message definitions for bags: ROS 2's, our own, and those of any package that is installed. No rclpy here."""

from __future__ import annotations

import os
import sys
from importlib import resources
from pathlib import Path

from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from wamdiff2_core.errors import ConfigError


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


def add_installed(store: Typestore, type_name: str) -> None:
    """Put an installed type and what it consists of into the store. ConfigError if its .msg file is not found."""
    if type_name in store.fielddefs:
        return
    found = get_types_from_msg(_installed_text(type_name), type_name)
    for _, fields in found.values():  # constants and fields
        for part in _parts(fields):
            add_installed(store, part)
    store.register(found)


def definition(store: Typestore, type_name: str, type_hash: str = "") -> tuple[str, str]:
    """Text and RIHS01 hash of a type: of `store`, or where the sender's `type_hash` differs, of what is installed.

    The hash is the text's: it differs from `type_hash` where no fitting definition is here. ConfigError: none at all.
    """
    add_installed(store, type_name)
    own = store.hash_rihs01(type_name)
    if type_hash in ("", own):
        return store.generate_msgdef(type_name, ros_version=2)[0], own
    installed = get_typestore(Stores.EMPTY)
    try:
        add_installed(installed, type_name)
    except ConfigError:
        return store.generate_msgdef(type_name, ros_version=2)[0], own
    other = installed.hash_rihs01(type_name)
    fitting = installed if other == type_hash else store
    return fitting.generate_msgdef(type_name, ros_version=2)[0], other if fitting is installed else own


def known_definition(type_name: str) -> str:
    """The text of a definition that is known here, for bags that hold none; empty if none is."""
    store = typestore()
    try:
        add_installed(store, type_name)
    except (ConfigError, ValueError):  # ValueError: no name of the form package/msg/Name
        return ""
    return store.generate_msgdef(type_name, ros_version=2)[0]


def _parts(fields: object) -> set[str]:
    """Names of the message types that a definition's fields have, also inside arrays and sequences."""
    named: set[str] = set()
    if isinstance(fields, (tuple, list)):
        for part in fields:
            named |= _parts(part)
    elif isinstance(fields, str) and fields.count("/") == 2 and "/msg/" in fields and " " not in fields:
        named.add(fields)
    return named


def _installed_text(type_name: str) -> str:
    package, kind, name = type_name.split("/")
    prefixes = [*os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep), sys.prefix]
    for prefix in filter(None, prefixes):
        path = Path(prefix) / "share" / package / kind / f"{name}.msg"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise ConfigError(f"no definition of {type_name} is known")
