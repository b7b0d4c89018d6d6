"""The report of made-up measurements: figures exact, what is missing visible, the page filled in place."""

from __future__ import annotations

import json

import numpy as np
import pytest

from training.proof.drives import FILE
from training.proof.frames import store_of
from training.proof.plots import draw_all
from training.proof.report import fill, write
from training.proof.results import collect
from training.proof.tables import TABLES
from training.proof.targets import Target
from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_core.evaluate.frame_store import FrameStore, Measured

FRAMES = 6
ROWS = ("ar", "direct", "stage1", "stage3", "kl")


def drive(row, seed, town, route, completion, red=0, **more):
    base = {"key": [row, seed, town, route], "row": row, "model_seed": seed, "town": town, "seed": route, "plans": 50,
            "route_completion": completion, "collisions": 0, "collisions_by_kind": {}, "red_lights": red,
            "off_road_s": 0.5, "failures": {"parse": 1}, "forwards_per_plan": 6.0, "wall_s": 9.0}  # fmt: skip
    return base | more


def measured(setting, shift):
    """Rows whose plans are off by `shift` m at every waypoint, every second answer right."""
    rows = []
    for k in range(FRAMES):
        truth = np.cumsum(np.full((8, 2), [3.0, 0.0]), axis=0)
        points = truth + [0.0, shift]
        made = {"failure": None, "forwards": setting.steps, "tokens": 80}
        plan = {"points": points.tolist(), "truth": truth.tolist(), **made}
        box = ["car", [100, 100, 200 + k, 300]]
        boxes = {"boxes": [[*box, 0.9]], "truth": [box], "failure": None, "forwards": 2}
        asked = {"question": "how many cars are there?", "answer": str(k % 2), "truth": "0"}
        answers = [{**asked, "failure": None, "forwards": 3}]
        rows.append({"block_size": setting.block_size, "frame": f"f{k}", "plan": plan, "detect": boxes, "ask": answers})
    return Measured(setting, {}, rows)


def keep(root, row, seed, part, ones):
    rows = ones[0].rows
    truths = [{"frame": r["frame"], "plan": r["plan"]["truth"], "boxes": r["detect"]["truth"],
               "ask": [[a["question"], a["truth"]] for a in r["ask"]]} for r in rows]  # fmt: skip
    head = {"weights": row, "frames": "x", "dtype": "float32"}
    store = FrameStore.open(store_of(root, row, seed, part), head, truths)
    for one in ones:
        store.add(one)


