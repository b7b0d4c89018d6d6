"""BLEU, ROUGE-L and CIDEr by the library, and what each answer's missing parts do to them."""

from __future__ import annotations

import shutil

import pytest

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.evaluate import text_scores as module
from wamdiff2_core.evaluate.text_scores import missing, own_words, text_scores

java = pytest.mark.skipif(shutil.which("java") is None, reason="the official words need Java")
TOKENIZERS = [pytest.param("words"), pytest.param("ptb", marks=java)]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_equal_texts_score_full_and_strange_ones_nothing(tokenizer: str) -> None:
    said = ["the car turns left at the light.", "Two people cross the wide road"]
    same = text_scores(said, [[text.upper(), "nothing of the kind"] for text in said], tokenizer)
    assert same["BLEU-4"] == pytest.approx(1.0, abs=1e-6) and same["ROUGE-L"] == pytest.approx(1.0)
    assert same["CIDEr"] > 4.0
    other = text_scores(said, [["zebra"], ["giraffe"]], tokenizer)
    assert other["BLEU-1"] < 1e-6 and other["ROUGE-L"] == 0.0 and other["CIDEr"] == 0.0


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_figures_by_hand(tokenizer: str) -> None:
    """ROUGE-L: longest common part of 3 words, precision 3/4, recall 3/5, beta 1.2. BLEU-1: 3/4 with a penalty."""
    made = text_scores(["the red car stops", ""], [["the car stops now, here"], ["yes"]], tokenizer)
    precision, recall = 3 / 4, 3 / 5
    rouge = (1 + 1.2**2) * precision * recall / (recall + 1.2**2 * precision)
    assert made["ROUGE-L"] == pytest.approx(rouge / 2)
    assert made["BLEU-1"] == pytest.approx(3 / 4 * 2.718281828 ** (1 - 6 / 4), rel=1e-4)


@java
def test_own_words_are_the_official_ones_on_plain_sentences() -> None:
    texts = ["I don't see it, it's 3.5 m away.", "Yes: a well-known bus-stop!", "", "they're A. going", "élan vital"]
    official = module._words([[text] for text in texts], "ptb")
    assert [own_words(text) for text in texts if "A." not in text] == [
        official[k][0] for k, text in enumerate(texts) if "A." not in text
    ]


def test_what_is_absent_or_wrong_is_named(monkeypatch) -> None:
    with pytest.raises(DataError, match="as many"):
        text_scores(["a"], [], "words")
    with pytest.raises(DataError, match="sample 1 has no reference"):
        text_scores(["a", "b"], [["a"], []], "words")
    with pytest.raises(ConfigError, match="tokenizer"):
        missing("best")
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    assert "java" in missing("ptb")[0] and missing("words") == []
    with pytest.raises(ConfigError, match="java"):
        text_scores(["a"], [["a"]], "ptb")
    monkeypatch.setattr(module, "LIBRARY", "no-such-library")
    assert "wamdiff2[language]" in missing("words")[0]
