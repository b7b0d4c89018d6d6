"""The CARLA bridge's loop, a thread of its own: connect, tick, publish, wait for the control, apply it.

When the server is gone it begins again. Nothing here blocks the node's callbacks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from wamdiff2_core import carla_frames as cf
from wamdiff2_core.carla_gnss import GeoReference, Projection, geo_reference
from wamdiff2_core.errors import DataError, Wamdiff2Error
from wamdiff2_ros import carla_messages as cm
from wamdiff2_ros.carla_client import CarlaGone, EgoNow, Session
from wamdiff2_ros.carla_control import ControlGate
from wamdiff2_ros.carla_outputs import Outputs, Pace, Progress
from wamdiff2_ros.carla_rig import EgoRig
from wamdiff2_ros.carla_route import random_route, route_to
from wamdiff2_ros.carla_sensors import SensorInbox
from wamdiff2_ros.carla_settings import BridgeSettings
from wamdiff2_ros.carla_spawn import GNSS, IMU

GHOST_TICKS = 20  # ticks in a row that do not show the ego: it was destroyed
JOIN_S = 6.0  # less than the supervisor waits before it kills; a healthy server is left long before


class BridgeLoop:
    """`state` says in words how it stands; `connected` whether there is a server. `error` ends the node."""

    def __init__(
        self,
        carla: Any,
        settings: BridgeSettings,
        rig: EgoRig,
        outputs: Outputs,
        gate: ControlGate,
        say: Callable[[str], None],
    ) -> None:
        self._carla, self._settings, self._rig = carla, settings, rig
        self._outputs, self.gate, self._say = outputs, gate, say
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="CARLA loop", daemon=True)
        self._progress = Progress()
        self._pace = Pace(settings.step_s)
        self._goal: tuple[float, float] | None = settings.goal_place()
        self._goal_changed = threading.Event()
        self._reference: GeoReference | None = None
        self.inbox = self._new_inbox()
        self.state, self.why_braked, self.connected = "not connected yet", "no control yet", False
        self.connections = self.lost = self.removed = self.ticks = 0
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """End the loop and what it spawned. False if a call to the server does not come back."""
        self._stop.set()
        self.gate.end()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)
        return not self._thread.is_alive()

    def set_goal(self, x: float, y: float) -> None:
        """A new route from where the car is to (x, y), CARLA's metres."""
        self._goal = (x, y)
        self._goal_changed.set()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._one_connection()
                self._stop.wait(self._settings.reconnect_s)
        except Wamdiff2Error as error:
            self.error = error  # told by the node, which ends with it
        except Exception as error:
            self.error = error
            raise

    def _one_connection(self) -> None:
        """Connect and drive until told to stop or the server is gone."""
        session = None
        try:
            self.inbox = inbox = self._new_inbox()
            session = Session(self._carla, self._settings, self._rig, inbox.put, self._stop.is_set)
            self._connected(session)
            while not self._stop.is_set():
                self._turn(session)
        except CarlaGone as error:
            self._lost(str(error))
        finally:
            if session is not None:
                gone = not self.connected
                for problem in session.close(gone):
                    self._say(f"while closing: {problem}")
            self.connected = False

    def _connected(self, session: Session) -> None:
        self.connected, self.connections = True, self.connections + 1
        self.removed += session.removed
        self.gate.restart()
        self._ghost_ticks = 0
        self._goal_changed.set()
        projection = Projection.of_version(session.server_version)
        try:
            self._reference = geo_reference(session.map.to_opendrive(), projection)
        except DataError as error:
            self._reference = None
            self._say(f"GNSS stays as it is: {error}")
        if not self._settings.correct_gnss:
            self._reference = None
        self.state = f"connected to CARLA {session.server_version}, {session.map.name}"
        self._say(f"{self.state}; {session.removed} actors of an earlier run removed")
        if session.server_version != session.client_version:
            self.state += f" (the client library is {session.client_version}: they should be equal)"

    def _lost(self, why: str) -> None:
        self.lost += self.connected
        if self.state != why:
            self._say(f"{why}; trying again each {self._settings.reconnect_s:g} s")
        self.connected, self.state, self.why_braked = False, why, "no server"

    def _turn(self, session: Session) -> None:
        """One tick: take -> publish -> wait for the control -> apply."""
        now = session.tick()
        self.ticks += 1
        if now is None:
            self._ghost(session)
            return
        self._ghost_ticks = 0
        self.gate.advance(now.stamp_s)
        speed = self._outputs.ego(now)
        self._navigate(session, now)
        self._sensors(now)
        if self._settings.owns_tick:
            self.gate.wait(self._settings.control_wait_s, self._settings.step_s)
        decision = self.gate.decide(speed)
        if decision.why_braked != self.why_braked:
            self._say(f"braking: {decision.why_braked}" if decision.why_braked else "driving")
            self.why_braked = decision.why_braked
        session.apply(cf.ros_to_carla_control(decision.control, self._wheel_ratio(session, speed)))
        if self._settings.owns_tick and self._settings.real_time:
            self._stop.wait(self._pace.left_s())

    def _ghost(self, session: Session) -> None:
        self._ghost_ticks += 1
        if self._ghost_ticks >= GHOST_TICKS and not session.ego_is_there():
            raise CarlaGone(f"the ego {self._settings.role_name!r} is not there any more")

    def _sensors(self, now: EgoNow) -> None:
        if self._settings.native:
            return
        if self._settings.owns_tick:
            found = self.inbox.collect(now.frame, self._settings.sensor_wait_s)
            self._outputs.sensors(found, self._reference, now.stamp_s)
        else:
            self._outputs.sensors(self.inbox.newest(), self._reference)

    def _navigate(self, session: Session, now: EgoNow) -> None:
        base = cm.base_pose(now, self._rig.base_link_x_m)
        if self._goal_changed.is_set():
            self._goal_changed.clear()
            self._plan_route(session, base, now.stamp_s)
        if self._progress.route is not None:
            self._outputs.navigation(self._progress.route, self._progress.at(base.x, base.y), now.stamp_s)

    def _plan_route(self, session: Session, base: cf.RosPose, stamp_s: float) -> None:
        """A route from where base_link is: to the goal, or a random one. None is said, not fatal."""
        location = self._carla.Location
        here = location(*cf.ros_to_carla_vector(*base.position))
        try:
            if self._goal is None:
                route = random_route(session.map, here, self._settings.route_m, self._settings.seed)
            else:
                route = route_to(session.map, here, location(x=self._goal[0], y=self._goal[1], z=here.z))
        except DataError as error:
            self._progress.route = None
            self._say(f"no route: {error}")
            return
        self._progress.start(route)
        self._outputs.route(route, stamp_s)

    def _wheel_ratio(self, session: Session, speed: float) -> float:
        full = self._settings.full_steer_rad
        as_is = full == 0.0 or self._settings.control_messages == "carla_msgs"
        return 1.0 if as_is else full / session.full_lock_rad(speed)

    def _new_inbox(self) -> SensorInbox:
        periods = {camera.name: self._settings.image_period_s for camera in self._rig.cameras}
        periods |= {name: 0.0 for name, there in ((IMU, self._rig.imu), (GNSS, self._rig.gnss)) if there}
        return SensorInbox(periods, self._settings.step_s)
