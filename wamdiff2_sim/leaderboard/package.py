"""Finds the leaderboard's own code, which is test equipment: installed by `tools/leaderboard_setup.sh`, never copied.

The package keeps `leaderboard` and `srunner` as data files, and CARLA's `agents` beside a mock `carla` module. Here the
real `carla` wheel serves, so `agents` is made known alone.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from dataclasses import dataclass
from pathlib import Path

from wamdiff2_core.errors import ConfigError

SITE_VARIABLE = "WAMDIFF2_LEADERBOARD_SITE"
DEFAULT_SITE = Path(__file__).resolve().parents[2] / "build/leaderboard/site"
CODE = "l2d_benchmark/resources/backends/language2drive.carla/language2drive"
AGENTS = "scenario_runner/srunner/tests/carla_mocks/agents"
NOT_IN_PACKAGE = "agents.navigation.constant_velocity_agent"  # imported by atomic_behaviors, used by none of ours


@dataclass(frozen=True)
class Package:
    """Where the parts lie: route file of the 220 routes, table of weathers, OpenDRIVE files."""

    site: Path

    @property
    def code(self) -> Path:
        return self.site / CODE

    @property
    def routes(self) -> Path:
        return self.code / "leaderboard/data/bench2drive220.xml"

    @property
    def weathers(self) -> Path:
        return self.code / "leaderboard/data/weather.xml"

    @property
    def maps(self) -> Path:
        return self.site / "py123d/parser/opendrive/carla_maps"


def site_folder() -> Path:
    """The folder that the packages are in, or would be in."""
    return Path(os.environ.get(SITE_VARIABLE) or DEFAULT_SITE)


def missing() -> str:
    """Why the leaderboard cannot run here; "" when it can."""
    package = Package(site_folder())
    for part in (package.routes, package.weathers, package.maps):
        if not part.exists():
            return f"{part} is not there: run tools/leaderboard_setup.sh"
    sys_path = [*sys.path, str(package.site)]
    if not any((Path(folder) / "carla/__init__.py").is_file() for folder in sys_path if folder):
        return "no carla wheel for this Python: CARLA 0.9.16 has none above 3.12"
    return ""


def prepare() -> Package:
    """Make `carla`, `leaderboard`, `srunner` and `agents` importable. ConfigError when they are not installed."""
    reason = missing()
    if reason:
        raise ConfigError(f"leaderboard: {reason}")
    package = Package(site_folder())
    for folder in (package.site, package.code / "leaderboard", package.code / "scenario_runner"):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # behind ours: they only fill what is missing
    if "agents" not in sys.modules:
        _know_agents(package.code / AGENTS)
    return package


def _know_agents(folder: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        "agents", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ConfigError(f"leaderboard: {folder} is no Python package")
    module = importlib.util.module_from_spec(spec)
    sys.modules["agents"] = module
    spec.loader.exec_module(module)
    absent = types.ModuleType(NOT_IN_PACKAGE)
    absent.ConstantVelocityAgent = type("ConstantVelocityAgent", (), {})  # type: ignore[attr-defined]
    sys.modules[NOT_IN_PACKAGE] = absent
