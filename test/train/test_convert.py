"""Converters: what they write is worked out by hand here, and reads back as training samples."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from shards import write_shard
from stream_files import as_kind, picture

from training.convert import bench2drive, navsim, world
from training.convert.__main__ import main
from training.convert.common import local
from wamdiff2_core.distill.stream.conversations import BadSample, Conversations, Tally
from wamdiff2_core.distill.stream.encode import Encoder
from wamdiff2_core.errors import DataError

EAST, NORTH = math.pi / 2, 0.0  # of a compass: +x and -y of CARLA's world


def test_points_in_the_frame_of_a_pose():
    points = local(np.array([[3.0, 5.0], [2.0, 4.0]]), (2.0, 3.0), math.pi / 2)
    np.testing.assert_allclose(points, [[2.0, -1.0], [1.0, 0.0]], atol=1e-12)


# NAVSIM


def scene(**changes) -> dict:
    future = [[4.0 * k, 0.25 * k, 0.1] for k in range(1, 9)]
    return {
        "token": "t1", "image": "front/t1.jpg", "velocity": [8.0, 0.0], "acceleration": [0.5, -0.25],
        "command": [1, 0, 0, 0], "future": future, **changes,
    }  # fmt: skip


def said(sample: dict) -> tuple[str, str]:
    human, gpt = sample["conversations"]
    assert (human["from"], gpt["from"]) == ("human", "gpt")
    return human["value"], gpt["value"]


def test_a_navsim_scene():
    sample = navsim.scene_sample(scene())
    human, answer = said(sample)
    assert sample["image"] == ["front/t1.jpg"] and sample["id"] == "navsim_t1" and "task" not in sample
    assert human.count("<image>") == 1 and "navigation information is: left" in human
    assert "velocity is: (8.00,0.00) and current accelerate is: (0.50,-0.25)" in human
    assert answer == "4.00,0.25,8.00,0.50,12.00,0.75,16.00,1.00,20.00,1.25,24.00,1.50,28.00,1.75,32.00,2.00"
    fixed = navsim.scene_sample(scene(), "fixed")
    human, answer = said(fixed)
    assert human == "<image>\nvelocity +08.00 +00.00 acceleration +00.50 -00.25; turn left now; plan"
    assert answer.startswith("04.00+00.25 08.00+00.50 ") and fixed["task"] == "plan"


@pytest.mark.parametrize(
    ("command", "word"),
    [([0, 1, 0, 0], "straight"), ([0, 0, 1, 0], "right"), ("right", "right"), ("forward", "straight")],
)
def test_navsim_commands(command, word):
    human, _ = said(navsim.scene_sample(scene(command=command)))
    assert f"navigation information is: {word}\n" in human


def test_navsim_scenes_of_the_other_layout():
    other = {"id": "g1", "ego": {"velocity": [8.0, 0.0], "acceleration": [0.0, 0.0]}, "human": scene()["future"]}
    sample = navsim.scene_sample(other, command="straight", images="blobs/{id}.jpg")
    assert sample["image"] == ["blobs/g1.jpg"] and said(sample)[1].startswith("4.00,0.25,")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"future": scene()["future"][:7]}, "no future"),
        ({"future": [[float("nan"), 0.0]] * 8}, "no future"),
        ({"future": [[60.0 * k, 0.0] for k in range(1, 9)]}, "implausible motion"),
        ({"velocity": [8.0]}, "no ego state"),
        ({"velocity": [float("inf"), 0.0]}, "no ego state"),
        ({"acceleration": None}, "no ego state"),
        ({"command": [0, 0, 0, 1]}, "no command"),
        ({"command": "u-turn"}, "no command"),
        ({"command": None}, "no command"),
        ({"image": None}, "no image"),
        ({"token": 5}, "no token"),
    ],
)
def test_bad_navsim_scenes_are_counted_and_named(tmp_path, change, reason):
    (tmp_path / "s.json").write_text(json.dumps([scene(), scene(**change)]))
    tally = Tally()
    assert len(list(navsim.convert([tmp_path / "s.json"], tally))) == 1
    assert tally.bad == {reason: 1} and tally.bad_names[0].startswith(f"s.json[1]: {reason}")


def test_unknown_commands_take_the_one_given(tmp_path):
    file = tmp_path / "s.json"
    file.write_text(json.dumps({"scenes": [scene(command=[0, 0, 0, 1]), scene(command="unknown"), "x"]}))
    tally = Tally()
    got = list(navsim.convert([file], tally, command="follow"))
    assert len(got) == 2 and tally.bad == {"no object": 1}
    with pytest.raises(DataError, match="command: expected one of left,"):
        list(navsim.convert([file], tally, command="back"))


# Bench2Drive


def clip(root: Path, frames: int = 50, theta: float = NORTH, name: str = "A_Town01_Route1_Weather1", **changes) -> Path:
    """North along CARLA's -y at 8 m/s, drifting 2 m/s to the right (+x); annotations 10 a second."""
    folder = root / name
    (folder / "anno").mkdir(parents=True)
    for number in range(frames):
        anno = {
            "x": 100.0 + 0.2 * number, "y": 50.0 - 0.8 * number, "theta": theta, "speed": 8.0, "command_near": 2,
            "x_command_near": 100.0 + 0.2 * number, "y_command_near": 50.0 - 0.8 * number - 20.0,
            "acceleration": [1.5, 2.0, 9.8], "reverse": False, **changes,
        }  # fmt: skip
        with gzip.open(folder / "anno" / f"{number:05d}.json.gz", "wt") as file:
            json.dump(anno, file)
        picture(folder / "camera" / "rgb_front" / f"{number:05d}.jpg", (64, 32))
    return folder


