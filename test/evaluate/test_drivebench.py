"""DriveBench: official parts and letters, official files in and out, a judge only under its own name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from language_files import drivebench_entry as entry
from language_files import endpoint, picture, write_json, write_prompts

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_core.evaluate.drivebench import data, row, run
from wamdiff2_core.evaluate.drivebench import score as scoring
from wamdiff2_core.evaluate.drivebench.score import first_letter, official_letter, parts, score
from wamdiff2_core.evaluate.judges import rubric
from wamdiff2_core.evaluate.judges.rubric import official_rubric
from wamdiff2_core.evaluate.text_answers import AskJob

OBJECT = "What is the moving status of object <c2,CAM_BACK,0.7229,0.5620>?"
DESCRIPTIONS = {
    "scene": {"key_frames": {"frame": {"key_object_infos": {"<c2,CAM_BACK,9.0,8.0>": {"Visual_description": "White"}}}}}
}


def entries() -> list[dict[str, Any]]:
    """Every part, one entry that no figure uses, and answers of all sorts."""
    return [
        entry("perception", 0, OBJECT, "A", pred=" A. Going ahead."),
        entry("perception", 0, "which?", "B", pred="It is a car, so B."),
        entry("perception", 0, "what?", "C", pred=""),
        entry("perception", 2, "what is there?", "a red car", pred="a red car"),
        entry("prediction", 3, "what will happen?", "it stops", pred="it goes"),
        entry("prediction", 0, "will it stop?", "Yes", pred="Yes"),
        entry("planning", 1, "what do you do?", "i stop"),
        entry("behavior", 0, "predict the behavior", "D", pred="The answer is D."),
    ]


LETTERS = {
    " A. Going ahead.": ("A", "A"), "It is a car, so B.": ("A", ""), "option c": ("C", "C"), "(b) turn": ("B", "B"),
    "The correct answer is D.": ("D", "D"), "Going ahead.": ("", ""), "": ("", ""), "b": ("B", "B"),
    "D or A": ("A", ""), "cab": ("", ""), "Bus ahead": ("", ""), "Answer: C": ("C", "C"),
}  # fmt: skip


@pytest.mark.parametrize("text", LETTERS)
def test_letters(text: str) -> None:
    assert (official_letter(text), first_letter(text)) == LETTERS[text]


def samples(tmp_path: Path, values: list[Any]) -> list[data.Sample]:
    return data.read_samples(write_json(tmp_path / "in.json", values))[0]


def test_parts_and_accuracies(tmp_path: Path) -> None:
    report = score(samples(tmp_path, entries()), "words")
    assert report["no_answer"] == 2 and report["choices"] == 4
    assert report["unused"] == {"prediction with tag [0] is in no figure": 1}
    perception = report["parts"]["perception MCQ"]
    assert perception["accuracy"] == pytest.approx(1 / 3)  # the official rule reads "a car" as A
    assert perception["accuracy_first_letter"] == pytest.approx(1 / 3)
    assert report["parts"]["behavior MCQ"]["accuracy"] == 1.0 and report["accuracy"] == pytest.approx(2 / 4)
    assert report["parts"]["perception VQA"]["scores"]["ROUGE-L"] == pytest.approx(1.0)
    assert report["parts"]["planning VQA"]["scores"]["ROUGE-L"] == 0.0  # no answer scores nothing and counts
    assert report["judge"] is None


def test_a_tag_of_two_goes_where_the_official_code_sends_it(tmp_path: Path) -> None:
    both = entry("perception", 0, "q", "A") | {"tag": [0, 2]}
    found, _ = parts(samples(tmp_path, [both]))
    assert [part for part, group in found.items() if group] == [("perception", "VQA")]


def test_a_truth_without_a_letter_is_in_no_accuracy(tmp_path: Path) -> None:
    values = [entry("behavior", 0, "q", "Going ahead.", pred="hm"), entry("behavior", 0, "r", "B", pred="B.")]
    report = score(samples(tmp_path, values), "words")
    made = report["parts"]["behavior MCQ"]
    assert made["truth_without_letter"] == 1 and made["choices"] == 1 and report["accuracy"] == 1.0
    alone = score(samples(tmp_path, values[:1]), "words")
    assert alone["accuracy"] is None and alone["choices"] == 0


def test_an_answer_that_is_no_text_is_a_wrong_one_not_one_less(tmp_path: Path) -> None:
    values = [entry("behavior", 0, "q", "A", pred=pred) for pred in ("A", ["A"], 5, float("nan"), None)]
    report = run.evaluate(run.DriveBenchJob(write_json(tmp_path / "in.json", values), tmp_path, tokenizer="words"))
    assert (report["choices"], report["accuracy"], report["no_answer"], report["pred_no_text"]) == (5, 0.2, 4, 2)
    assert any("2 entries have a pred that is no text" in line for line in row.measured(report, tmp_path).problems)


def test_entries_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    bad = [
        7,
        entry("behavior", 0, "q", "A") | {"question": None},
        entry("behavior", 0, "q", "A") | {"answer": float("nan")},
        entry("behavior", 0, "q", "A") | {"tag": "0"},
        entry("behavior", 0, "q", "A", image_path=["x"]),
    ]
    found, left_out = data.read_samples(write_json(tmp_path / "in.json", [*bad, entry("behavior", 0, "q", "A")]))
    assert len(found) == 1 and sum(left_out.values()) == 5 and left_out["question is no text"] == 1
    nan = entry("behavior", 0, "q", "A", pred=float("nan"))
    assert samples(tmp_path, [nan])[0].pred is None
    with pytest.raises(DataError, match="none of its 5 entries"):
        data.read_samples(write_json(tmp_path / "in.json", bad))


NO_LISTS = {"nothing": "", "cut": "[{", "an object": "{}", "null": "null", "empty": "[]", "too deep": "[" * 100_000}


@pytest.mark.parametrize("content", NO_LISTS.values(), ids=NO_LISTS)
def test_what_is_no_file_of_questions_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(content)
    with pytest.raises(DataError, match="in.json"):
        data.read_samples(tmp_path / "in.json")


def scored(folder: Path, url: str, **more: Any) -> dict[str, Any]:
    """Entries that all have an answer, judged at `url`."""
    values = [one | {"pred": one.get("pred") or "B"} for one in entries()]
    place = {"base_url": url, "model": more.pop("model", "gpt-3.5-turbo"), "parallel": 1, "pause_s": 0.0, "tries": 1}
    questions = write_json(folder / "in.json", values)
    return run.evaluate(run.DriveBenchJob(questions, folder, endpoint=place, tokenizer="words", **more))


def test_the_official_score_needs_official_model_place_prompts_and_descriptions(tmp_path: Path, monkeypatch) -> None:
    official = {
        "prompts": write_prompts(tmp_path / "evaluate"),
        "descriptions": write_json(tmp_path / "d.json", DESCRIPTIONS),
    }
    told = official_rubric(official["prompts"]).name[-9:-1]
    hashed = hashlib.sha256(official["descriptions"].read_bytes()).hexdigest()
    with endpoint(lambda number, text: (200, "Total Score: 40")) as (url, asked):
        for place, name, value in ((scoring, "OFFICIAL_HOST", "127.0.0.1"), (rubric, "OFFICIAL_FILES", (told,)),
                                   (data, "OFFICIAL_DESCRIPTIONS", hashed)):  # fmt: skip
            other = scored(tmp_path / "b", url, **official)["judge"]  # one of them is missing each time
            assert other.startswith("score by gpt-3.5-turbo at 127.0.0.1 with ")
            monkeypatch.setattr(place, name, value)
        asked.clear()
        whole = scored(tmp_path / "a", url, **official)
        assert whole["judge"] == "GPT score (gpt-3.5-turbo)"
        assert whole["parts"]["perception MCQ"]["judge"]["score"] == 40.0
        texts = [one["messages"][0]["content"] for one in asked]
        assert any(f"Q {OBJECT} looks white truth A said  A. Going ahead. for PERCEPTION_MCQ" in text for text in texts)
        assert all(text.startswith("open\n") for text in texts)
        for more in (
            {"model": "llama", **official},
            {"model": "gpt-3.5-turbo-mine", **official},
            {},
            {"prompts": official["prompts"]},
        ):
            other = scored(tmp_path / "b", url, **more)["judge"]
            assert "GPT score" not in other and other.startswith("score by ")


def test_what_the_judge_leaves_open_is_no_score(tmp_path: Path) -> None:
    def said(number: int, text: str) -> tuple[int, str]:
        return (200, "Total Score: 40") if "predict the" not in text else (500, "raw:{}")

    with endpoint(said) as (url, _):
        lost = {"scene": {"key_frames": {}}}
        report = scored(tmp_path, url, descriptions=write_json(tmp_path / "d.json", lost))
    judged = {name: part["judge"] for name, part in report["parts"].items()}
    assert judged["behavior MCQ"]["score"] is None and "500" in str(judged["behavior MCQ"]["problems"])
    assert judged["perception MCQ"]["score"] is None and "no visual description" in str(judged["perception MCQ"])
    assert judged["planning VQA"]["score"] == 40.0
    figures = {figure.name: figure for figure in row.measured(report, tmp_path).figures}
    assert figures[f"behavior MCQ {report['judge']}"].value is None
    assert "1 not judged" in figures[f"behavior MCQ {report['judge']}"].note
    report["parts"]["planning VQA"]["judge"]["not_answered"] = 1
    told = {figure.name: figure.note for figure in row.measured(report, tmp_path).figures}
    assert told[f"planning VQA {report['judge']}"] == "1 without an answer count 0"


def test_without_a_judge_there_is_no_gpt_score(tmp_path: Path) -> None:
    questions = write_json(tmp_path / "in.json", [*entries(), entries()[0]])
    measured = row.measured(run.evaluate(run.DriveBenchJob(questions, tmp_path / "out", tokenizer="words")), tmp_path)
    figures = {figure.name: figure for figure in measured.figures}
    assert figures["GPT score"].value is None and "outside judge" in figures["GPT score"].note
    assert figures["accuracy"].main and any("more than once" in line for line in measured.problems)


def test_a_checkpoint_answers_into_the_official_file(micro: Path, tmp_path: Path) -> None:
    cameras = ("CAM_FRONT", "CAM_FRONT_LEFT", "CAM_FRONT_RIGHT", "CAM_BACK")
    for folder in ("nuscenes/samples", "corruption/Fog"):
        for camera in cameras:
            picture(tmp_path / folder / camera / "1.jpg", (200, 40, 40) if "Fog" in folder else (10, 90, 90))
    shown = {camera: f"nuscenes/samples/{camera}/1.jpg" for camera in cameras}
    long = "Please select the correct answer from the following options: " + "A. The car goes. " * 30
    values = [{**one, "image_path": shown} for one in entries()] + [entry("behavior", 0, long, "A", image_path=shown)]
    values.append(entry("behavior", 0, "gone?", "A", image_path={**shown, "CAM_FRONT": "nuscenes/samples/none.jpg"}))
    questions = write_json(tmp_path / "in.json", values)

    def made(out: Path, **more: str) -> dict[str, Any]:
        ask = AskJob(micro, out / run.ROWS, Setting(steps=2))
        return run.evaluate(run.DriveBenchJob(questions, out, ask, tmp_path, tokenizer="words", **more))

    report = made(tmp_path / "clean")
    written = json.loads((tmp_path / "clean" / run.PREDICTIONS).read_text())
    assert [one["question"] for one in written] == [one["question"] for one in values]
    assert report["failures"]["picture"] == 1 and written[-1]["pred"] == "" and "input" not in report["failures"]
    assert report["no_answer"] == sum(not one["pred"] for one in written) and report["latency_ms"] > 0.0
    back = run.evaluate(run.DriveBenchJob(tmp_path / "clean" / run.PREDICTIONS, tmp_path / "back", tokenizer="words"))
    assert back["parts"] == report["parts"] and back["accuracy"] == report["accuracy"]
    picture(tmp_path / "nuscenes/samples/none.jpg")  # there now: only this question is asked
    before = (tmp_path / "clean" / run.ROWS).read_bytes()
    assert "picture" not in made(tmp_path / "clean")["failures"]
    after = (tmp_path / "clean" / run.ROWS).read_bytes()
    assert after.startswith(before) and len(after.splitlines()) == len(values)
    with pytest.raises(DataError, match="none of 10 questions could be put to the checkpoint; .*Snow"):
        made(tmp_path / "snow", corruption="Snow")
    foggy = made(tmp_path / "fog", corruption="Fog")
    assert "Fog pictures" in foggy["data"] and foggy["failures"]["picture"] == 1
    with pytest.raises(ConfigError, match="corruption"):
        made(tmp_path / "x", corruption="../Fog")
