"""Actors as the scenario runner sees them: views of our world's road users with the methods of carla's classes.

CARLA's frame and units outside (left-handed, degrees), ours inside; `frames` converts.
"""

from __future__ import annotations

import math
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

import carla

from wamdiff2_core.carla_frames import ros_to_carla_degrees, ros_to_carla_pose, ros_to_carla_vector
from wamdiff2_sim.types import ActorState, LightState, Pose

if TYPE_CHECKING:
    from wamdiff2_sim.leaderboard.server import StandInWorld

TYPE_IDS = {
    "car": "vehicle.tesla.model3",
    "truck": "vehicle.carlamotors.carlacola",
    "cyclist": "vehicle.diamondback.century",
    "pedestrian": "walker.pedestrian.0001",
}
COLOURS = {
    LightState.RED: carla.TrafficLightState.Red,
    LightState.YELLOW: carla.TrafficLightState.Yellow,
    LightState.GREEN: carla.TrafficLightState.Green,
}


def transform_of(pose: Pose) -> carla.Transform:
    """A ground pose of our map frame as CARLA's transform."""
    made = ros_to_carla_pose((pose.x, pose.y, pose.z), (0.0, 0.0, pose.yaw))
    pitch, yaw, roll = made.rotation
    return carla.Transform(carla.Location(*made.position), carla.Rotation(pitch=pitch, yaw=yaw, roll=roll))


def pose_of(transform: carla.Transform) -> Pose:
    """The way back of `transform_of`."""
    where = transform.location
    return Pose(where.x, -where.y, where.z, -math.radians(transform.rotation.yaw))


def vector_of(x: float, y: float, z: float = 0.0) -> carla.Vector3D:
    """A vector of our map frame as CARLA's."""
    return carla.Vector3D(*ros_to_carla_vector(x, y, z))


class Actor:
    """What all actors have. Equal by identity, as dictionary keys of the scenario runner."""

    def __init__(self, number: int, type_id: str, attributes: dict[str, str] | None = None) -> None:
        self.id, self.type_id = number, type_id
        self.attributes = {"role_name": "", **(attributes or {})}
        self.is_alive = True
        self.parent: Actor | None = None
        self.bounding_box = carla.BoundingBox(carla.Location(), carla.Vector3D(0.1, 0.1, 0.1))
        self._transform = carla.Transform()

    def get_transform(self) -> carla.Transform:
        return self._transform

    def get_location(self) -> carla.Location:
        return self.get_transform().location

    def get_velocity(self) -> carla.Vector3D:
        return carla.Vector3D()

    def get_acceleration(self) -> carla.Vector3D:
        return carla.Vector3D()

    def get_angular_velocity(self) -> carla.Vector3D:
        return carla.Vector3D()

    def set_transform(self, transform: carla.Transform) -> None:
        self._transform = transform

    def destroy(self) -> bool:
        """Take it out of the world."""
        self.is_alive = False
        return True


class RoadUser(Actor):
    """A vehicle, cyclist or person of our world, updated every tick."""

    def __init__(self, state: ActorState, role: str) -> None:
        kind = "vehicle.ford.ambulance" if role == "ambulance" else TYPE_IDS[state.kind]
        super().__init__(state.id, kind, {"role_name": "scenario" if role else "background"})
        half = carla.Vector3D(state.length / 2.0, state.width / 2.0, state.height / 2.0)
        self.bounding_box = carla.BoundingBox(carla.Location(0.0, 0.0, state.height / 2.0), half)
        self._lights = carla.VehicleLightState.NONE
        self.update(state)

    def update(self, state: ActorState) -> None:
        """Take over the newest state."""
        self._state = state
        self._transform = transform_of(state.pose)

    def get_velocity(self) -> carla.Vector3D:
        return vector_of(*self._state.velocity)

    def get_acceleration(self) -> carla.Vector3D:
        yaw, accel = self._state.yaw, self._state.accel
        return vector_of(accel * math.cos(yaw), accel * math.sin(yaw))

    def get_light_state(self) -> Any:
        return self._lights

    def set_light_state(self, lights: Any) -> None:
        self._lights = lights