def test_a_bench2drive_frame(tmp_path):
    clip(tmp_path)
    tally = Tally()
    got = list(bench2drive.convert(tmp_path, tally))
    # of frames 0, 5, ... 45 only two have 40 more behind them
    assert [sample["id"] for sample in got] == [f"bench2drive_A_Town01_Route1_Weather1/{n:05d}" for n in (0, 5)]
    human, answer = said(got[0])
    assert got[0]["image"] == ["A_Town01_Route1_Weather1/camera/rgb_front/00000.jpg"]
    assert "navigation information is: right" in human
    assert "velocity is: (8.00,0.00) and current accelerate is: (1.50,-2.00)" in human
    # in half a second 4 m forward (-y) and 1 m to the right (+x), which is -1 m to the left
    assert answer == "4.00,-1.00,8.00,-2.00,12.00,-3.00,16.00,-4.00,20.00,-5.00,24.00,-6.00,28.00,-7.00,32.00,-8.00"
    assert tally.bad == {"end of clip": 8}


@pytest.mark.parametrize(
    ("theta", "yaw"),
    [
        (NORTH, math.pi / 2),
        (EAST, 0.0),
        (math.pi, -math.pi / 2),
        (3 * math.pi / 2, -math.pi),
        (2 * math.pi, math.pi / 2),
    ],
)
def test_the_compass_as_a_right_handed_yaw(theta, yaw):
    here = bench2drive.pose({"x": 1.0, "y": 2.0, "theta": theta})
    assert (here.x, here.y) == (1.0, -2.0)
    assert math.cos(here.yaw - yaw) == pytest.approx(1.0) and abs(here.yaw) <= math.pi


def test_bench2drive_commands():
    here = bench2drive.Pose(0.0, 0.0, 0.0)
    near = {"x_command_near": 30.0, "y_command_near": -40.0}
    words = {
        -1: "follow the road", 1: "turn left in 50 m", 2: "turn right in 50 m", 3: "go straight in 50 m",
        4: "follow the road", 5: "change to the left lane", 6: "change to the right lane",
    }  # fmt: skip
    for value, expected in words.items():
        assert bench2drive.instruction({"command_near": value, **near}, here) == expected
    for value in (0, 7, None, True, "1"):
        with pytest.raises(BadSample, match="no command"):
            bench2drive.instruction({"command_near": value, **near}, here)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"theta": None}, "no heading"),
        ({"theta": float("nan")}, "no heading"),
        ({"speed": None}, "no speed"),
        ({"x": None}, "no position"),
        ({"acceleration": []}, "no acceleration"),
        ({"command_near": 9}, "no command"),
        ({"theta": math.pi}, "heading against motion"),
        ({"theta": EAST}, "heading against motion"),
        ({"speed": 30.0}, "implausible motion"),
    ],
)
def test_bad_bench2drive_frames_are_counted(tmp_path, changes, reason):
    clip(tmp_path, 41, **changes)
    tally = Tally()
    assert list(bench2drive.convert(tmp_path, tally, every=41)) == []
    assert tally.bad == {reason: 1} and tally.bad_names[0].startswith("A_Town01_Route1_Weather1/00000: ")


def test_holes_in_a_clip(tmp_path):
    folder = clip(tmp_path, 52)
    (folder / "anno" / "00007.json.gz").write_bytes(b"no gzip")
    (folder / "anno" / "00045.json.gz").unlink()
    (folder / "camera" / "rgb_front" / "00010.jpg").unlink()
    tally = Tally()
    got = list(bench2drive.convert(tmp_path, tally, every=1))
    # frames 0 to 11 have 4 s of future; 2 and 7 need frame 7, 5 needs frame 45, 10 has no image
    names = [int(sample["id"][-5:]) for sample in got]
    assert names == [0, 1, 3, 4, 6, 8, 9, 11]
    assert tally.bad == {"unreadable annotation": 2, "missing annotation": 1, "missing image": 1, "end of clip": 39}


