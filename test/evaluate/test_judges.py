"""Judges: the official form, names that are not claimed, an endpoint that fails in every way, prompts never run."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from language_files import endpoint, judge, write_judge, write_prompts  # noqa: F401

from wamdiff2_core.errors import CheckpointError, ConfigError, DataError
from wamdiff2_core.evaluate.judges import endpoint as judging
from wamdiff2_core.evaluate.judges import lingo
from wamdiff2_core.evaluate.judges import rubric as rubrics
from wamdiff2_core.evaluate.judges.endpoint import Endpoint, EndpointJudge, score_of
from wamdiff2_core.evaluate.judges.lingo import OFFICIAL, STAND_IN, LingoJudge
from wamdiff2_core.evaluate.judges.rubric import official_rubric, own_rubric


def by_hand(folder: Path, question: str, reference: str, answer: str) -> float:
    """The logit of the published form, from the model itself."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)(
        f"[CLS]\nQuestion: {question}\nAnswer: {reference}\nStudent: {answer}", return_tensors="pt"
    )
    with torch.no_grad():
        return float(AutoModelForSequenceClassification.from_pretrained(folder).eval()(**tokens).logits[0, 0])


def test_the_judge_reads_the_published_form_and_takes_the_best_reference(judge: Path) -> None:  # noqa: F811
    question, references, answer = "Is it Raining?", ["Yes, it is. ", "no"], " NO, it is not\n"
    (verdict,) = LingoJudge(judge).verdicts([question], [references], [answer])
    each = [by_hand(judge, question, reference, "no, it is not") for reference in ("yes, it is.", "no")]
    assert verdict.logit == pytest.approx(max(each), abs=1e-5) and abs(each[0] - each[1]) > 1e-4
    assert verdict.right == (max(each) > 0.0)


def test_long_texts_are_cut_to_128_tokens(judge: Path) -> None:  # noqa: F811
    short, long = LingoJudge(judge).verdicts(["q", "q"], [["a" * 200], ["a" * 400]], ["b", "b"])
    assert short.logit == pytest.approx(long.logit, abs=1e-6)


def test_a_stand_in_never_has_the_judges_name(judge: Path, tmp_path: Path, monkeypatch) -> None:  # noqa: F811
    assert LingoJudge(judge).name == STAND_IN and "hidden_size" in LingoJudge(judge).why_not
    sizes = {"hidden_size": 32, "num_hidden_layers": 2}
    monkeypatch.setattr(lingo, "SIZES", sizes)  # of the right size
    wrong = LingoJudge(write_judge(tmp_path / "wrong", -1000.0))
    assert wrong.name == STAND_IN and "published example" in wrong.why_not
    yes = LingoJudge(write_judge(tmp_path / "yes", 1000.0))  # takes everything for right
    assert yes.name == STAND_IN and "'No, there are none' for a right answer" in yes.why_not
    monkeypatch.setattr(lingo.LingoJudge, "_best", lambda self, q, r, answer: 1.0 if answer == lingo.EXAMPLE[2] else -1)
    right = LingoJudge(tmp_path / "yes")
    assert right.name == OFFICIAL and right.why_not == "" and right.weights != wrong.weights


