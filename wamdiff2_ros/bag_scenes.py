"""Scenes out of a bag: the pictures, motion and instruction that a driver had at a moment, for planning once more."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import PLAN_POINTS, PLAN_STEP_S, EgoState, Scene
from wamdiff2_ros.bag_clock import Clock, Timeline
from wamdiff2_ros.bag_messages import Bag
from wamdiff2_ros.bag_topics import INPUTS, Parts
from wamdiff2_ros.images import message_to_rgb
from wamdiff2_ros.odometry import KEEP_S, OdometryHistory, OdometrySample
from wamdiff2_ros.parameters import MAX_INSTRUCTION, MAX_QUESTION
from wamdiff2_ros.texts import plain_text

ODOMETRY_MAX_AGE_S = 0.5
DRIVEN_GAP_S = 0.5  # a longer hole in odometry is not bridged: where the car was inside it is not known
INSTRUCTION = "follow the road"
LONGEST = {"instruction": MAX_INSTRUCTION, "question": MAX_QUESTION}
_NONE = Timeline(np.zeros(0, int), np.zeros(0, np.int64))


@dataclass(frozen=True)
class Moment:
    """Pictures that belong together: message number of each camera, and `ns`, the time of the newest of them."""

    ns: int
    rows: dict[str, int]
    spread_ns: int  # between the oldest and the newest picture

    @property
    def last_row(self) -> int:
        """The message with which the moment was complete."""
        return max(self.rows.values())


class Footage:
    """The inputs of a bag. `skipped` counts, in words, the moments that gave no scene; `notes` what was assumed."""

    def __init__(
        self, bag: Bag, parts: Parts, cameras: Sequence[str], tolerance_s: float = 0.05, optional: Sequence[str] = ()
    ) -> None:
        """`optional`: of the cameras, those that a scene may lack."""
        self.bag, self.parts, self.cameras, self._optional = bag, parts, tuple(cameras), frozenset(optional)
        self._tolerance_ns = round(tolerance_s * 1e9)
        inputs = [parts.topics[part] for part in (*cameras, *INPUTS) if part in parts.topics]
        self.clock = Clock(bag, inputs)
        self.skipped: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self.undecodable: Counter[str] = Counter()  # pictures by camera
        self.lines = {part: self._line(part) for part in (*cameras, "odometry")}
        self.odometry = self._odometry()
        self._followed: dict[int, str] = {}
        self._texts = {part: self._heard(part) for part in ("instruction", "question")}
        self.notes = self._notes()

    def moments(self, stamps: Iterable[int] | None = None, period_s: float = 0.5) -> list[Moment]:
        """Moments with a picture of every camera that is needed, in order of time.

        At these `stamps` (ns), or one each `period_s` seconds.
        """
        lines = [self.lines[camera] for camera in self.cameras if camera not in self._optional]
        if any(not len(line.ns) for line in lines):
            return []
        if stamps is not None:
            return [moment for ns in sorted(stamps) if (moment := self._moment(ns)) is not None]
        found: list[Moment] = []
        for ns in lines[0].ns:
            if found and ns < found[-1].ns + period_s * 1e9:
                continue
            moment = self._moment(int(ns) + self._tolerance_ns // 2)  # the others may come a little later
            if moment is not None and (not found or moment.ns > found[-1].ns):
                found.append(moment)
        return found

    def scene(self, moment: Moment) -> Scene | None:
        """What the driver saw; None, counted in `skipped`, if a picture cannot be decoded.

        Without fresh odometry the motion is all zero: see `motion_known`.
        """
        images = {}
        for camera in moment.rows:
            message = self.bag.message(moment.rows[camera])
            try:
                if message is None:
                    raise DataError("the message cannot be decoded")
                images[camera] = message_to_rgb(message)
            except DataError as error:
                self.undecodable[camera] += 1
                self.skipped[f"a picture of {camera} cannot be decoded"] += 1
                note = f"{self.parts.topics[camera]}: {error}"
                if note not in self.notes:
                    self.notes.append(note)
                return None
        instruction = self._followed.get(moment.ns) or self._text("instruction", moment.last_row) or INSTRUCTION
        ego = self._ego(moment) or EgoState()
        return Scene(images, instruction, ego, self.question(moment), moment.ns * 1e-9)

    def follow(self, said: Mapping[int, str], moments: Iterable[Moment]) -> None:
        """Plans say which instruction they followed (by time, ns): that one holds, whatever was recorded before them.

        A text and a picture that come at one moment may be recorded in another order than the driver heard them in.
        """
        self._followed = {ns: text for ns, text in said.items() if text}
        other = 0
        for moment in moments:
            heard = self._text("instruction", moment.last_row)
            other += heard is not None and self._followed.get(moment.ns, heard) != heard
        if other:
            self.notes.append(
                f"{self.parts.get('instruction')}: {other} plans followed another text than the one recorded before "
                f"their pictures; the one that they say is taken"
            )

    def question(self, moment: Moment) -> str | None:
        """The question that was open at the moment."""
        return self._text("question", moment.last_row)

    def motion_known(self, moment: Moment) -> bool:
        """Whether there is odometry for a plan."""
        return self._ego(moment) is not None

    def driven(self, ns: int) -> np.ndarray | None:
        """Where the car was 0.5 s to 4 s after `ns` (8, 2), in base_link as it stood then; None where not known."""
        wanted = ns + np.round(np.arange(PLAN_POINTS + 1) * PLAN_STEP_S * 1e9).astype(np.int64)
        times, poses = self.odometry
        after = np.searchsorted(times, wanted)
        exact = (after < len(times)) & (times[np.minimum(after, len(times) - 1)] == wanted) if len(times) else None
        if exact is None or ((after == 0) & ~exact).any() or (after >= len(times)).any():
            return None
        before = np.where(exact, after, after - 1)
        if (times[after] - times[before] > DRIVEN_GAP_S * 1e9).any():
            return None
        span = np.maximum(times[after] - times[before], 1)
        share = ((wanted - times[before]) / span)[:, None]
        at = poses[before, :2] + share * (poses[after, :2] - poses[before, :2])
        yaw = poses[before[0], 2] + share[0, 0] * math.remainder(poses[after[0], 2] - poses[before[0], 2], math.tau)
        ahead = at[1:] - at[0]
        c, s = math.cos(yaw), math.sin(yaw)
        return np.column_stack([ahead @ [c, s], ahead @ [-s, c]])

    def span_ns(self) -> tuple[int, int]:
        """First and last time of any picture or odometry; (0, 0) if there is none."""
        lines = [line.ns for line in self.lines.values() if len(line.ns)]
        return (min(int(ns[0]) for ns in lines), max(int(ns[-1]) for ns in lines)) if lines else (0, 0)

    def _line(self, part: str) -> Timeline:
        topic = self.parts.get(part)
        return self.clock.timeline(topic) if topic is not None else _NONE

    def _moment(self, ns: int) -> Moment | None:
        """The newest picture of each camera up to `ns`, not older than the tolerance."""
        rows, times = {}, []
        for camera in self.cameras:
            line = self.lines[camera]
            k = int(np.searchsorted(line.ns, ns, "right")) - 1
            if k < 0 or ns - line.ns[k] > self._tolerance_ns:
                if camera in self._optional:
                    continue
                self.skipped[f"no picture of {camera} at the time of the others"] += 1
                return None
            rows[camera] = int(line.rows[k])
            times.append(int(line.ns[k]))
        return Moment(max(times), rows, max(times) - min(times))

    def _odometry(self) -> tuple[np.ndarray, np.ndarray]:
        """Times (N,) in ns and poses with motion (N, 6): x, y, yaw, vx, vy, yaw rate; only finite ones."""
        line = self.lines["odometry"]
        times, values, rows = [], [], []
        for row, ns in zip(line.rows, line.ns):
            message = self.bag.message(row)
            value = None if message is None else odometry_values(message)
            if value is not None:
                times.append(ns)
                values.append(value)
                rows.append(row)
        self._odometry_rows = np.array(rows, int)
        return np.array(times, np.int64), np.array(values, float).reshape(-1, 6)

    def _ego(self, moment: Moment) -> EgoState | None:
        """Motion at the moment; None without fresh odometry.

        From what had been recorded by then, and what was measured by then: messages of one time come in any order.
        """
        times, values = self.odometry
        first, last = np.searchsorted(times, [moment.ns - KEEP_S * 1e9, moment.ns + ODOMETRY_MAX_AGE_S * 1e9])
        near = [k for k in range(first, last) if times[k] <= moment.ns or self._odometry_rows[k] <= moment.last_row]
        if not near or abs(times[near[-1]] - moment.ns) > ODOMETRY_MAX_AGE_S * 1e9:
            return None
        history = OdometryHistory()
        for k in near:
            x, y, yaw, vx, vy, rate = (float(v) for v in values[k])
            history.add(OdometrySample(times[k] * 1e-9, x, y, yaw, (vx, vy), rate))
        return history.ego_state(moment.ns * 1e-9)

    def _heard(self, part: str) -> tuple[np.ndarray, list[str]]:
        topic = self.parts.get(part)
        rows = self.bag.rows([topic]) if topic is not None else np.zeros(0, int)
        heard = [(row, message.data) for row in rows if (message := self.bag.message(row)) is not None]
        taken = [(row, text) for row, words in heard if (text := self._plain(part, words)) is not None]
        return np.array([row for row, _ in taken], int), [text for _, text in taken]

    def _plain(self, part: str, words: str) -> str | None:
        """The text as the node takes it; None, and noted, if it is too long to be taken."""
        try:
            return plain_text(words, LONGEST[part])[0]
        except DataError as error:
            self._refused[f"{self.parts.get(part)}: a text is not taken, as it was not then: {error}"] += 1
            return None

    def _text(self, part: str, row: int) -> str | None:
        """The last text before message number `row`; None if there is none, or an empty one."""
        rows, texts = self._texts[part]
        k = int(np.searchsorted(rows, row, "right")) - 1
        return texts[k] or None if k >= 0 else None

    def _notes(self) -> list[str]:
        told = [*self.parts.guessed, *self._refused]
        for part, line in self.lines.items():
            topic = self.parts.get(part)
            if line.zero:
                told.append(f"{topic}: {line.zero} of {len(line.ns)} stamps are zero: the time of recording is used")
            if line.same:
                told.append(f"{topic}: {line.same} messages have the time of the one before")
            if line.back:
                told.append(f"{topic}: stamps go back {line.back} times")
            if topic is not None and not len(line.ns):
                told.append(f"{topic}: the bag holds no message of it")
        if len(self.clock.jumps):
            told.append(f"time goes back {len(self.clock.jumps)} times: what follows is taken as another drive")
        lost = len(self.lines["odometry"].ns) - len(self.odometry[0])
        if lost:
            told.append(f"{self.parts.get('odometry')}: {lost} messages are not finite or cannot be decoded")
        return told


def odometry_values(message: Any) -> tuple[float, ...] | None:
    """x, y, yaw, vx, vy, yaw rate of a nav_msgs/Odometry as rosbags reads it; None if they are not all finite."""
    pose, twist = message.pose.pose, message.twist.twist
    q = pose.orientation
    yaw = math.atan2(2.0 * (q.w * q.z + q.x * q.y), 1.0 - 2.0 * (q.y * q.y + q.z * q.z))
    numbers = (pose.position.x, pose.position.y, yaw, twist.linear.x, twist.linear.y, twist.angular.z)
    return tuple(float(v) for v in numbers) if all(math.isfinite(v) for v in numbers) else None
