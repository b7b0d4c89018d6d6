"""The driver node's subscriptions: what comes in is checked, stored and counted; nothing is computed here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from nav_msgs.msg import Odometry
from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String

from wamdiff2_core.errors import DataError
from wamdiff2_ros import conversions as cv
from wamdiff2_ros.connections import Wanted, input_connection, type_name
from wamdiff2_ros.frame_groups import Frame, GroupRules
from wamdiff2_ros.input_log import ERROR, WARN, InputLog, InputState, worst
from wamdiff2_ros.mailbox import FrameMailbox
from wamdiff2_ros.parameters import Settings
from wamdiff2_ros.qos import IMAGES_IN, ODOMETRY_IN, TEXT_IN
from wamdiff2_ros.senders import Senders
from wamdiff2_ros.texts import plain_text
from wamdiff2_ros.worker import Inputs

PROFILES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
NO_PROFILE = (
    f"raw images without a DDS profile: large ones will be lost; set {PROFILES[0]} to our config/fastdds.xml "
    f"({PROFILES[1]} up to Jazzy), as our launch files do"
)
JUMP_FORWARD_S = 1.0  # between two /clock messages: simulated time was set anew, not just run on
NO_CLOCK = "use_sim_time is set, and /clock has not come yet"


class Listener:
    """Made at configure, closed at cleanup. `topics`: full topic name by camera, and of "odometry"."""

    def __init__(
        self,
        node: Any,
        settings: Callable[[], Settings],
        optional: frozenset[str],
        new_question: Callable[[], None],
    ) -> None:
        """`optional`: cameras that may be left out. `new_question` is called when another question counts."""
        self._node, self._settings, self._optional = node, settings, optional
        self._new_question = new_question
        self.ahead: Callable[[str, Any], None] = lambda camera, message: None  # of the worker, while there is one
        self._senders = Senders()
        self._not_before_s = 0.0  # frames stamped before are from an earlier activation
        self._wanted: dict[str, Wanted] = {}
        self._subscriptions: list[Any] = []
        self.log = InputLog()
        self.inputs = Inputs(settings().default_instruction, log=self.log)
        self.mailbox = FrameMailbox(settings().cameras, self._rules())
        self._subscribe(settings())
        self.topics = {name: wanted.topic for name, wanted in self._wanted.items()}
        self._jump = node.get_clock().create_jump_callback(
            JumpThreshold(
                min_forward=Duration(seconds=JUMP_FORWARD_S),
                min_backward=Duration(nanoseconds=-1),
                on_clock_change=True,
            ),
            post_callback=self._clock_jumped,
        )

    def restart(self) -> None:
        """Forget what was seen and counted: the node is activated."""
        self.log = self.inputs.log = InputLog()
        self.mailbox = FrameMailbox(self._settings().cameras, self._rules())
        self.inputs.odometry.clear()
        self.inputs.odometry_received_s = None
        self._not_before_s = max(self.now_s(), 0.0)

    def settings_changed(self, before: Settings) -> None:
        if self.inputs.instruction == before.default_instruction:
            self.inputs.instruction = self._settings().default_instruction
        self.mailbox.set_rules(self._rules())

    def close(self) -> None:
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions = []
        self._jump.unregister()

    def now_s(self) -> float:
        """The node's clock: 0 while simulated time has not begun."""
        return self._node.get_clock().now().nanoseconds * 1e-9

    def missing(self, now_s: float) -> dict[str, str]:
        """By topic, why there has been no group of frames for longer than max_frame_age_s; empty if there has been."""
        limit_s = self._settings().max_frame_age_s
        if self.mailbox.silent_s(now_s) <= limit_s:
            return {}
        if self.now_s() <= 0.0:
            return {"/clock": NO_CLOCK}
        problems = {**self._odd(), **self._silent(now_s)}
        return problems or dict.fromkeys(
            (self.topics[name] for name in self._settings().cameras), "no frames that belong together"
        )

    def _odd(self) -> dict[str, str]:
        """By topic, cameras whose stamps are behind the others or apart from them."""
        return {self.topics[name]: text for name, text in self.mailbox.problems().items()}

    def _silent(self, now_s: float) -> dict[str, str]:
        """By topic, cameras that sent nothing usable for max_frame_age_s, and why."""
        limit_s = self._settings().max_frame_age_s
        problems = {}
        for name in self._settings().cameras:
            topic = self.topics[name]
            last_s = self.log.last_good_s(topic)
            silent = "nothing received" if last_s is None else f"last frame came {now_s - (last_s or 0.0):.1f} s ago"
            if last_s is None or now_s - last_s > limit_s:
                problems[topic] = self.log.problem(topic) or silent
        return problems

    def _odometry_problem(self, now_s: float) -> dict[str, str]:
        """By topic, that odometry is silent, whether or not anybody wanted to plan from it; empty if it is not."""
        topic, limit_s = self.topics["odometry"], self._settings().odometry_max_age_s
        last_s = self.log.last_good_s(topic)
        if last_s is None or now_s - last_s <= limit_s:
            return {}
        late = f"last usable message came {now_s - last_s:.2f} s ago, at most {limit_s:.2f} s"
        return {topic: self.log.problem(topic) or late}

    def states(self, now_s: float) -> dict[str, InputState]:
        """How each input is, connections included, for diagnostics."""
        problems = {**self._silent(now_s), **self._odometry_problem(now_s)}
        # Late, but in time for groups: worth a warning.
        late = (ERROR if self.missing(now_s) else WARN, self._odd())
        states = {}
        for wanted in self._wanted.values():
            state = self.log.state(wanted.topic, now_s, wanted.required)
            level, text = worst([(state.level, state.text), input_connection(self._node, wanted)])
            if wanted.topic in problems and level != ERROR:
                level, text = ERROR, problems[wanted.topic]
            elif wanted.topic in late[1]:
                level, text = worst([(level, text), (late[0], late[1][wanted.topic])])
            states[wanted.topic] = InputState(level, text, state.values)
        if self.now_s() <= 0.0:
            states["/clock"] = InputState(ERROR, NO_CLOCK)
        elif self.log.heard_of("/clock"):
            states["/clock"] = self.log.state("/clock", now_s, required=False)
        return states

    # -- subscriptions --------------------------------------------------------------------------------------------

    def _subscribe(self, settings: Settings) -> None:
        compressed = settings.image_transport == "compressed"
        if not compressed and not any(name in os.environ for name in PROFILES):
            self._node.get_logger().warning(NO_PROFILE)
        kind: Any = CompressedImage if compressed else Image
        images = IMAGES_IN[settings.image_reliability]
        for name in settings.cameras:
            raw = f"~/input/{name}/image"
            ends = [f"{raw}/compressed", raw] if compressed else [raw, f"{raw}/compressed"]
            self._add(name, kind, ends[0], partial(self._image_arrived, name), images, True, ends[1])
        self._add("odometry", Odometry, "~/input/odometry", self._odometry_arrived, ODOMETRY_IN, True)
        for name, callback in (("instruction", self._instruction_arrived), ("question", self._question_arrived)):
            self._add(name, String, f"~/input/{name}", callback, TEXT_IN, False)

    def _add(
        self, name: str, kind: Any, topic: str, callback: Any, qos: QoSProfile, required: bool, instead: str = ""
    ) -> None:
        made = self._node.create_subscription(kind, topic, callback, qos)
        self._subscriptions.append(made)
        instead = self._node.resolve_topic_name(instead) if instead else ""
        self._wanted[name] = Wanted(made.topic_name, type_name(kind), qos, required, required, instead)

    def _rules(self) -> GroupRules:
        s = self._settings()
        return GroupRules(s.sync_tolerance_s, s.camera_late_s, s.missing_camera, s.max_frame_age_s, self._optional)

    def _image_arrived(self, camera: str, message: Any, info: Any) -> None:
        topic = self.topics[camera]
        if self._senders.is_new(topic, info):
            self.mailbox.clear()
            self.log.noted(topic, "sender started anew")
        stamp_s = cv.stamp_seconds(message.header.stamp)
        if 0.0 < stamp_s < self._not_before_s:
            return
        age_s = self.now_s() - stamp_s
        kind, text = self._stamp_problem(stamp_s, age_s)
        if kind:
            self.log.refused(topic, kind, text)
            return
        self.log.accepted(topic)
        self.ahead(camera, message)
        self.mailbox.put(Frame(camera, stamp_s, time.monotonic(), message, age_s))

    def _stamp_problem(self, stamp_s: float, age_s: float) -> tuple[str, str]:
        """(kind, text) of what is wrong with a frame's stamp; empty if nothing."""
        limit_s = self._settings().max_frame_age_s
        if stamp_s <= 0.0:
            return "without stamp", "frame has no stamp (zero)"
        if self.now_s() <= 0.0:
            return "before the first clock", NO_CLOCK
        if age_s < -limit_s:  # a little is usual: pictures can overtake /clock
            return "in the future", f"frame is stamped {-age_s:.2f} s in the future"
        if age_s > limit_s:
            return "too old", f"frame is {age_s:.2f} s old, at most {limit_s:.2f} s"
        return "", ""

    def _odometry_arrived(self, message: Odometry, info: Any) -> None:
        topic = self.topics["odometry"]
        if self._senders.is_new(topic, info):
            self.inputs.odometry.clear()
            self.log.noted(topic, "sender started anew")
        try:
            sample = cv.odometry_sample(message)
            if sample.stamp_s <= 0.0:
                raise DataError("odometry has no stamp (zero)")
        except DataError as error:
            self.inputs.odometry_error = str(error)
            self.log.refused(topic, "unusable", str(error))
            return
        self.inputs.odometry.add(sample)
        self.inputs.odometry_error = ""
        self.inputs.odometry_received_s = time.monotonic()
        self.log.accepted(topic)

    def _instruction_arrived(self, message: String) -> None:
        text = self._text("instruction", message.data, self._settings().max_instruction_length)
        if text is not None:
            self.inputs.instruction = text or self._settings().default_instruction

    def _question_arrived(self, message: String) -> None:
        text = self._text("question", message.data, self._settings().max_question_length)
        if text is None:
            return
        question = text or None
        if question != self.inputs.question:
            self._new_question()
        self.inputs.question = question

    def _text(self, name: str, text: str, limit: int) -> str | None:
        """What is to be used of a text, None if it is refused: what was said before goes on."""
        try:
            plain, removed = plain_text(text, limit)
        except DataError as error:
            self.log.refused(self.topics[name], "too long", str(error))
            return None
        if removed:
            self.log.noted(self.topics[name], "with control characters")
        self.log.accepted(self.topics[name])
        return plain

    def _clock_jumped(self, jump: Any) -> None:
        """Time jumped (a bag loops) or changed its source: what was heard belongs to another time."""
        by_s = jump.delta.nanoseconds * 1e-9
        if self.now_s() > max(by_s, 0.0):  # otherwise: the first /clock
            self.log.warned("/clock", "jumps", f"time jumped by {by_s:+.1f} s; what was heard before is forgotten")
        else:
            self.mailbox.wait_anew()
        self._not_before_s = 0.0
        self.mailbox.clear()
        self.inputs.odometry.clear()
