"""One connection to a CARLA server: town, tick, controls, and the end of it all. The only file that imports carla."""

from __future__ import annotations

import contextlib
import importlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from wamdiff2_core.carla_frames import CARLA_WHEEL_DEG, CarlaControl
from wamdiff2_core.errors import ConfigError, Wamdiff2Error
from wamdiff2_ros.carla_rig import EgoRig
from wamdiff2_ros.carla_settings import BridgeSettings
from wamdiff2_ros.carla_spawn import Spawner

LOOK_S = 0.5  # between two looks for an ego that somebody else spawns
KNOCK_S = 2.0  # for the first answer: whether there is a server at all
CLOSE_S = 2.0  # limit of a call while closing


class CarlaGone(Wamdiff2Error):
    """The server does not answer, or not as it should; the message names the address and its words."""


class EgoNow(NamedTuple):
    """The ego actor after a tick, in CARLA's frame and units; None where the tick does not show it."""

    frame: int
    stamp_s: float
    position: tuple[float, float, float]
    rotation: tuple[float, float, float]
    velocity: tuple[float, float, float]
    angular_velocity_deg: tuple[float, float, float]


def load_carla() -> Any:
    """The client library. ConfigError says how to get it."""
    try:
        return importlib.import_module("carla")
    except ImportError as error:
        raise ConfigError(
            f"the CARLA client library is missing ({error}): pip install carla==VERSION, as old as the server; "
            "wheels exist up to Python 3.12"
        ) from error