def test_folders_that_hold_no_judge_are_named(judge: Path, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        LingoJudge(tmp_path)
    (tmp_path / "config.json").write_text((judge / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(CheckpointError, match="safetensors"):
        LingoJudge(tmp_path)
    whole = (judge / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((judge / name).read_text())
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        LingoJudge(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(whole)
    config = json.loads((judge / "config.json").read_text()) | {"id2label": {"0": "no", "1": "yes"}, "num_labels": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError):
        LingoJudge(tmp_path)
    with pytest.raises(DataError, match="gave no number"):
        LingoJudge(write_judge(tmp_path / "nan", float("nan"))).verdicts(["q"], [["a"]], ["a"])
    with pytest.raises(CheckpointError, match="'cuda:99' is not there"):
        LingoJudge(judge, "cuda:99")
    with pytest.raises(DataError, match="no reference"):
        LingoJudge(judge).verdicts(["q"], [[]], ["a"])


def place(url: str, **more: object) -> Endpoint:
    return Endpoint(url, "some-model", pause_s=0.0, parallel=1, **more)  # type: ignore[arg-type]


def test_an_endpoint_judges_once_and_keeps_its_verdicts(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SOME_KEY", "secret-1")
    log = tmp_path / "log.jsonl"
    with endpoint(lambda number, text: (200, f"fine.\nTotal Score: {len(text)}")) as (url, asked):
        judge_there = EndpointJudge(place(url, key_env="SOME_KEY"), log)
        assert [j.score for j in judge_there.judge(["abc", "de", "abc"])] == [3, 2, 3]
        assert len(asked) == 2 and asked[0]["path"] == "/v1/chat/completions" and asked[0]["temperature"] == 0.0
        assert asked[0]["key"] == "Bearer secret-1" and asked[0]["model"] == "some-model"
        assert [j.score for j in EndpointJudge(place(url), log).judge(["de", "abc"])] == [2, 3]
        assert len(asked) == 2 and "secret" not in log.read_text()
        assert EndpointJudge(Endpoint(url, "another", pause_s=0.0), log).judge(["de"])[0].score == 2
        assert len(asked) == 3
        log.write_text('{"key": 5}\n' + log.read_text().replace('"score": 2', '"score": 200'))
        assert EndpointJudge(place(url), log).judge(["de"])[0].score == 2 and len(asked) == 4


FAILING = {
    "no score": ((200, "very good"), 1, "no 'Total Score"),
    "a score above 100": ((200, "Total Score: 300"), 1, "no 'Total Score"),
    "a score below 0": ((200, "Total Score: -5"), 1, "no 'Total Score"),
    "a score of another scale": ((200, "Total Score: 7/10"), 1, "no 'Total Score"),
    "no chat completion": ((200, "raw:{}"), 1, "no chat completion"),
    "no json": ((200, "raw:<html>"), 1, "no chat completion"),
    "no text": ((200, 'raw:{"choices":[{"message":{"content":null}}]}'), 1, "no text but NoneType"),
    "refused": ((401, "raw:{}"), 1, "answered 401"),
    "busy": ((503, "raw:{}"), 3, "answered 503"),
}


@pytest.mark.parametrize("name", FAILING)
def test_what_cannot_be_judged_is_no_number(name: str, tmp_path: Path) -> None:
    said, requests, problem = FAILING[name]
    with endpoint(lambda number, text: said) as (url, asked):
        (judged,) = EndpointJudge(place(url, tries=3), tmp_path / "log.jsonl").judge(["x"])
    assert judged.score is None and problem in judged.problem and len(asked) == requests
    assert not (tmp_path / "log.jsonl").exists()


def test_a_busy_endpoint_is_asked_again(tmp_path: Path) -> None:
    with endpoint(lambda number, text: (429, "raw:{}") if number < 3 else (200, "Total Score: 7")) as (url, asked):
        assert EndpointJudge(place(url), tmp_path / "log").judge(["x"])[0].score == 7
        assert len(asked) == 3
    gone = EndpointJudge(place(url, tries=2), tmp_path / "other").judge(["x"])[0]
    assert gone.score is None and "cannot be reached" in gone.problem


def test_an_endpoint_that_is_gone_is_not_asked_for_ever(tmp_path: Path) -> None:
    with endpoint(lambda number, text: (503, "raw:{}")) as (url, asked):
        made = EndpointJudge(place(url, tries=2), tmp_path / "log").judge([str(k) for k in range(9)])
    assert len(asked) == 6 and [one.score for one in made] == [None] * 9
    assert [one.problem.startswith("not asked") for one in made] == [False] * 3 + [True] * 6


def test_an_answer_that_drips_or_never_ends_is_given_up(tmp_path: Path, monkeypatch) -> None:
    with endpoint(lambda number, text: (200, "raw:" + "x" * 100)) as (url, _):
        monkeypatch.setattr(judging, "LARGEST_REPLY", 50)
        assert "more than 50 bytes" in EndpointJudge(place(url), tmp_path / "log").judge(["x"])[0].problem
    assert judging._whole(io.BytesIO(b"abc"), 9.0) == b"abc"  # type: ignore[arg-type]
    with pytest.raises(TimeoutError, match="no whole answer"):
        judging._whole(io.BytesIO(b"abc"), -1.0)  # type: ignore[arg-type]


def test_endpoints_that_cannot_be_are_named(monkeypatch) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    for values, message in (
        ({"base_url": "file:///etc", "model": "m"}, "http"),
        ({"base_url": "http://a", "model": ""}, "model"),
        ({"base_url": "http://a", "model": "wayveai/Lingo_Judge"}, "is a classifier"),
        ({"base_url": "http://a", "model": "m", "tries": 0}, "tries"),
        ({"base_url": "http://a", "model": "m", "key_env": "NO_KEY"}, "NO_KEY"),
        ({"base_url": "http://a", "model": "m", "api_key": "x"}, "api_key"),
    ):
        with pytest.raises(ConfigError, match=message):
            Endpoint.of(values)


def test_scores_are_read_as_written() -> None:
    texts = {"Total Score: 85": 85, "**Total Score:** 85.": 85, "Total Score: 85/100": 85, "Total Score: 0": 0,
             "Total Score: 85 out of 100": 85, "Total Score: [85]": 85, "Total Score: 85, a good answer": 85,
             "Total Score: -5": None, "Total Score: 7/10": None, "Total Score: **7** out of 10": None,
             "Total Score: 8,5": None, "Total Score: 5/1000": None, "Total Score: <85>": None,
             "Total Score: 85.5": None, "Total Score: 1000": None, "Score: 3": None, "": None}  # fmt: skip
    assert {text: score_of(text) for text in texts} == texts


def test_prompts_are_read_and_never_run(tmp_path: Path, monkeypatch) -> None:
    path = write_prompts(tmp_path)
    rubric = official_rubric(path)
    assert not rubric.official and rubric.name.startswith("prompts that are not DriveBench's (")
    monkeypatch.setattr(rubrics, "OFFICIAL_FILES", (rubric.name[-9:-1],))
    rubric = official_rubric(path)
    assert rubric.official and rubric.name.startswith("DriveBench's prompts (")
    made = rubric.prompt("PLANNING_VQA", "a {GT} b", "truth", "{x}", None)
    assert made == "open\nQ a {GT} b looks  truth truth said {x} for PLANNING_VQA"
    assert not own_rubric().official and "{" not in own_rubric().prompt("BEHAVIOR_MCQ", "q", "t", "a", "d")
    path.write_text(path.read_text().replace("BEHAVIOR_MCQ_PROMPT", "OTHER"))
    with pytest.raises(DataError, match="BEHAVIOR_MCQ_PROMPT"):
        official_rubric(path)
    path.write_text("a = (")
    with pytest.raises(DataError, match="evaluate/"):
        official_rubric(path)
