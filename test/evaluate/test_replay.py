"""Replays: pictures decoded once, the same bytes twice, figures by block size, limits, a page that works."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bags import INSTRUCTION, Messages, drive, write_items
from broken_bags import QUIET, StraightDriver, replayed

from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate.limits import figures_of, parse_limit
from wamdiff2_ros import bag_scenes, replay_figures
from wamdiff2_ros.bag_messages import Bag
from wamdiff2_ros.replay_run import (
    LIMIT_BROKEN,
    NO_FRAMES,
    PASSED,
    Request,
    check_limits,
    other_arithmetic,
    run_offline,
)

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_items(tmp_path_factory.mktemp("bag") / "bag", drive(8.0))


def test_pictures_are_decoded_once_for_several_block_sizes(bag: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    real = bag_scenes.message_to_rgb
    monkeypatch.setattr(bag_scenes, "message_to_rgb", lambda message: decoded.append(1) or real(message))
    driver = StraightDriver()
    settings = [DecodingConfig(size, 1) for size in (1, 8, 32)]
    _, replay = run_offline(Request(bag, frames=5), driver, settings, QUIET)  # type: ignore[arg-type]
    assert len(decoded) == 5 * 3 and len(replay.made) == 5 * 3  # five frames of three cameras, three block sizes
    assert [one.block_size for one in replay.made[:3]] == [1, 8, 32]
    ends = (replay.frames[0].ns, replay.frames[-1].ns)
    assert ends == (1_000_000_000, 8_500_000_000)  # spread over the bag


def test_figures_stand_side_by_side(bag: Path, tmp_path: Path) -> None:
    report = replayed(bag, tmp_path, sizes=(1, 8, 32))
    assert [row["block_size"] for row in report["results"]] == [1, 8, 32]
    assert [row["ade_m"] for row in report["results"]] == pytest.approx([0.1, 0.8, 3.2])
    assert [row["per_waypoint_m"][7] for row in report["results"]] == pytest.approx([0.1, 0.8, 3.2])
    assert report["results"][0]["plan_total_ms"] == pytest.approx(6.0)
    assert report["results"][0]["answers_as_recorded_share"] == 1.0
    assert report["results"][0]["plans_as_recorded_share"] == 0.0


def test_the_instruction_is_the_one_that_the_plan_says_it_followed(tmp_path: Path) -> None:
    """The text was recorded before the pictures of one moment, but the driver heard it after them."""
    items = drive(4.0)
    late = next(item for item in items if item[0] == "/world/instruction")
    at = next(k for k, item in enumerate(items) if item[1] == 3_000_000_000)
    stop = Messages().make("std_msgs/msg/String", data="stop")
    stop_cdr = bytes(Messages().store.serialize_cdr(stop, late[2]))
    items.insert(at, ("/world/instruction", 3_000_000_000, late[2], stop_cdr))
    driver = StraightDriver()
    made = write_items(tmp_path / "bag", items)
    opened, replay = run_offline(Request(made), driver, [DecodingConfig(8, 1)], QUIET)  # type: ignore[arg-type]
    assert {frame.instruction for frame in replay.frames} == {INSTRUCTION} == {s.instruction for s in driver.scenes}
    assert any("4 plans followed another text" in note for note in opened.footage.notes)


def test_another_arithmetic_than_then_is_said(tmp_path: Path) -> None:
    kind = "std_msgs/msg/String"
    m, words = Messages(), json.dumps({"node": "/wamdiff2", "parameters": {"dtype": "auto", "device": "cpu"}})
    items = drive(2.0)
    for text in ("not json", words):
        cdr = bytes(m.store.serialize_cdr(m.make(kind, data=text), kind))
        items.insert(0, ("/wamdiff2/output/parameters", 10**9, kind, cdr))
    with contextlib.closing(Bag(write_items(tmp_path / "bag", items))) as opened:
        assert other_arithmetic(opened, {"dtype": "auto", "device": "cpu"}) == []
        (note,) = other_arithmetic(opened, {"dtype": "float32", "device": "cpu"})
    assert "dtype auto (here float32)" in note and "device" not in note


def test_the_same_bag_gives_the_same_bytes(bag: Path, tmp_path: Path) -> None:
    names = ("replay.json", "frames.jsonl", "report.html")
    for name in ("one", "two"):
        replayed(bag, tmp_path / name, sizes=(8, 32), timing=False)
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    replayed(bag, tmp_path / "other", sizes=(8, 16), timing=False)
    assert (tmp_path / "one" / "frames.jsonl").read_bytes() != (tmp_path / "other" / "frames.jsonl").read_bytes()


def test_limits_decide_the_exit_code(bag: Path, tmp_path: Path) -> None:
    def code(*limits: str, **options: Any) -> int:
        report = replayed(bag, tmp_path, limits=[parse_limit(text) for text in limits], **options)
        assert (report["verdict"].startswith("Passed")) == (report["exit_code"] == PASSED)
        return int(report["exit_code"])

    assert code("ade_m=0.9", "max_gap_s=0.2", "map50=0.9") == PASSED
    assert code("ade_m=0.7") == LIMIT_BROKEN
    assert code("ade_to_expert_m=100", "plan_total_ms=100") == PASSED
    assert code("plan_total_ms=100", timing=False) == LIMIT_BROKEN  # not measured
    assert code("ade_m=100", tasks="detect") == LIMIT_BROKEN
    assert code("max_gap_s=9", topics={"odometry": "/world/odometry"}, prefix="/nowhere", frames=1) == PASSED


def test_no_frame_is_worse_than_a_broken_limit(tmp_path: Path) -> None:
    empty = write_items(tmp_path / "empty", [item for item in drive(4.0) if "image" not in item[0]])
    report = replayed(empty, tmp_path, limits=[parse_limit("ade_m=1")])
    assert report["exit_code"] == NO_FRAMES and report["limits"][0]["held"] is False


def test_names_of_limits_are_checked_before_anything_is_computed(bag: Path, tmp_path: Path) -> None:
    report = replayed(bag, tmp_path)
    names = [name for name, values in figures_of(report).items() if not name.startswith("gap_s.")]
    check_limits([parse_limit(f"{name}=1") for name in names], (8,))  # every figure can be limited
    assert set(replay_figures.RECORDED) | {"settings"} == set(report["recorded"])
    assert set(replay_figures.INPUT) | {"problems", "topics"} == set(report["input"])
    for wrong in ("ade=1", "ade_m@16=1"):
        with pytest.raises(ConfigError, match="no figure"):
            check_limits([parse_limit(wrong)], (8,))


def test_tasks_are_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="--tasks"):
        Request(Path("bag"), tasks="plan,park")


def test_a_line_for_each_frame_and_block_size(bag: Path, tmp_path: Path) -> None:
    replayed(bag, tmp_path, sizes=(8, 32), frames=3)
    lines = [json.loads(line) for line in (tmp_path / "frames.jsonl").read_text().splitlines()]
    assert [(line["stamp_ns"], line["block_size"]) for line in lines[:2]] == [(10**9, 8), (10**9, 32)]
    assert len(lines) == 6 and lines[0]["ade"] == pytest.approx(0.8) and lines[0]["points"][0] == [2.5, 0.8]


def test_the_page_holds_everything_itself_and_escapes_text(bag: Path, tmp_path: Path) -> None:
    items = [(t, ns, kind, data.replace(b"turn left", b"<b>left</")) for t, ns, kind, data in drive(4.0)]
    replayed(write_items(tmp_path / "bag", items), tmp_path, pictures=2)
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r"""(src|href)=["'](?!data:)""", page) and "http" not in page
    assert "<b>left" not in page and "u003cb\\u003eleft" in page
    assert page.count("data:image/jpeg") == 2 * 3


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_slider_moves_picture_map_and_text_together(bag: Path, tmp_path: Path) -> None:
    replayed(bag, tmp_path, sizes=(8, 32))
    probe = """<script>
    const errors = []; window.onerror = e => errors.push(String(e));
    const state = () => [$("when").textContent, document.querySelector(".view img").src.length,
      document.querySelector(".view img").src.slice(-80), $("map").toDataURL().length > 2000, $("text").innerText];
    window.onload = () => { const a = state(); $("slider").value = 7; $("slider").oninput({target: $("slider")});
      const b = state(); document.onkeydown({key: "ArrowRight", target: document.body, preventDefault() {}});
      const c = state(); const m = $("map").toDataURL(); document.querySelector("#keys input").click();
      document.title = JSON.stringify({errors, a, b, c, changed: m !== $("map").toDataURL(),
        curves: $("curves").toDataURL().length > 4000}); };
    </script></body>"""
    page = tmp_path / "probed.html"
    page.write_text((tmp_path / "report.html").read_text().replace("</body>", probe))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    command = [str(CHROMIUM), *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found is not None
    said = json.loads(found.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert said["errors"] == [] and said["changed"] and said["curves"]
    assert [s[0].split(",")[0] for s in (said["a"], said["b"], said["c"])] == ["1 / 16", "8 / 16", "9 / 16"]
    assert said["a"][2] != said["b"][2] != said["c"][2] and all(s[3] for s in (said["a"], said["b"]))
    assert "turn left in 40 m" in said["a"][4] and "block size 32" in said["a"][4]