class Prop(RoadUser):
    """A thing that stands on the road: hitting it counts as hitting the layout."""

    def __init__(self, state: ActorState) -> None:
        super().__init__(state, "scenario")
        self.type_id = "static.prop.constructioncone"


class Ego(Actor):
    """The vehicle that is driven. Its origin is the middle of its box on the ground, as in CARLA."""

    def __init__(self, number: int, type_id: str, attributes: dict[str, str], world: StandInWorld) -> None:
        super().__init__(number, type_id, attributes)
        self._world = world
        length, width, height = world.EGO_SIZE
        self.bounding_box = carla.BoundingBox(
            carla.Location(0.0, 0.0, height / 2.0), carla.Vector3D(length / 2.0, width / 2.0, height / 2.0)
        )
        self.control = carla.VehicleControl(brake=1.0)
        self._lights = carla.VehicleLightState.NONE

    def get_transform(self) -> carla.Transform:
        return transform_of(self._world.ego_middle())

    def get_velocity(self) -> carla.Vector3D:
        state = self._world.stage.state
        return vector_of(state.speed * math.cos(state.ego.yaw), state.speed * math.sin(state.ego.yaw))

    def get_acceleration(self) -> carla.Vector3D:
        state = self._world.stage.state
        along, across, yaw = state.acceleration, state.speed * state.yaw_rate, state.ego.yaw
        return vector_of(along * math.cos(yaw) - across * math.sin(yaw), along * math.sin(yaw) + across * math.cos(yaw))

    def get_angular_velocity(self) -> carla.Vector3D:
        """deg/s, as CARLA gives it."""
        return carla.Vector3D(0.0, 0.0, -ros_to_carla_degrees(self._world.stage.state.yaw_rate))

    def apply_control(self, control: carla.VehicleControl) -> None:
        """What is done in the next tick."""
        self.control = control

    def get_control(self) -> carla.VehicleControl:
        return self.control

    def get_speed_limit(self) -> float:
        """km/h."""
        stage = self._world.stage
        return 3.6 * stage.route.speed_limit_at(stage.state.route_s)

    def get_light_state(self) -> Any:
        return self._lights

    def set_light_state(self, lights: Any) -> None:
        self._lights = lights


class TrafficLight(Actor):
    """The signal of one approach: all lanes of one light group on one road."""

    def __init__(self, number: int, place: carla.Transform, half_width: float, group: int, world: Any) -> None:
        super().__init__(number, "traffic.traffic_light")
        self._transform, self.group, self._world = place, group, world
        self._half = (half_width, 1.0, 1.0)

    @property
    def trigger_volume(self) -> carla.BoundingBox:
        return _box(self._half)

    @property
    def state(self) -> carla.TrafficLightState:
        return COLOURS[self._world.light_of(self.group)]

    def get_state(self) -> carla.TrafficLightState:
        return self.state

    def get_group_traffic_lights(self) -> list[TrafficLight]:
        return [self]


class StopSign(Actor):
    """A stop sign with the piece of road in which one has to stop."""

    def __init__(self, number: int, place: carla.Transform, half: tuple[float, float, float]) -> None:
        super().__init__(number, "traffic.stop")
        self._transform, self._half = place, half

    @property
    def trigger_volume(self) -> carla.BoundingBox:
        return _box(self._half)


def _box(half: tuple[float, float, float]) -> carla.BoundingBox:
    """A new box each time: carla.Transform.transform writes into the location that it is given."""
    return carla.BoundingBox(carla.Location(), carla.Vector3D(*half))


class ActorList(list):
    """A list that can be filtered, as carla.ActorList."""

    def filter(self, pattern: str) -> ActorList:
        return ActorList(one for one in self if fnmatch(one.type_id, pattern))

    def find(self, number: int) -> Actor | None:
        return next((one for one in self if one.id == number), None)
