"""LingoQA: official files in and out, every question counts, broken files are named."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from language_files import LINGO, endpoint, judge, lingo_folder, lingo_rows, parquet  # noqa: F401

from wamdiff2_core.errors import CheckpointError, ConfigError, DataError
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_core.evaluate.judges.lingo import STAND_IN, LingoJudge
from wamdiff2_core.evaluate.lingoqa import data, row, run
from wamdiff2_core.evaluate.text_answers import AskJob

KEYS = [(q, s) for q, s, _, _ in LINGO]


@pytest.fixture(scope="module")
def lingo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lingo_folder(tmp_path_factory.mktemp("lingo"))


def predictions(path: Path, rows: list[tuple[str, ...]], heading: str = "question_id,segment_id,answer") -> Path:
    path.write_text("\n".join([heading, *(",".join(f'"{cell}"' for cell in row) for row in rows)]) + "\n")
    return path


def scored(lingo: Path, out: Path, rows: list[tuple[str, ...]], **more: Any) -> dict[str, Any]:
    file = predictions(out / "given.csv", rows)
    return run.evaluate(run.LingoJob(lingo / "val.parquet", out, predictions=file, tokenizer="words", **more))


def test_references_are_gathered_by_question(lingo: Path) -> None:
    samples, left_out = data.read_references(lingo / "val.parquet")
    assert [sample.key for sample in samples] == KEYS and not left_out
    assert samples[0].references == ("Yes, one.", "yes there is one pedestrian")
    assert samples[0].images[-1] == "images/s1/1.jpg"


def test_every_question_counts_and_the_judge_has_its_own_name(lingo: Path, judge: Path, tmp_path: Path) -> None:  # noqa: F811
    given = [("q1", "s1", "Yes, ONE"), ("q2", "s1", ""), ("q9", "s9", "what?")]
    report = scored(lingo, tmp_path, given, judge=judge)
    verdict = LingoJudge(judge).verdicts([LINGO[0][2]], [LINGO[0][3]], ["yes, one"])[0]
    counts = {name: report[name] for name in ("questions", "answered", "no_answer", "unknown_predictions")}
    assert counts == {"questions": 3, "answered": 1, "no_answer": 2, "unknown_predictions": 1}
    judged = report["judge"]
    assert judged["name"] == STAND_IN and judged["right"] == verdict.right
    assert judged["share_right"] == verdict.right / 3 and judged["share_right_matched"] == float(verdict.right)
    rows = list(csv.DictReader((tmp_path / run.SCORES).open()))
    assert [r["logit"] == "" for r in rows] == [False, True, True]
    assert float(rows[0]["logit"]) == pytest.approx(verdict.logit, abs=1e-5)
    figures = {figure.name: figure for figure in row.measured(report, tmp_path).figures}
    assert "Lingo-Judge" not in figures and figures[STAND_IN].main and "hidden_size" in figures[STAND_IN].note
    assert "3 questions, not the 500" in report["data"]


def test_without_a_judge_there_is_no_number_under_its_name(lingo: Path, tmp_path: Path) -> None:
    report = scored(lingo, tmp_path, [(*key, "no") for key in KEYS])
    figures = {figure.name: figure for figure in row.measured(report, tmp_path).figures}
    assert figures["Lingo-Judge"].value is None and "no folder" in figures["Lingo-Judge"].note
    assert 0.0 < report["text"]["scores"]["ROUGE-L"] < 1.0 and figures["ROUGE-L"].main


def test_an_endpoint_that_fails_once_leaves_no_score(lingo: Path, tmp_path: Path) -> None:
    rows = [(*key, "no") for key in KEYS]
    with endpoint(lambda number, text: (200, "Total Score: 60") if number != 2 else (200, "hm")) as (url, asked):
        entry = {"base_url": url, "model": "m", "parallel": 1, "pause_s": 0.0}
        report = scored(lingo, tmp_path, rows, endpoint=entry)
        assert report["endpoint"]["score"] is None and report["endpoint"]["not_judged"] == 1 and len(asked) == 3
        again = scored(lingo, tmp_path, rows, endpoint=entry)
    assert again["endpoint"]["score"] == 60.0 and len(asked) == 4  # only what was not judged is asked again
    assert again["endpoint"]["name"] == "m at 127.0.0.1 with wamdiff2's rubric"


def job(lingo: Path, out: Path, checkpoint: Path, **more: Any) -> run.LingoJob:
    asking = AskJob(checkpoint, out / run.ROWS, Setting(steps=2), fill=more.pop("fill", "black"), **more)
    return run.LingoJob(lingo / "val.parquet", out, asking, lingo, tokenizer="words")


def test_a_checkpoint_answers_and_goes_on_where_it_was_ended(lingo: Path, micro: Path, tmp_path: Path) -> None:
    first = run.evaluate(job(lingo, tmp_path, micro))
    lines = (tmp_path / run.ROWS).read_text().splitlines(keepends=True)
    made = list(csv.DictReader((tmp_path / run.PREDICTIONS).open()))
    assert [(r["question_id"], r["segment_id"]) for r in made] == KEYS and len(lines) == 3
    assert first["black"] == 3 and first["answered"] + sum(first["failures"].values()) == 3
    (tmp_path / run.ROWS).write_text("".join(lines[:2]) + lines[2][:30])  # as a kill leaves it
    again = run.evaluate(job(lingo, tmp_path, micro))
    after = (tmp_path / run.ROWS).read_text().splitlines(keepends=True)
    assert after[:2] == lines[:2] and len(after) == 3
    assert {k: v for k, v in again.items() if k != "latency_ms"} == {
        k: v for k, v in first.items() if k != "latency_ms"
    }
    back = data.read_predictions(tmp_path / run.PREDICTIONS)
    assert sum(answer is None for answer in back.values()) == first["no_answer"]


def test_two_processes_answer_the_same(lingo: Path, micro: Path, tmp_path: Path) -> None:
    one = run.evaluate(job(lingo, tmp_path / "one", micro))
    two = run.evaluate(job(lingo, tmp_path / "two", micro, workers=2))
    texts = [(tmp_path / name / run.PREDICTIONS).read_text() for name in ("one", "two")]
    assert texts[0] == texts[1] and one["forwards"] == two["forwards"]


def test_missing_cameras_and_pictures_fail_by_name(lingo: Path, micro: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none of 3 questions could be put to the checkpoint"):
        run.evaluate(job(lingo, tmp_path / "a", micro, fill="refuse"))
    rows = lingo_rows()
    rows[0]["images"] = rows[1]["images"] = ["images/none.jpg"]
    rows[2]["images"] = rows[3]["images"] = []
    (tmp_path / "images").symlink_to(lingo / "images")
    parquet(tmp_path / "val.parquet", rows)
    made = run.evaluate(job(tmp_path, tmp_path / "b", micro))
    assert made["failures"]["picture"] == 1 and made["failures"]["input"] == 1 and made["black"] == 1


def test_broken_references_are_named_or_counted(lingo: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    whole = (lingo / "val.parquet").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"PAR1", b"question_id,answer"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="Parquet"):
            data.read_references(path)
    with pytest.raises(DataError, match="Parquet"):
        data.read_references(tmp_path / "none.parquet")
    with pytest.raises(DataError, match="missing: segment_id, answer"):
        data.read_references(parquet(path, [{"question_id": "a", "question": "b"}]))
    rows = lingo_rows()
    rows[0]["answer"] = None
    rows[1]["answer"] = "  "
    samples, left_out = data.read_references(parquet(path, rows))
    assert left_out == {"a text is missing": 2} and [sample.key for sample in samples] == KEYS[1:]
    with pytest.raises(DataError, match="none of its rows"):
        data.read_references(parquet(path, rows[:1] + [{**rows[1], "answer": ""}]))
    rows = lingo_rows()
    rows[1]["question"] = "another?"
    with pytest.raises(DataError, match="two questions"):
        data.read_references(parquet(path, rows))
    numbers = [{**r, "answer": float("nan")} for r in lingo_rows()]
    with pytest.raises(DataError, match="none of its rows"):
        data.read_references(parquet(path, numbers))


BROKEN = {
    "no such file": (None, "CSV"),
    "another heading": ("a,b\n1,2\n", "missing: question_id"),
    "not text": (b"\xff\xfe\x00\x80", "CSV"),
    "nothing": ("", "missing: question_id"),
    "twice": ("question_id,segment_id,answer\na,b,c\na,b,d\n", "row 3: question a of segment b is there twice"),
    "a cell too few": ("question_id,segment_id,answer\na,b\n", "row 2"),
    "a cell too many": ("question_id,segment_id,answer\na,b,c,d\n", "row 2"),
    "cut in a quote": ('question_id,segment_id,answer\na,b,"c', "CSV"),
    "no id": ("question_id,segment_id,answer\n,b,c\n", "row 2"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_predictions_are_named(name: str, tmp_path: Path) -> None:
    content, message = BROKEN[name]
    path = tmp_path / "predictions.csv"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message):
        data.read_predictions(path)


def test_jobs_that_cannot_be_are_named(lingo: Path, micro: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="either predictions"):
        run.LingoJob(lingo / "val.parquet", tmp_path)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        AskJob(tmp_path, tmp_path / "rows")
    with pytest.raises(ConfigError, match="fill"):
        AskJob(micro, tmp_path / "rows", fill="white")
    (tmp_path / run.ROWS).write_text('{"key": 1}\nno json\n')
    with pytest.raises(DataError, match="delete it"):
        run.evaluate(job(lingo, tmp_path, micro))
