"""Limits on figures: how they are written, what they are held against, and that nothing unmeasured passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate.limits import Limit, check_names, figures_of, flat, judge, parse_limit, read_limits

REPORT: dict[str, Any] = {
    "results": [
        {"block_size": 8, "frames": 5, "ade_m": 1.0, "map50": 0.5,
         "failures": {"parse": 2}, "per_waypoint_m": [0.5, 1]},
        {"block_size": 32, "frames": 5, "ade_m": 1.4, "map50": 0.4,
         "failures": {"parse": 0}, "per_waypoint_m": [0.6, 3]},
    ],
    "recorded": {"ade_m": 0.9, "settings": {"checkpoint": "tiny"}},
    "input": {
        "max_gap_s": 0.3, "read_share": None, "problems": ["one", "two"], "bag_finished": 1,
        "topics": [{"topic": "/odometry", "max_gap_s": 0.2}],
    },
}  # fmt: skip


def held(*limits: str) -> list[bool]:
    return [verdict.held for verdict in judge([parse_limit(text) for text in limits], figures_of(REPORT))]


def test_limits_are_most_or_least_by_what_is_better() -> None:
    assert parse_limit("ade_m=1.5") == Limit("ade_m", "<=", 1.5)
    assert parse_limit("map50 = 0.3") == Limit("map50", ">=", 0.3)
    assert parse_limit("recorded.plan_hz@8=2") == Limit("recorded.plan_hz@8", ">=", 2.0)
    assert parse_limit("map50<=0.9") == Limit("map50", "<=", 0.9)
    for wrong in ("ade_m", "ade_m=", "=1", "ade_m=much", "ade_m=nan", "ade_m=inf", "ade_m<1"):
        with pytest.raises(ConfigError, match="limit"):
            parse_limit(wrong)


def test_every_block_size_is_held_against_a_limit_or_the_one_that_is_named() -> None:
    assert held("ade_m=1.4", "ade_m=1.39", "ade_m@8=1.39", "map50=0.4", "map50=0.41", "map50@8=0.41") == [
        True, False, True, True, False, True,
    ]  # fmt: skip


def test_figures_of_the_recording_the_bag_and_single_topics() -> None:
    assert held("recorded.ade_m=1", "max_gap_s=0.3", "gap_s./odometry=0.1", "problems=1", "bag_finished=1") == [
        True, True, False, False, True,
    ]  # fmt: skip
    assert held("per_waypoint_m.2=2", "failures.parse@32=0", "failures.parse=0") == [False, True, False]


def test_what_was_not_measured_is_broken() -> None:
    (verdict,) = judge([parse_limit("read_share=0.9")], figures_of(REPORT))
    assert not verdict.held and verdict.plain() == {"limit": "read_share >= 0.9", "figure": None, "held": False}
    assert held("gap_s./camera=1") == [False]  # the bag does not hold the topic
    one = {**REPORT, "results": [REPORT["results"][0], {**REPORT["results"][1], "ade_m": None}]}
    assert not judge([parse_limit("ade_m=9")], figures_of(one))[0].held


def test_unknown_names_are_errors() -> None:
    figures = figures_of(REPORT)
    check_names(
        [parse_limit(text) for text in ("ade_m=1", "ade_m@8=1", "gap_s./any=1", "per_waypoint_m.1@8=1")], figures
    )
    for wrong in ("ade=1", "ade_m@16=1", "recorded.x=1", "max_gap=1", "x.1=1"):
        with pytest.raises(ConfigError, match="there is no figure"):
            check_names([parse_limit(wrong)], figures)


def test_a_file_of_limits(tmp_path: Path) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text("ade_m: 1.5\nmap50: '>=0.3'\nframes: 10\n")
    assert [str(limit) for limit in read_limits(file)] == ["ade_m <= 1.5", "map50 >= 0.3", "frames >= 10"]
    for wrong in ("", "- 1", "ade_m: [1]", "ade_m: true", "ade_m: x", "{"):
        file.write_text(wrong)
        with pytest.raises(ConfigError):
            read_limits(file)
    with pytest.raises(ConfigError, match="none.yaml"):
        read_limits(tmp_path / "none.yaml")


def test_flat_names_members() -> None:
    assert flat({"a": 1, "b": None, "c": [1.0, 2.0], "d": {"e": True, "f": "text"}}) == {
        "a": 1.0, "b": None, "c.1": 1.0, "c.2": 2.0, "d.e": 1.0,
    }  # fmt: skip