def test_rates_and_empty_folders(tmp_path):
    with pytest.raises(DataError, match="expected clips with anno"):
        list(bench2drive.convert(tmp_path, Tally()))
    clip(tmp_path, 9)
    with pytest.raises(DataError, match="rate: expected a multiple of 2 frames a second, got 5"):
        list(bench2drive.convert(tmp_path, Tally(), rate=5))
    (sample,) = bench2drive.convert(tmp_path, Tally(), rate=2)  # a waypoint from each frame
    assert said(sample)[1].startswith("0.80,-0.20,1.60,-0.40,")


# our world


def test_shards_in_one_file_as_they_are(tmp_path, micro_folder):
    for number in (1, 2):
        write_shard(tmp_path, number, 3)
    out = tmp_path / "all.json"
    assert main(["world", str(tmp_path), "--out", str(out), "--holdout", "2"]) == 0
    data, encoder = Conversations([out]), Encoder(micro_folder, 1024)
    assert len(data) == 12
    encoded = [encoder(data[number]) for number in range(12)]
    assert [sample.task for sample in encoded[:4]] == [0, 1, 2, 2]
    assert encoded[0].keys == encoded[3].keys and len(encoded[0].images) == 3
    assert data[0].images[0] == tmp_path / "shard_00001" / "images" / "0000_0.jpg"


def test_shards_in_upstreams_words(tmp_path, micro_folder):
    folder = write_shard(tmp_path, 1, 1)
    samples = json.loads((folder / "samples.json").read_text())
    samples[0]["conversations"][0]["value"] = (
        "<image>\n<image>\n<image>\nvelocity +05.50 +00.00 acceleration -00.25 +01.00; turn left in 20 m; plan"
    )
    answer = " ".join(f"{2.5 * k:05.2f}-{0.5 * k:05.2f}" for k in range(1, 9))
    samples[0]["conversations"][1]["value"] = answer
    samples[1]["conversations"][1]["value"] = "car 100200 300400;light 010020 030040;"
    samples.append({**samples[0], "conversations": [samples[0]["conversations"][0], {"from": "gpt", "value": "2.5"}]})
    samples.append({key: value for key, value in samples[2].items() if key != "task"})
    (folder / "samples.json").write_text(json.dumps(samples))
    tally = Tally()
    plan_, detect_, first, _ = list(world.convert(tmp_path, tally, "upstream"))
    human, answer = said(plan_)
    assert "navigation information is: left" in human
    assert "velocity is: (5.50,0.00) and current accelerate is: (-0.25,1.00)" in human
    assert answer == "2.50,-0.50,5.00,-1.00,7.50,-1.50,10.00,-2.00,12.50,-2.50,15.00,-3.00,17.50,-3.50,20.00,-4.00"
    assert plan_["image"] == ["shard_00001/images/0000_0.jpg"] and "task" not in plan_
    assert json.loads(said(detect_)[1]) == [
        {"bbox_2d": [100, 200, 300, 400], "label": "car"},
        {"bbox_2d": [10, 20, 30, 40], "label": "light"},
    ]
    assert said(first)[0] == "<image>\nhow many cars are there?"
    assert tally.bad == {"not in the fixed format": 1, "no task": 1}
    only = list(world.convert(tmp_path, Tally(), "as_is", tasks=("ask",)))
    assert len(only) == 2 and all(sample["task"] == "ask" for sample in only)


# the command


def test_the_command_line(tmp_path, capsys, micro_folder):
    clip(tmp_path / "clips")
    assert main(["bench2drive", str(tmp_path / "clips"), "--out", str(tmp_path / "clips" / "b.jsonl")]) == 0
    printed = capsys.readouterr()
    assert "b.jsonl: 2 samples; 8 bad samples (8 end of clip), the first: A_Town01" in printed.out
    assert printed.err.count("end of clip") == 8
    plain = as_kind(micro_folder, "qwen3_vl", tmp_path / "plain")
    data = Conversations([tmp_path / "clips" / "b.jsonl"])
    assert len(data) == 2 and Encoder(plain, 1024)(data[1]).images[0].shape == (96, 160, 3)

    (tmp_path / "s.json").write_text(json.dumps([scene(), scene(command=None)]))
    assert main(["navsim", str(tmp_path / "s.json"), "--out", str(tmp_path / "n.json"), "--form", "fixed"]) == 0
    assert len(json.loads((tmp_path / "n.json").read_text())) == 1

    assert main(["navsim", str(tmp_path / "gone.json"), "--out", str(tmp_path / "o.json")]) == 1
    assert "error: " in capsys.readouterr().err and not list(tmp_path.glob("*o.json*"))
    (tmp_path / "s.json").write_text(json.dumps([scene(command=None)]))
    assert main(["navsim", str(tmp_path / "s.json"), "--out", str(tmp_path / "o.json")]) == 1
    assert json.loads((tmp_path / "o.json").read_text()) == []
