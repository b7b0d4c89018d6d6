"""What can be spawned: names with attributes, as the scenario runner asks for them."""

from __future__ import annotations

from fnmatch import fnmatch

KNOWN = (
    "vehicle.lincoln.mkz_2020", "vehicle.tesla.model3", "vehicle.ford.ambulance", "vehicle.carlamotors.carlacola",
    "vehicle.diamondback.century", "walker.pedestrian.0001", "static.prop.constructioncone", "static.prop.mesh",
    "sensor.camera.rgb", "sensor.other.gnss", "sensor.other.imu", "sensor.other.collision",
)  # fmt: skip


class Blueprint:
    """One kind of actor. Attributes are strings, as in CARLA."""

    def __init__(self, kind: str) -> None:
        self.id = kind
        self.tags = kind.split(".")
        self.attributes: dict[str, str] = {"role_name": ""}

    def has_attribute(self, name: str) -> bool:
        return name in self.attributes

    def has_tag(self, name: str) -> bool:
        return name in self.tags

    def set_attribute(self, name: str, value: str) -> None:
        self.attributes[name] = str(value)


class BlueprintLibrary:
    """All kinds in `KNOWN`."""

    def find(self, kind: str) -> Blueprint:
        """A fresh blueprint. IndexError for a kind that there is none of, as in CARLA."""
        if kind not in KNOWN:
            raise IndexError(f"blueprint {kind!r}: expected one of {', '.join(KNOWN)}")
        return Blueprint(kind)

    def filter(self, pattern: str) -> list[Blueprint]:
        """Fresh blueprints whose names match the wildcard pattern."""
        return [Blueprint(kind) for kind in KNOWN if fnmatch(kind, pattern)]
