"""Writes a bag in a thread of its own, fed through a bounded queue. Nothing is lost without being counted by topic."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from wamdiff2_ros.bag_writer import BagWriter, NoRoom

RETRY_S = 1.0
DROPPED = "wamdiff2_dropped"  # in the metadata: how many messages by topic and reason
RECORDING, FULL, FAILED = "recording", "full", "failed"
_REASONS = {RECORDING: "queue full", FULL: "disk full", FAILED: "recorder stopped"}


class Arrival(NamedTuple):
    """A message as it came, in the order of BagWriter.write. `sequence`: how many came on its topic, from 1."""

    topic: str
    log_ns: int
    data: bytes
    publish_ns: int
    sequence: int
    publisher: bytes


@dataclass
class State:
    """A snapshot. `dropped`: by (reason, topic); `lost`: what was taken in but could not be written at the end."""

    name: str = RECORDING
    reason: str = ""
    arrived: int = 0
    written: int = 0
    queued: int = 0
    queued_bytes: int = 0
    most_queued_bytes: int = 0
    times_full: int = 0
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)


class BagThread:
    """`put` from one thread, the bag is touched by another. `queue_bytes`: of message data waiting at most."""

    def __init__(self, bag: BagWriter, queue_bytes: int, end_when_full: bool = False) -> None:
        self._bag = bag
        self._queue_bytes = queue_bytes
        self._end_when_full = end_when_full
        self._changed = threading.Condition()
        self._queue: deque[Arrival | Callable[[], None]] = deque()
        self._state = State()
        self._sequences: Counter[str] = Counter()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="bag", daemon=True)
        self._thread.start()

    def put(self, topic: str, log_ns: int, data: bytes, publish_ns: int = 0, publisher: bytes = b"") -> None:
        """Hand over a message; when there is no room it is dropped and counted. Its topic was added before."""
        with self._changed:
            state = self._state
            state.arrived += 1
            self._sequences[topic] += 1  # also of the dropped, so that the bag shows the gap
            if state.name == FAILED or state.queued_bytes + len(data) > self._queue_bytes:
                state.dropped[_REASONS[state.name], topic] += 1
                return
            self._queue.append(Arrival(topic, log_ns, data, publish_ns, self._sequences[topic], publisher))
            state.queued += 1
            state.queued_bytes += len(data)
            state.most_queued_bytes = max(state.most_queued_bytes, state.queued_bytes)
            self._changed.notify()

    def do(self, call: Callable[[], None]) -> None:
        """Run `call` in the bag's thread, in turn with the messages: to add a topic."""
        with self._changed:
            self._queue.append(call)
            self._changed.notify()

    def count_lost(self, topic: str, messages: int) -> None:
        """Messages that the middleware says it has lost on the way here."""
        with self._changed:
            self._state.dropped["lost by the middleware", topic] += messages

    def state(self) -> State:
        with self._changed:
            return State(**(vars(self._state) | {"dropped": Counter(self._state.dropped)}))

    def stop(self) -> State:
        """Write what is waiting, finish the bag and return how it ended. A second call only returns that."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()
        return self.state()

    def _run(self) -> None:
        while self._state.name != FAILED:
            with self._changed:
                if not self._queue and not self._stopping:
                    self._changed.wait(self._bag.due_s())
                taken, self._queue = self._queue, deque()
                stopping = self._stopping
            self._write(taken)
            if stopping and not self._queue:
                break
        self._finish()

    def _write(self, taken: deque[Arrival | Callable[[], None]]) -> None:
        """Write these in order; waits here while the disk is full."""
        while taken and self._state.name != FAILED:
            item = taken.popleft()
            if not isinstance(item, Arrival):
                self._safely(item)
                continue
            self._safely(partial(self._bag.write, *item))
            with self._changed:
                self._state.queued -= 1
                self._state.queued_bytes -= len(item.data)
        if self._state.name != FAILED and self._bag.due_s() == 0.0:
            self._safely(self._bag.flush)
        self._drop([item for item in taken if isinstance(item, Arrival)])

    def _safely(self, call: Callable[[], None]) -> None:
        """Call; on a full disk pause and try again until it has room, or end; on other errors end."""
        try:
            try:
                call()
            except NoRoom as error:
                self._full(str(error))
        except OSError as error:
            self._set(FAILED, f"cannot write: {error}")
        self._publish_count()

    def _full(self, reason: str) -> None:
        while True:
            self._set(FULL, reason)
            with suppress(NoRoom):  # the metadata may have to wait as well
                self._bag.pause()
            if self._end_when_full or self._wait_or_stop():
                self._set(FAILED, f"stopped: {reason}")
                return
            try:
                self._bag.flush()
            except NoRoom as error:
                reason = str(error)
            else:
                self._set(RECORDING, "")
                return

    def _wait_or_stop(self) -> bool:
        """True when the recorder is to end, False after the pause between two tries."""
        until_s = time.monotonic() + RETRY_S
        with self._changed:
            while not self._stopping and (left_s := until_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            return self._stopping

    def _finish(self) -> None:
        dropped = self.state().dropped
        if dropped:
            told = {f"{topic} ({reason})": count for (reason, topic), count in sorted(dropped.items())}
            self._bag.custom[DROPPED] = json.dumps(told)
        try:
            self._bag.close()
        except (NoRoom, OSError) as error:
            why = self._state.reason or f"the bag could not be closed well: {error}"
            self._set(FAILED, why)
        with self._changed:
            waiting, self._queue = self._queue, deque()
        self._drop([item for item in waiting if isinstance(item, Arrival)])
        self._publish_count()
        with self._changed:
            for topic, lost in self._bag.drop_pending().items():
                self._state.dropped["not written at the end", topic] += lost

    def _drop(self, items: list[Arrival]) -> None:
        with self._changed:
            for item in items:
                self._state.dropped["not written at the end", item.topic] += 1
                self._state.queued -= 1
                self._state.queued_bytes -= len(item.data)

    def _set(self, name: str, reason: str) -> None:
        with self._changed:
            self._state.times_full += int(name == FULL and self._state.name != FULL)
            self._state.name, self._state.reason = name, reason

    def _publish_count(self) -> None:
        with self._changed:
            self._state.written = self._bag.count
