"""A group of frames is opened: too old ones refused, pictures decoded, broken ones held, dropped or named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.parallel import help_with
from wamdiff2_ros.ahead import Ahead
from wamdiff2_ros.frame_groups import Frame, FrameGroup, GroupRules
from wamdiff2_ros.images import message_to_rgb
from wamdiff2_ros.input_log import InputLog


@dataclass(frozen=True)
class Opened:
    """Pictures (H, W, 3) uint8 RGB by camera, in order. errors by topic: nothing may be concluded from the group.

    degraded by topic: cameras whose picture is an earlier one, or that are left out, and why.
    """

    images: Mapping[str, np.ndarray]
    errors: Mapping[str, str]
    degraded: Mapping[str, str]


class Opener:
    """Remembers each camera's last good picture, for the mode that holds it."""

    def __init__(self, topics: Mapping[str, str], ahead: Ahead) -> None:
        """`topics`: full topic name of each camera. `ahead` decodes pictures, several at a time."""
        self._topics = topics
        self._ahead = ahead
        self._good: dict[str, tuple[Frame, np.ndarray]] = {}
        self._epoch = 0

    def open(self, group: FrameGroup, rules: GroupRules, log: InputLog, max_age_s: float, now_s: float) -> Opened:
        """Everything about the group that can be known before a model sees it. `now_s` is on the steady clock."""
        if group.epoch != self._epoch:  # all was forgotten: time went back, or a sender was started anew
            self._good, self._epoch = {}, group.epoch
        degraded = {self._topics[name]: why for name, why in {**group.held, **group.dropped}.items()}
        errors = self._stale(group, max_age_s, now_s)
        images: dict[str, np.ndarray] = {}
        usable = {} if errors else group.frames
        begun = {name: self._ahead.picture(name, frame.message) for name, frame in usable.items()}
        own = [partial(message_to_rgb, frame.message) for frame in usable.values()]
        for name, picture in zip(begun, help_with(begun.values(), own, (DataError,)), strict=True):
            topic = self._topics[name]
            try:
                images[name] = picture.result()
                self._compare(name, images[name], log)
                self._good[name] = (group.frames[name], images[name])
            except DataError as error:
                log.refused(topic, "broken pictures", str(error), found_later=True)
                if not self._without(name, group, rules, images):
                    errors[topic] = str(error)
                else:
                    degraded[topic] = f"{error}; {'the picture before is used' if name in images else 'left out'}"
        return Opened({} if errors else images, errors, degraded)

    def _compare(self, name: str, picture: np.ndarray, log: InputLog) -> None:
        """Warn of a picture of another size than the camera's last one; it is used, as cameras may be set anew."""
        last = self._good.get(name)
        if last is not None and last[1].shape != picture.shape:
            (height, width), (before_h, before_w) = picture.shape[:2], last[1].shape[:2]
            text = f"pictures are of {width}x{height} pixels now, {before_w}x{before_h} before"
            log.warned(self._topics[name], "changes of size", text)

    def _without(self, name: str, group: FrameGroup, rules: GroupRules, images: dict[str, np.ndarray]) -> bool:
        """Do without a broken picture, as the rules allow; True if that is possible."""
        if rules.missing == "drop":
            return name in rules.optional
        if rules.missing == "stop" or name not in self._good:
            return False
        frame, picture = self._good[name]
        if group.stamp_s - frame.stamp_s > rules.hold_s:
            return False
        images[name] = picture
        return True

    def _stale(self, group: FrameGroup, max_age_s: float, now_s: float) -> dict[str, str]:
        return {
            self._topics[name]: f"frame is {frame.age_s(now_s):.2f} s old, at most {max_age_s:.2f} s"
            for name, frame in group.frames.items()
            if frame.age_s(now_s) > max_age_s
        }
