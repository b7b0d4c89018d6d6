"""summary.json and report.html of a made-up drive; the page is loaded in a real browser where one is installed."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from wamdiff2_core.evaluate.record import AnswerRecord, BoxRecord, DriveRecord, PlanRecord, Snapshot
from wamdiff2_core.evaluate.report import write_report
from wamdiff2_core.evaluate.summary import summarise, write_json
from wamdiff2_core.scene import Box

CHROMIUM = shutil.which("chromium")


def a_drive() -> DriveRecord:
    seconds = np.linspace(0, 20, 201)
    track = np.column_stack([seconds, seconds * 5, np.sin(seconds / 4) * 3, np.full(201, 5.0)])
    expert = np.column_stack([np.arange(1, 9) * 2.5, np.zeros(8)])
    beside = expert + [0.0, 0.3]
    plans = [PlanRecord(k * 0.25, beside, expert, 180.0 + k, 230.0, 20, "follow the road") for k in range(79)]
    plans.append(PlanRecord(19.9, None, expert, 200.0, 240.0, 20, "follow the road"))
    car = Box("car", (400, 400, 500, 500), 0.9)
    picture = np.full((96, 160, 3), 120, np.uint8)
    return DriveRecord(
        settings={"block_size": 32, "checkpoint": "tiny", "seed": 0, "commit": "abc", "map": "Town01"},
        score={"route_completion": 0.75, "collisions": 0, "red_lights": 1, "off_road_s": 0.0, "comfort": 0.9},
        track=track,
        route=track[:, 1:3],
        lanes=[track[:, 1:3] + [0.0, 3.5]],
        plans=plans,
        boxes=[BoxRecord(1.0, (car,), (car,))],
        answers=[
            AnswerRecord(1.0, "what <b>colour</b>?", "red.", "red", "light"),
            AnswerRecord(2.0, "why?", "no", "yes"),
        ],
        snapshots=[Snapshot(1.0, {"left": picture, "front": picture, "right": picture}, "t = 1.0 s")],
        parse_failures=1,
        wall_seconds=21.0,
    )


def test_summary_has_the_figures():
    summary = summarise(a_drive())
    assert summary["sim_seconds"] == pytest.approx(20.0)
    assert summary["plans"] == 79 and summary["plans_withheld"] == 1
    assert summary["plan_hz"] == pytest.approx(79 / 20)
    assert summary["ade_to_expert_m"] == pytest.approx(0.3)
    assert summary["per_waypoint_l2_m"] == pytest.approx([0.3] * 8)
    assert summary["detection_map50"] == pytest.approx(1.0)
    assert summary["answers_correct"] == pytest.approx(0.5)
    assert summary["parse_failures"] == 1 and summary["route_completion"] == 0.75


def test_summary_of_nothing_says_so(tmp_path):
    summary = summarise(DriveRecord())
    assert summary["plans"] == 0
    assert summary["ade_to_expert_m"] is None and summary["detection_map50"] is None
    write_json(tmp_path / "summary.json", summary)
    assert json.loads((tmp_path / "summary.json").read_text())["plan_latency_ms"] == {"p50": None, "p99": None}


def test_report_is_one_file_that_escapes_text(tmp_path):
    record = a_drive()
    write_report(tmp_path / "report.html", record, summarise(record))
    page = (tmp_path / "report.html").read_text()
    assert "what &lt;b&gt;colour&lt;/b&gt;?" in page
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "not CARLA" in page and page.count("<img") == 7


def test_report_of_nothing_is_still_a_page(tmp_path):
    write_report(tmp_path / "report.html", DriveRecord(), summarise(DriveRecord()))
    assert "No question was asked" in (tmp_path / "report.html").read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_report_loads_in_a_browser_without_errors_or_missing_pictures(tmp_path):
    record = a_drive()
    path = tmp_path / "report.html"
    write_report(path, record, summarise(record))
    assert browser_faults(path, tmp_path) == {"broken": 0, "pictures": 7, "errors": []}


def browser_faults(path, scratch) -> dict:
    """Load the page with a small probe appended, and read back pictures without size and script errors."""
    probe = (
        "<script>window.errors=[];window.onerror=e=>window.errors.push(String(e));"
        "window.onload=()=>{const i=[...document.images];document.body.innerHTML='';"
        "document.title=JSON.stringify({broken:i.filter(p=>!p.complete||!p.naturalWidth).length,"
        "pictures:i.length,errors:window.errors})}</script>"
    )
    probed = scratch / "probed.html"
    probed.write_text(path.read_text().replace("</head>", probe + "</head>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command = [CHROMIUM, *flags, f"--user-data-dir={scratch / 'profile'}", "--dump-dom", probed.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title, done.stdout[:500]
    return json.loads(title.group(1))
