"""The layering check finds what it is for."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("layering", ROOT / "tools" / "layering.py")
assert _spec is not None and _spec.loader is not None
layering = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(layering)


def test_this_repository_keeps_its_layers() -> None:
    assert layering.check(ROOT) == []


@pytest.mark.parametrize(
    "package, line, named",
    [
        ("wamdiff2_core", "import rclpy", "rclpy"),
        ("wamdiff2_core", "def f():\n    from wamdiff2_sim.world import World", "wamdiff2_sim"),
        ("wamdiff2_core", "import carla", "carla"),
        ("wamdiff2_sim", "from wamdiff2_ros import graph", "wamdiff2_ros"),
        ("training", "import wamdiff2.msg", "wamdiff2.msg"),
        ("wamdiff2_ros", "from wamdiff2_cli import main", "wamdiff2_cli"),
        ("wamdiff2_core", "eval('1')", "eval"),
    ],
)
def test_breaches_are_found(tmp_path: Path, package: str, line: str, named: str) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "a.py").write_text(line + "\n")
    (found,) = layering.check(tmp_path)
    assert named in found and f"{package}/a.py:" in found


def test_flashinfer_belongs_to_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "wamdiff2_core"
    folder.mkdir()
    (folder / "a.py").write_text("import flashinfer\n")
    assert layering.check(tmp_path) == []
    (folder / "b.py").write_text("from flashinfer import norm\n")
    assert "flashinfer" in layering.check(tmp_path)[0]