class Session:
    """Connects and populates when made; raises CarlaGone if the server cannot be reached, ConfigError if a setting
    does not fit it. `heard`: called with (sensor name, measurement) from the client's threads. `carla`: the module.
    """

    def __init__(
        self,
        carla: Any,
        settings: BridgeSettings,
        rig: EgoRig,
        heard: Callable[[str, Any], None],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._carla, self._settings, self._rig = carla, settings, rig
        self._where = f"CARLA at {settings.host}:{settings.port}"
        self._sensors: list[Any] = []
        self._mine = False
        self.ego: Any = None
        self.removed = 0
        with self._talking():
            self._client = carla.Client(settings.host, settings.port)
            self._client.set_timeout(min(KNOCK_S, settings.timeout_s))
            self.server_version = str(self._client.get_server_version())
            self._client.set_timeout(settings.timeout_s)
            self.client_version = str(self._client.get_client_version())
            self.world = self._load()
            self._spawner = Spawner(carla, self.world, settings, rig)
        try:
            with self._talking():
                self.removed = self._remove_leftovers()
                if settings.owns_tick:
                    self._take_tick()
                self._find_ego(stopping)
                self._spawner.sensors(self.ego, heard, self._sensors)
                self.map = self.world.get_map()
                self.wheel_deg, self._steering_curve = self._steering()
                self._client.set_timeout(settings.tick_timeout_s)
        except (CarlaGone, ConfigError):
            self.close()
            raise

    def tick(self) -> EgoNow | None:
        """The next tick: ours, or the one that somebody else makes. None while it does not show the ego."""
        with self._talking():
            if self._settings.owns_tick:
                self.world.tick(self._settings.tick_timeout_s)
                snapshot = self.world.get_snapshot()
            else:
                snapshot = self.world.wait_for_tick(self._settings.tick_timeout_s)
            seen = snapshot.find(self.ego.id) if snapshot.has_actor(self.ego.id) else None
            if seen is None:
                return None
            place = seen.get_transform()
            return EgoNow(
                int(snapshot.frame),
                float(snapshot.timestamp.elapsed_seconds),
                _numbers(place.location),
                (place.rotation.pitch, place.rotation.yaw, place.rotation.roll),
                _numbers(seen.get_velocity()),
                _numbers(seen.get_angular_velocity()),
            )

    def ego_is_there(self) -> bool:
        """Whether the server still knows the ego."""
        with self._talking():
            return any(actor.id == self.ego.id for actor in self.world.get_actors([self.ego.id]))

    def apply(self, control: CarlaControl) -> None:
        """Send a control to the ego."""
        with self._talking():
            self.ego.apply_control(
                self._carla.VehicleControl(
                    throttle=control.throttle,
                    steer=control.steer,
                    brake=control.brake,
                    hand_brake=control.hand_brake,
                    reverse=control.reverse,
                )
            )

    def full_lock_rad(self, speed_mps: float) -> float:
        """Wheel angle (rad) at steer 1: CARLA allows less at speed."""
        curve = self._steering_curve
        share = 1.0
        if curve:
            kmh = abs(speed_mps) * 3.6
            share = curve[-1][1]
            for (x0, y0), (x1, y1) in zip(curve, curve[1:]):
                if kmh <= x1:
                    share = y0 if x1 <= x0 else y0 + (y1 - y0) * max(0.0, kmh - x0) / (x1 - x0)
                    break
        return math.radians(self.wheel_deg) * share

    def close(self, gone: bool = False) -> list[str]:
        """Destroy what we spawned and let the server run by itself again. Returns what could not be done.

        gone: the server does not answer; nothing is asked of it.
        """
        sensors, self._sensors = self._sensors, []
        if gone:
            return []
        steps: list[Callable[[], Any]] = [lambda: self._client.set_timeout(min(CLOSE_S, self._settings.timeout_s))]
        steps += [sensor.stop for sensor in sensors if not self._settings.native]
        steps += [sensor.destroy for sensor in sensors]
        if self._mine and self.ego is not None:
            steps.append(self.ego.destroy)
        if self._settings.owns_tick:
            steps.append(self._release_tick)
        problems = []
        for step in steps:
            try:
                with self._talking():
                    step()
            except CarlaGone as error:
                problems.append(str(error))
        return problems

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        """The client library raises RuntimeError for everything that goes wrong with the server."""
        try:
            yield
        except RuntimeError as error:
            raise CarlaGone(f"{self._where}: {error}") from error

    def _load(self) -> Any:
        wanted, world = self._settings.town, self._client.get_world()
        if not wanted or _short(world.get_map().name) == _short(wanted):
            return world
        known = sorted(_short(name) for name in self._client.get_available_maps())
        if _short(wanted) not in known:
            raise ConfigError(f"town: {self._where} has no {wanted!r}, expected one of {', '.join(known)}")
        return self._client.load_world(wanted)

    def _remove_leftovers(self) -> int:
        """Destroy what a bridge of our role left behind, as after kill -9. Returns how many actors went.

        With spawn=attach the car is not ours: only sensors that we named go.
        """
        role, own = self._settings.role_name, f"{self._settings.role_name}/"
        actors = list(self.world.get_actors())
        cars = {actor.id for actor in actors if actor.attributes.get("role_name") == role and _is_car(actor)}
        ours = [actor for actor in actors if str(actor.attributes.get("role_name", "")).startswith(own)]
        if self._settings.spawn != "attach":
            hanging = [actor for actor in actors if actor.parent is not None and actor.parent.id in cars]
            ours += [actor for actor in hanging if actor.id not in {one.id for one in ours}]
            ours += [actor for actor in actors if actor.id in cars]
        for actor in ours:
            actor.destroy()
        return len(ours)

    def _take_tick(self) -> None:
        settings = self.world.get_settings()
        settings.synchronous_mode, settings.fixed_delta_seconds = True, self._settings.step_s
        self.world.apply_settings(settings)

    def _release_tick(self) -> None:
        """Asynchronous, whatever it was before: a synchronous server that nobody ticks is stuck for all."""
        settings = self.world.get_settings()
        settings.synchronous_mode, settings.fixed_delta_seconds = False, None
        self.world.apply_settings(settings)

    def _find_ego(self, stopping: Callable[[], bool]) -> None:
        if self._settings.spawn == "attach":
            self.ego = self._wait_for_ego(stopping)
        else:
            self.ego, self._mine = self._spawner.ego(), True
            if self.ego is None:
                raise CarlaGone(f"{self._where}: every place tried for the ego ({self._settings.spawn}) is taken")

    def _wait_for_ego(self, stopping: Callable[[], bool]) -> Any:
        until_s = time.monotonic() + self._settings.timeout_s
        while time.monotonic() < until_s and not stopping():
            for actor in self.world.get_actors().filter("vehicle.*"):
                if actor.attributes.get("role_name") == self._settings.role_name:
                    return actor
            time.sleep(LOOK_S)
        raise CarlaGone(
            f"{self._where}: no vehicle with the role name {self._settings.role_name!r} is there to attach to"
        )

    def _steering(self) -> tuple[float, list[tuple[float, float]]]:
        """Full lock of the front wheels (degrees), and what is left of it at speed as (km/h, share)."""
        physics = self.ego.get_physics_control()
        angles = [float(wheel.max_steer_angle) for wheel in physics.wheels if float(wheel.max_steer_angle) > 0.0]
        curve = [(float(point.x), float(point.y)) for point in physics.steering_curve]
        return (max(angles) if angles else CARLA_WHEEL_DEG), curve


def _short(town: str) -> str:
    return town.rsplit("/", 1)[-1]


def _is_car(actor: Any) -> bool:
    return str(actor.type_id).startswith("vehicle.")


def _numbers(vector: Any) -> tuple[float, float, float]:
    return float(vector.x), float(vector.y), float(vector.z)
