"""Detection on COCO-format data: the twelve numbers, bad records, categories on one image prefix, resumption."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from wamdiff2_cli.main import app
from wamdiff2_core import DecodingConfig, Driver, Scene
from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.evaluate.coco import ask, row, run, score
from wamdiff2_core.evaluate.coco import shards as coco_shards
from wamdiff2_core.evaluate.coco.data import read_instances
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_core.evaluate.detection import detection_score
from wamdiff2_core.evaluate.frames import read_frames
from wamdiff2_core.scene import Box
from wamdiff2_core.tasks.grammar import AnswerText

BOX = [10.0, 10.0, 30.0, 20.0]


def instances() -> dict:
    """Two pictures of 100 x 80, a car in each, a person in the first."""
    return {
        "images": [{"id": k, "width": 100, "height": 80, "file_name": f"{k}.png"} for k in (7, 9)],
        "categories": [{"id": 1, "name": "person"}, {"id": 3, "name": "car"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 3, "bbox": BOX, "area": 600.0, "iscrowd": 0},
            {"id": 2, "image_id": 9, "category_id": 3, "bbox": BOX},
            {"id": 3, "image_id": 7, "category_id": 1, "bbox": [60.0, 10.0, 10.0, 30.0]},
        ],
    }


def written(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_numbers_are_cocos(tmp_path: Path) -> None:
    """One car found exactly, one missed, a false person: against values worked out by hand, and the other door."""
    rows = [
        {"image_id": 7, "category_id": 3, "bbox": BOX, "score": 0.9},
        {"image_id": 9, "category_id": 1, "bbox": BOX, "score": 0.4},
    ]
    job = run.CocoJob(written(tmp_path / "i.json", instances()), tmp_path, tmp_path / "out",
                      detections=written(tmp_path / "d.json", rows), devices=("cuda:93",))  # fmt: skip
    report = run.evaluate(job)  # nobody needs the device
    ap_car = 51 / 101  # recall one half, COCO's 101 points of recall
    assert report["per_category"]["car"] == {"AP": pytest.approx(ap_car), "AP50": pytest.approx(ap_car)}
    assert report["per_category"]["person"]["AP"] == 0.0
    assert report["stats"]["AP"] == pytest.approx(ap_car / 2) and len(report["stats"]) == 12
    assert report["stats"]["APl"] is None  # nothing is that large
    boxes = [[Box("car", (100, 125, 400, 375), 0.9)], [Box("person", (100, 125, 400, 375), 0.4)]]
    truth = [
        [Box("car", (100, 125, 400, 375)), Box("person", (600, 125, 700, 500))],
        [Box("car", (100, 125, 400, 375))],
    ]
    assert detection_score(boxes, truth).map == pytest.approx(report["stats"]["AP"])
    only = run.evaluate(replace(job, out=tmp_path / "o2", categories=("car",)))
    assert only["stats"]["AP"] == pytest.approx(ap_car) and only["truths"] == 2


def test_bad_records_are_left_out_counted_and_named(tmp_path: Path) -> None:
    content = instances()
    content["images"] += [{"id": 7, "width": 5, "height": 5, "file_name": "again"}, {"id": "x"}, {"id": 8, "width": 0}]
    content["categories"].append({"id": 5})
    content["annotations"] += [
        {"id": 3, "image_id": 9, "category_id": 3, "bbox": BOX},
        {"id": 4, "image_id": 99, "category_id": 3, "bbox": BOX},
        {"id": 5, "image_id": 7, "category_id": 44, "bbox": BOX},
        {"id": 6, "image_id": 7, "category_id": 3, "bbox": [1, 2]},
        {"id": 7, "image_id": 7, "category_id": 3, "bbox": [0, 0, float("nan"), 4]}, "no object",
    ]  # fmt: skip
    data = read_instances(written(tmp_path / "i.json", content), tmp_path)
    assert (len(data.images), len(data.categories), len(data.annotations)) == (2, 2, 3)
    problems = data.problems.plain()
    assert {kind: one["count"] for kind, one in problems.items()} == {
        "image: its id is there twice": 1, "image: not usable": 2, "category: not usable": 1,
        "annotation: its id is there twice": 1, "annotation: of no usable image": 1, "annotation: of no category": 1,
        "annotation: its box is no four finite numbers with a size": 2, "annotation: not usable": 1,
    }  # fmt: skip
    assert problems["annotation: of no usable image"]["first"] == ["4"]
    bad = [{"image_id": 7, "category_id": 3, "bbox": BOX, "score": float("inf")}, {"image_id": 1, "category_id": 3,
           "bbox": BOX, "score": 1}, {"image_id": 7, "category_id": 2, "bbox": BOX, "score": 1}]  # fmt: skip
    rows, problems = score.read_results(written(tmp_path / "d.json", bad), data)
    assert rows == [] and sum(problems.counts.values()) == 3


def test_numbers_out_of_bounds_are_bad_records_and_cocos_large_ids_are_none(tmp_path: Path) -> None:
    content = instances()
    huge = 10**400  # no float can hold it
    content["images"].append({"id": 2**70, "width": 5, "height": 5, "file_name": "x"})
    content["images"].append({"id": 70, "width": huge, "height": 5, "file_name": "x"})
    crowd = {**content["annotations"][0], "id": 900100581904, "iscrowd": 1, "area": huge}
    content["annotations"] += [crowd, {**crowd, "id": 2**70}, {**crowd, "id": 80, "bbox": [huge, 0, 4, 4]}]
    data = read_instances(written(tmp_path / "i.json", content), tmp_path)
    assert sum(data.problems.counts.values()) == 4 and data.annotations[-1]["id"] == 900100581904
    assert data.annotations[-1]["area"] == crowd["bbox"][2] * crowd["bbox"][3]
    rows, problems = score.read_results(
        written(tmp_path / "d.json", [{**crowd, "score": 0.5}, {**crowd, "score": huge}]), data
    )
    assert len(rows) == 1 and sum(problems.counts.values()) == 1
    categories = sorted(data.categories)
    assert score.score(data, rows, categories, list(data.images))["truths"] == len(data.annotations)
    content["categories"].append({**content["categories"][0], "id": 77})
    with pytest.raises(DataError, match="two categories that are called"):
        read_instances(written(tmp_path / "i.json", content), tmp_path)


def test_the_row_names_its_data_and_what_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "i.json", instances())
    found = written(tmp_path / "d.json", [{"image_id": 7, "category_id": 3, "bbox": BOX, "score": 0.9}])
    report = run.evaluate(run.CocoJob(file, tmp_path, tmp_path / "o", detections=found))
    made = row.measured(report, tmp_path / "o")
    assert made.data.startswith("i.json: 2 images, 3 true boxes of ") and report["fingerprint"] in made.data
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="faster-coco-eval is not installed"):
        run.evaluate(run.CocoJob(file, tmp_path, tmp_path / "o", detections=found))
    assert any("faster-coco-eval" in line for line in row.Coco().needs({}))


@pytest.mark.parametrize("content", ["[1", "[]", '{"images": [], "categories": []}', '{"images": 3}'])
def test_a_file_that_is_none_ends_in_a_named_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "i.json").write_text(content)
    with pytest.raises(DataError, match="i.json"):
        read_instances(tmp_path / "i.json", tmp_path)


def test_a_checkpoint_is_scored_goes_on_and_names_bad_pictures(micro: Path, shards: Path, tmp_path: Path) -> None:
    frames = read_frames(shards, 0)
    content = coco_shards.instances(frames, shards)
    content["images"].append({"id": 90, "width": 8, "height": 8, "file_name": "not_there.jpg"})
    wrong = {**content["images"][0], "id": 91, "width": 17}
    content["images"].append(wrong)
    file = written(tmp_path / "i.json", content)
    out = tmp_path / "out"
    arguments = ["evaluate", "coco", str(file), "--images", str(shards), "--checkpoint", str(micro), "--out", str(out),
                 "--decoding", "B=8,steps=2", "--json"]  # fmt: skip
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["images"], report["not_scored"]) == (len(frames), 2)
    assert {"picture: cannot be read", "picture: of another size than the file says"} <= set(report["left_out"])
    assert (out / run.DETECTIONS).is_file() and report["score_of_a_box"] == run.OWN_SCORE
    lines = (out / run.ROWS).read_bytes().splitlines(keepends=True)
    (out / run.ROWS).write_bytes(b"".join(lines[:3]) + lines[3][:20])  # killed while it wrote
    again = json.loads(CliRunner().invoke(app, [*arguments, "--workers", "2", "--device", "cpu,cpu"]).stdout)
    assert again["stats"] == report["stats"] and len(lines) == len(frames)
    assert len((out / run.ROWS).read_bytes().splitlines()) == len(lines)
    shown = CliRunner().invoke(app, arguments[:-1])
    assert "AP50" in shown.stdout and "not_there.jpg" in shown.stdout


def test_categories_are_asked_in_one_batch_behind_one_picture(micro: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver.from_checkpoint(micro, decoding=DecodingConfig(block_size=8, steps=2))
    with pytest.raises(ConfigError, match="mode each"):
        ask.mode_of(driver, "each")
    driver.formats["detect"] = "qwen3vl_json"
    cameras = {name: np.zeros((64, 64, 3), np.uint8) for name in driver.cameras}
    prefills, rows = [], []
    prefill, generate = driver.decoder.prefill, driver.decoder.generate
    monkeypatch.setattr(driver.decoder, "prefill", lambda *a, **k: prefills.append(1) or prefill(*a, **k))
    monkeypatch.setattr(
        driver.decoder, "generate", lambda ids, *a, **k: rows.append(len(ids)) or generate(ids, *a, **k)
    )
    answers = iter([
        '[{"bbox_2d": [1, 2, 30, 40], "label": "Bus"}, {"bbox_2d": [1, 2, 3, 4], "label": "dog"}]', "[]", "no list",
    ])  # fmt: skip
    speaks = SimpleNamespace(answer=lambda *_: AnswerText(next(answers)), encode=driver.tokenizer.encode,
                             control=driver.tokenizer.control)  # fmt: skip
    monkeypatch.setattr(driver, "tokenizer", speaks)
    from wamdiff2_core.evaluate.coco import ask as asking

    monkeypatch.setattr(asking, "read_answer", read_complete)
    found = ask.find(driver, Scene(cameras), ["bus", "tram", "train"])
    assert (len(prefills), rows) == (1, [3])
    assert [(box.label, box.xyxy) for box in found.boxes] == [("bus", (1, 2, 30, 40))]
    assert (found.failures, found.other) == ({"parse": 1}, 1) and found.forwards > 1


def read_complete(task: str, form: str, status: str, *rest: object) -> object:
    """Random weights rarely end an answer; what they would have said is given above."""
    from wamdiff2_core.tasks.reading import read_answer

    return read_answer(task, form, "complete", *rest)  # type: ignore[arg-type]


def test_names_are_pairs_and_settings_are_checked(micro: Path, tmp_path: Path) -> None:
    assert row.pairs("person=pedestrian, car = car") == {"person": "pedestrian", "car": "car"}
    with pytest.raises(ConfigError, match="pairs"):
        row.pairs("person")
    file = written(tmp_path / "i.json", instances())
    with pytest.raises(ConfigError, match="one of them"):
        run.CocoJob(file, tmp_path, tmp_path)
    with pytest.raises(ConfigError, match="unicorn"):
        run.evaluate(run.CocoJob(file, tmp_path, tmp_path / "o", micro, categories=("unicorn",), setting=Setting()))