@pytest.fixture
def root(tmp_path):
    lines = []
    for row, shift in (("ar", 0.2), ("direct", 1.0), ("stage1", 0.4), ("stage3", 0.1)):
        for seed in (0, 1):
            lines += [drive(row, seed, "Town01", k, 1.0, red=int(row == "direct")) for k in (1000, 1001)]
            main = Setting(1, 1, 0.9) if row == "ar" else Setting(32, 3, 0.6)
            keep(tmp_path, row, seed, "main", [measured(main, shift + 0.01 * seed)])
            (tmp_path / row / f"seed{seed}").mkdir(parents=True)
            (tmp_path / row / f"seed{seed}" / "DONE").write_text('{"steps": 5}')
    lines.append({**drive("stage1", 0, "Town02", 1000, 0.0), "error": "DataError: no map"})
    lines.append(drive("stage1", 0, "Town03", 1000, 0.5))
    lines.append(drive("expert", 0, "Town01", 1000, 1.0))
    (tmp_path / FILE).parent.mkdir(exist_ok=True)
    (tmp_path / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"cut')
    pairs = ((1, 0.9), (4, 0.9), (8, 0.9), (3, 0.6))
    sweep = [Setting(32, steps, threshold, scaffold=on) for steps, threshold in pairs for on in (True, False)]
    keep(tmp_path, "stage3", 0, "steps", [measured(one, 1.0 / one.steps + 0.3 * (not one.scaffold)) for one in
                                          [*sweep, Setting(1, 1)]])  # fmt: skip
    for row, factor in (("stage1", 1.0), ("same", 1.3)):
        grid = [Setting(b, s) for b in (4, 8, 16, 32) for s in (1, 2, 4)]
        keep(tmp_path, row, 0, "blocks", [measured(one, factor / one.steps) for one in grid])
    draws = [measured(Setting(32, 16, temperature=1.0, seed=k), 10.0 * (k % 2)) for k in range(4)]
    keep(tmp_path, "stage3", 0, "forks", draws)
    (tmp_path / "eval/overlap").mkdir()
    for seed, share in ((0, 0.5), (1, 0.6)):
        facts = {"teacher_blocks": {"all": share, "tokens": 9}, "teacher_ar": {"all": 0.4, "tokens": 9}}
        (tmp_path / f"eval/overlap/stage3_seed{seed}.json").write_text(json.dumps(facts))
    return tmp_path


def test_figures_are_those_of_the_rows(root):
    found = collect(root, (*ROWS, "same"), (0, 1))
    rows = found["rows"]
    assert rows["ar"]["closed_loop"]["mean"] == 100.0 and rows["ar"]["closed_loop"]["seeds"] == [100.0, 100.0]
    assert rows["direct"]["closed_loop"]["mean"] == pytest.approx(70.0)
    assert rows["stage1"]["closed_loop"]["seeds"] == pytest.approx([250.0 / 3, 100.0])
    assert rows["stage1"]["drives"]["failed_drives"] == 1 and rows["stage1"]["drives"]["errors"] == {"DataError": 1}
    assert rows["direct"]["against_ar"]["closed_loop"]["mean"] == pytest.approx(-30.0)
    assert rows["stage3"]["ade_m"]["seeds"] == pytest.approx([0.1, 0.11])
    assert rows["stage3"]["against_ar"]["ade_m"]["mean"] == pytest.approx(-0.1)
    assert rows["stage3"]["answers"]["mean"] == pytest.approx(0.5)
    assert rows["kl"]["closed_loop"] is None and rows["kl"]["ade_m"] is None and rows["kl"]["drives"] is None
    assert rows["ar"]["against_ar"] is None and rows["ar"]["training"]["0"]["steps"] == 5
    assert found["expert"]["closed_loop"] == 100.0 and found["held_out_frames"] == FRAMES
    assert found["exposure"]["stage3"]["gap_m"] == pytest.approx([0.1] * 8)
    assert [p["steps"] for p in found["steps"]["stage3"]["front"]] == [1, 3, 4, 8]
    assert found["blocks"]["same"]["steps_needed"]["0"][32]["steps"] == 4
    assert found["forks"]["stage3"]["modes"]["mean"] == 2.0 and found["forks"]["kl"] is None
    assert found["overlap"]["stage3"]["teacher_blocks"]["mean"] == pytest.approx(0.55)
    verdicts = {one["what"]: one["reached"] for one in found["targets"]}
    assert verdicts["driving score minus the baseline's, points"] is True
    assert verdicts["forwards per plan as a share"] is False  # 3 of 1
    assert verdicts["share of answers that cannot be parsed"] is True
    near, far = Target("x", -0.7, -1.0, error=4.0), Target("x", 3.0, -1.0, error=1.0)
    assert near.reached and near.proven is False and far.proven and Target("x", 1.0, 2.0).proven is None
    assert "reached, not proven" in TABLES["targets"]({"targets": [near.values()]})
    json.dumps(found, allow_nan=False)


def test_the_report_fills_the_page_and_draws(root, tmp_path, capsys):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "distillation.md").write_text("before\n<!-- table stages -->\nold\n<!-- end -->\nafter\n")
    write(root, tmp_path / "out", docs, (*ROWS, "stage2"), (0, 1))
    text = (docs / "distillation.md").read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| AR | 100.0 ± 0.0 |" in text and "| + stage 2 | not measured |" in text
    assert "direct" not in TABLES["stages"](collect(root, ("ar",), (0,)))  # what nobody asked for is left out
    again = write(root, tmp_path / "out", docs, (*ROWS, "stage2"), (0, 1))
    assert (docs / "distillation.md").read_text() == text
    kept = json.loads((tmp_path / "out/distill.json").read_text())
    assert kept["rows"]["ar"]["ade_m"]["mean"] == pytest.approx(0.205)
    assert sorted(path.name for path in (docs / "images").iterdir()) == [
        f"distill_{name}.png" for name in ("blocks", "exposure", "forks", "stages", "steps")]  # fmt: skip
    with pytest.raises(DataError):
        fill("<!-- table nothing -->\n<!-- end -->", again)


def test_nothing_measured_is_said_everywhere(tmp_path):
    found = collect(tmp_path, ROWS, (0,))
    assert all(one["closed_loop"] is None and one["ade_m"] is None for one in found["rows"].values())
    for name, table in TABLES.items():
        assert "not measured" in table(found), name
    assert all(path.stat().st_size > 1000 for path in draw_all(found, tmp_path / "images"))
