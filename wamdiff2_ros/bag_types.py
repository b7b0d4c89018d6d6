"""Message objects out of CDR bytes by the definition that the bag itself holds, brought to today's definition.

A bag outlives the messages in it. A field that was added since is None (or empty) in an old message, never a guess;
a field that was removed since is ignored. Both are told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rosbags.serde import SerdeError
from rosbags.typesys import Stores, TypesysError, get_types_from_idl, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from wamdiff2_core.errors import DataError
from wamdiff2_ros.bag_storage import StoredTopic
from wamdiff2_ros.bag_writer import typestore

LONGEST = 120  # characters of an error that are told
SCALAR, NAME = 1, 2  # rosbags.interfaces.Nodetype; 3 and 4 are arrays and sequences
_SEPARATOR = "=" * 80 + "\n"
_DAMAGED = (SerdeError, AssertionError, IndexError, KeyError, TypeError, ValueError, MemoryError)


@dataclass
class Decoder:
    """Reads messages of one type by one definition. `missing`: fields of today that were not recorded."""

    type_name: str
    _store: Typestore
    _today: Typestore | None = None  # where the definition has changed
    missing: list[str] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)

    def decode(self, raw: bytes) -> Any:
        """DataError if the bytes are not such a message."""
        try:
            message = self._store.deserialize_cdr(raw, self.type_name)
        except _DAMAGED as error:
            if self._today is not None and (message := self._by_todays(raw)) is not None:
                return message
            raise DataError(f"not a {self.type_name}: {type(error).__name__} {error}"[:LONGEST]) from error
        if self._today is None:
            return message
        return _brought_over(message, self.type_name, self._store, self._today)

    def _by_todays(self, raw: bytes) -> Any:
        """Some recorders keep a wrong definition: bytes that fit today's to the last one are a message of today's."""
        assert self._today is not None
        try:
            return self._today.deserialize_cdr(raw, self.type_name)
        except _DAMAGED:
            return None

    @property
    def changes(self) -> str:
        """What differs from today's definition, in words; empty if nothing does."""
        told = [f"it was recorded without {', '.join(self.missing)}"] if self.missing else []
        told += [f"{', '.join(self.surplus)} of then is ignored"] if self.surplus else []
        return f"{self.type_name} has changed since: {'; '.join(told)}" if told else ""

    @property
    def begins_with_time(self) -> bool:
        """Whether the first field is a header or a time: then its stamp can be read without decoding."""
        fields = self._store.fielddefs[self.type_name][1]
        return bool(fields) and _name_of(fields[0][1]) in ("std_msgs/msg/Header", "builtin_interfaces/msg/Time")


@cache
def decoder(topic: StoredTopic) -> Decoder | str:
    """The decoder of a topic, or why there is none, in words."""
    parts = topic.type_name.split("/")
    name = f"{parts[0]}/msg/{parts[1]}" if len(parts) == 2 else topic.type_name  # as older recorders write it
    if topic.serialisation not in ("cdr", ""):
        return f"its messages are serialised as {topic.serialisation!r}, expected 'cdr'"
    return _decoder(name, topic.definition, topic.encoding)


@cache
def _decoder(type_name: str, definition: str, encoding: str) -> Decoder | str:
    today = _today()
    if not definition:
        if type_name in today.fielddefs:
            return Decoder(type_name, today)
        return f"type {type_name or 'without a name'} is not known, and the bag holds no definition of it"
    try:
        recorded = _parsed(type_name, definition, encoding)
        if type_name not in recorded:
            return f"the definition that the bag holds for {type_name} is of {', '.join(sorted(recorded)) or 'nothing'}"
        needed = _needed(type_name, recorded, today.fielddefs)
        if all(name in today.fielddefs and _same(needed[name], today.fielddefs[name]) for name in needed):
            return Decoder(type_name, today)
        store = get_typestore(Stores.EMPTY)
        store.register(needed)
    except (TypesysError, KeyError, ValueError, AssertionError) as error:
        told = " ".join(str(error).split())[:LONGEST]
        return f"the definition that the bag holds for {type_name} cannot be read: {told}"
    if type_name not in today.fielddefs:
        return Decoder(type_name, store)
    missing, surplus = _differences(needed, today.fielddefs)
    return Decoder(type_name, store, today, missing, surplus)


@cache
def _today() -> Typestore:
    return typestore()


def _parsed(type_name: str, definition: str, encoding: str) -> dict[str, Any]:
    if encoding != "ros2idl":
        return dict(get_types_from_msg(definition, type_name))
    types: dict[str, Any] = {}
    for part in definition.split(_SEPARATOR):
        text = part.partition("\n")[2] if part.startswith("IDL: ") else part
        if text.strip():
            types.update(get_types_from_idl(text))
    return types


def _needed(type_name: str, recorded: dict[str, Any], today: Any) -> dict[str, Any]:
    """The definition and those inside it: the bag's own, today's for what it does not hold. KeyError if in neither."""
    found: dict[str, Any] = {}
    waiting = [type_name]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = recorded[name] if name in recorded else today[name]
        waiting += [inner for _, form in found[name][1] if (inner := _name_of(form))]
    return found


def _same(a: Any, b: Any) -> bool:
    return [(n, _plain(f)) for n, f in a[1]] == [(n, _plain(f)) for n, f in b[1]]


def _differences(then: dict[str, Any], today: Any) -> tuple[list[str], list[str]]:
    missing, surplus = [], []
    for name in sorted(then):
        if name not in today:
            continue
        old, new = ({field_name: _plain(form) for field_name, form in d[name][1]} for d in (then, today))
        kind = name.rpartition("/")[2]
        # A field whose type has changed is another field.
        missing += [f"{kind}.{key}" for key in new if old.get(key) != new[key]]
        surplus += [f"{kind}.{key}" for key in old if new.get(key) != old[key]]
    return missing, surplus


def _plain(form: Any) -> Any:
    """A field's type without enums and bounds of strings."""
    node, detail = int(form[0]), form[1]
    if node == SCALAR:
        return detail[0]
    return detail if node == NAME else (node, _plain(detail[0]), detail[1])


def _name_of(form: Any) -> str:
    """The message type in a field's type, also inside an array; empty for basic types."""
    node, detail = int(form[0]), form[1]
    if node == NAME:
        return str(detail)
    return _name_of(detail[0]) if node > NAME else ""


def _brought_over(message: Any, type_name: str, store: Typestore, today: Typestore) -> Any:
    """The message as today's class; None where it held nothing, or something of another type."""
    if type_name not in today.fielddefs:
        return message
    then = {} if message is None else {key: _plain(form) for key, form in store.fielddefs[type_name][1]}
    values = {}
    for key, form in today.fielddefs[type_name][1]:
        node, inner = int(form[0]), _name_of(form)
        value = getattr(message, key) if then.get(key) == _plain(form) else None
        if node > NAME:
            several = value if value is not None else []
            values[key] = [_brought_over(one, inner, store, today) for one in several] if inner else several
        else:
            values[key] = _brought_over(value, inner, store, today) if inner else value
    return today.types[type_name](**values)
