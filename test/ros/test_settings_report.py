"""Parameter files that reach nobody and names that nobody knows; our matching agrees with rcl's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from wamdiff2_core.errors import ConfigError
from wamdiff2_ros import settings_report as report

NODES = ("/wamdiff2", "/car/wamdiff2", "/car/front/wamdiff2")
# Section of a parameter file -> which of NODES it reaches.
REACHES = {
    "/wamdiff2": (True, False, False),
    "wamdiff2": (True, False, False),
    "/car/wamdiff2": (False, True, False),
    "car/wamdiff2": (False, True, False),
    "/**": (True, True, True),
    "/*": (True, False, False),
    "/**/wamdiff2": (True, True, True),
    "/*/wamdiff2": (False, True, False),
    "/car/**": (False, True, True),
    "/car/*": (False, True, False),
    "/**/*": (True, True, True),
    "/wamdif2": (False, False, False),
    "/other/wamdiff2": (False, False, False),
}


def written(path: Path, *sections: str) -> Path:
    path.write_text(yaml.safe_dump({section: {"ros__parameters": {"steps": 3}} for section in sections}))
    return path


@pytest.mark.parametrize("section", REACHES)
def test_sections_reach_nodes_as_rcl_says(section: str, tmp_path: Path) -> None:
    path = written(tmp_path / "p.yaml", section)
    assert tuple(report.file_warning(path, node) == "" for node in NODES) == REACHES[section]


@pytest.mark.ros
def test_rcl_agrees(tmp_path: Path) -> None:
    rclpy = pytest.importorskip("rclpy")
    from rclpy.node import Node

    for section, reaches in REACHES.items():
        path = written(tmp_path / "p.yaml", section)
        context = rclpy.Context()
        rclpy.init(args=["--ros-args", "--params-file", str(path)], context=context)
        nodes = [Node("wamdiff2", namespace=name.rpartition("/")[0] or "/", context=context) for name in NODES]
        found = [node.declare_parameter("steps", 0).value == 3 for node in nodes]
        for node in nodes:
            node.destroy_node()
        rclpy.shutdown(context=context)
        assert tuple(found) == reaches, section


def test_nested_namespaces_and_other_nodes(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "car:\n  wamdiff2:\n    ros__parameters: {steps: 3}\n/follower:\n  ros__parameters: {rate_hz: 20.0}\n"
    )
    assert report.file_warning(path, "/car/wamdiff2") == ""
    text = report.file_warning(path, "/wamdiff2")
    assert "applies to no node here: it is for /car/wamdiff2, /follower; this node is /wamdiff2" in text
    assert report.unused_sections(path, ["/wamdiff2", "/follower"]) == ["/car/wamdiff2"]
    path.write_text("")
    assert "it is for nobody" in report.file_warning(path, "/wamdiff2")
    for text in ("a: [1", "- a", "hello"):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"p\.yaml: expected a ROS parameter file"):
            report.file_warning(path, "/wamdiff2")


def test_what_a_file_sets_for_a_node(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("/**:\n  ros__parameters: {steps: 1, rule: static}\n/wamdiff2:\n  ros__parameters: {steps: 2}\n")
    assert report.file_parameters(path, "/wamdiff2") == {"steps": 2, "rule": "static"}
    assert report.file_parameters(path, "/other") == {"steps": 1, "rule": "static"}


def test_numbers_are_what_rcl_takes_for_numbers(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "/**:\n  ros__parameters: {a: 1e-1, b: 5E2, c: -1.5e3, d: .5e+1, e: '1e-1', f: e1, g: 1e, h: 32x8}\n"
    )
    expected = {"a": 0.1, "b": 500.0, "c": -1500.0, "d": 5.0, "e": "1e-1", "f": "e1", "g": "1e", "h": "32x8"}
    assert report.file_parameters(path, "/wamdiff2") == expected


def test_a_file_of_a_run_may_have_more_of_our_nodes_but_not_misspelt_ones(tmp_path: Path) -> None:
    run = ["/wamdiff2", "/recorder"]
    assert report.run_warning(written(tmp_path / "p.yaml", "/wamdiff2", "/follower", "/world"), run) == ""
    assert report.run_warning(written(tmp_path / "p.yaml", "/**", "/lidar"), run) == ""
    text = report.run_warning(written(tmp_path / "p.yaml", "/wamdif2", "/recorder", "/follower"), run)
    assert "/wamdif2 is no node of this run; nothing in it is for /wamdiff2" in text


def test_unknown_names_are_told_with_the_nearest_known_one() -> None:
    said = report.unknown_names(["steps", "block_sise", "qqq"], ["steps", "block_size"])
    assert said == [
        "parameter 'block_sise' was given but does not exist; did you mean 'block_size'?",
        "parameter 'qqq' was given but does not exist",
    ]


def test_the_values_in_force_are_json() -> None:
    text = report.as_json("/wamdiff2", 12.5, "configure", {"tasks": ("plan",), "steps": 8, "use_sim_time": False})
    assert json.loads(text) == {
        "node": "/wamdiff2",
        "stamp_s": 12.5,
        "why": "configure",
        "parameters": {"tasks": ["plan"], "steps": 8, "use_sim_time": False},
    }
    assert report.one_line({"rule": "static", "a": 1.0}) == 'a=1.0, rule="static"'


@pytest.mark.ros
@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["-r", "__ns:=/car"], "applies to no node here: it is for /wamdiff2; this node is /car/wamdiff2", 1),
        (["-r", "__node:=driver"], "applies to no node here: it is for /wamdiff2; this node is /driver", 1),
        ([], "nowhere", 1),
    ],
)
def test_a_node_started_with_a_file_for_another_one_warns(
    arguments: list[str], says: str, code: int, tmp_path: Path
) -> None:
    pytest.importorskip("rclpy")
    path = written(tmp_path / "p.yaml", "/wamdiff2")
    command = [sys.executable, "-m", "wamdiff2_ros.driver_node", "--ros-args", "--params-file", str(path), *arguments]
    command += ["-p", "checkpoint:=/nowhere"]  # ends the process
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == code and says in ended.stderr and "Traceback" not in ended.stderr
    assert ("applies to no node" in ended.stderr) == bool(arguments)


@pytest.mark.ros
def test_a_file_that_rcl_cannot_read_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("rclpy")
    path = tmp_path / "broken.yaml"
    path.write_text("/wamdiff2:\n  /nested:\n    ros__parameters: {steps: 3}\n")
    command = [sys.executable, "-m", "wamdiff2_ros.driver_node", "--ros-args", "--params-file", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 1 and "broken.yaml" in ended.stderr and "Traceback" not in ended.stderr
