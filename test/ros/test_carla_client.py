"""The bridge against the real client library: its names, a server that is not there, routes on a real map."""

from __future__ import annotations

import math
import socket
import sys
from pathlib import Path

import pytest

carla = pytest.importorskip("carla", reason="the carla wheel is an extra (Python 3.12 and older)")

import carla_stand_in as stand_in  # noqa: E402
from carla_roads import crossing  # noqa: E402

from wamdiff2_core.errors import ConfigError, DataError  # noqa: E402
from wamdiff2_core.scene import Command  # noqa: E402
from wamdiff2_ros.carla_client import CarlaGone, Session, load_carla  # noqa: E402
from wamdiff2_ros.carla_rig import EgoRig, load_ego  # noqa: E402
from wamdiff2_ros.carla_route import random_route, route_to  # noqa: E402
from wamdiff2_ros.carla_settings import BridgeSettings  # noqa: E402

CONFIG = Path(__file__).resolve().parents[2] / "config"
OWN = {"drive", "sense", "snapshot", "is_car", "controls", "for_ros"}  # of the stand-in, never called by the bridge
SURFACE = {
    stand_in.StandInClient: carla.Client,
    stand_in.StandInWorld: carla.World,
    stand_in.StandInMap: carla.Map,
    stand_in.StandInBlueprint: carla.ActorBlueprint,
    stand_in.StandInLibrary: carla.BlueprintLibrary,
    stand_in.StandInActors: carla.ActorList,
    stand_in.Settings: carla.WorldSettings,
}


@pytest.mark.parametrize("mine, real", SURFACE.items(), ids=lambda kind: kind.__name__)
def test_the_stand_in_has_no_name_that_the_client_library_lacks(mine: type, real: type) -> None:
    names = {name for name in vars(mine) if not name.startswith("_")} - {"known", "values"}
    names |= set(getattr(mine, "__annotations__", {})) - {"known", "values"}
    assert names and not {name for name in names if not hasattr(real, name)}


def test_the_stand_ins_actors_have_no_name_that_the_client_library_lacks() -> None:
    names = {name for name in vars(stand_in.StandInActor) if not name.startswith("_")} - OWN
    real = (carla.Vehicle, carla.ServerSideSensor)
    assert not {name for name in names if not any(hasattr(kind, name) for kind in real)}


def test_measurements_and_snapshots_have_the_fields_that_the_bridge_reads() -> None:
    fields = {
        carla.Image: ("raw_data", "width", "height", "frame", "timestamp"),
        carla.IMUMeasurement: ("accelerometer", "gyroscope", "compass"),
        carla.GnssMeasurement: ("latitude", "longitude", "altitude"),
        carla.WorldSnapshot: ("frame", "timestamp", "has_actor", "find"),
        carla.ActorSnapshot: ("get_transform", "get_velocity", "get_angular_velocity", "id"),
        carla.Timestamp: ("elapsed_seconds",),
        carla.Waypoint: ("next", "road_id", "section_id", "lane_id", "s", "is_junction", "junction_id", "lane_change",
                         "get_left_lane", "get_right_lane", "lane_type", "transform"),
        carla.VehiclePhysicsControl: ("wheels", "steering_curve"),
        carla.WheelPhysicsControl: ("max_steer_angle",),
    }  # fmt: skip
    assert not [(kind, name) for kind, names in fields.items() for name in names if not hasattr(kind, name)]


def test_a_server_that_is_not_there_is_named_with_its_address() -> None:
    with socket.socket() as taken:  # bound, but nobody answers
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        settings = BridgeSettings(rig="rig.yaml", port=port, timeout_s=0.3)
        with pytest.raises(CarlaGone, match=f"CARLA at 127.0.0.1:{port}: time-out"):
            Session(load_carla(), settings, load_ego(CONFIG / "carla_six.yaml"), lambda name, measurement: None)


def test_a_missing_client_library_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "carla", None)
    with pytest.raises(ConfigError, match="pip install carla"):
        load_carla()


def test_attributes_that_a_blueprint_lacks_are_named() -> None:
    server = stand_in.StandInServer()
    rig = EgoRig(load_ego(CONFIG / "carla_three.yaml").cameras, camera_attributes=(("lens", "wide"),))
    with pytest.raises(ConfigError, match="sensor.camera.rgb: there is no attribute 'lens'"):
        Session(stand_in.stand_in(server), BridgeSettings(rig="r"), rig, lambda name, measurement: None)
    assert not server.actors and not server.settings.synchronous_mode  # nothing is left behind


def test_full_lock_shrinks_with_speed_as_the_cars_curve_says() -> None:
    server = stand_in.StandInServer()
    rig = load_ego(CONFIG / "carla_three.yaml")
    session = Session(stand_in.stand_in(server), BridgeSettings(rig="r"), rig, lambda name, measurement: None)
    full = math.radians(70.0)
    for kmh, share in ((0.0, 1.0), (60.0, 0.75), (-60.0, 0.75), (120.0, 0.5), (200.0, 0.5)):
        assert session.full_lock_rad(kmh / 3.6) == pytest.approx(full * share)
    assert session.close() == [] and not server.actors


def test_what_could_not_be_closed_is_told_and_the_rest_is_closed() -> None:
    server = stand_in.StandInServer()
    rig = load_ego(CONFIG / "carla_three.yaml")
    session = Session(stand_in.stand_in(server), BridgeSettings(rig="r"), rig, lambda name, measurement: None)
    camera = server.named("hero/cam_front")[0]
    camera.destroy()  # somebody else did
    (problem,) = session.close()
    assert "not found" in problem and not server.actors and not server.settings.synchronous_mode


START = (1.75, 80.0)


@pytest.mark.parametrize(
    "goal, command, side",
    [((1.75, -80.0), Command.STRAIGHT, 0), ((-80.0, -1.75), Command.LEFT, 1), ((80.0, 1.75), Command.RIGHT, -1)],
)
def test_a_route_to_the_left_is_to_the_left_in_ros(goal: tuple[float, float], command: Command, side: int) -> None:
    town = carla.Map("crossing", crossing())
    route = route_to(town, carla.Location(*START), carla.Location(*goal))
    assert [manoeuvre.command for manoeuvre in route.manoeuvres] == [command]
    assert route.points[0][:2] == pytest.approx((1.75, -80.0), abs=0.1)
    turned = route.heading_at(route.length) - route.heading_at(0.0)
    assert turned == pytest.approx(side * math.pi / 2.0, abs=0.1)
    assert route.command_at(30.0) == (command, pytest.approx(route.manoeuvres[0].start_s - 30.0))


def test_no_way_against_the_traffic() -> None:
    town = carla.Map("crossing", crossing())
    with pytest.raises(DataError, match="no way from"):
        route_to(town, carla.Location(1.75, -50.0), carla.Location(*START))


def test_random_routes_depend_on_the_seed_alone_and_end_with_the_road() -> None:
    town = carla.Map("crossing", crossing())
    routes = [random_route(town, carla.Location(*START), 500.0, seed) for seed in range(8)]
    again = [random_route(town, carla.Location(*START), 500.0, seed) for seed in range(8)]
    assert all((a.points == b.points).all() for a, b in zip(routes, again))
    assert len({tuple(route.points[-1].round()) for route in routes}) > 1
    assert all(100.0 < route.length < 220.0 for route in routes)
