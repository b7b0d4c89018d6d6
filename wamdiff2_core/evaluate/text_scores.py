"""BLEU, ROUGE-L and CIDEr of answers, by the library that the official evaluations use (pycocoevalcap).

Its words come from the Penn Treebank tokenizer, a Java program. Where there is no Java, a split of our own can be
asked for by name; its figures differ a little and are named so.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from wamdiff2_core.errors import ConfigError, DataError

TOKENIZERS = {"ptb": "Penn Treebank words (Java)", "words": "own split into words, not the official one"}
LIBRARY = "pycocoevalcap"
_WORD = re.compile(r"[^\W_]+(?:[-/][^\W_]+)*(?=n't\b)|n't\b|'[a-z]+\b|\d+(?:[.,]\d+)+|[^\W_]+(?:[-/_][^\W_]+)*|[^\w\s]")
_DROPPED = {"'", "`", ".", "?", "!", ",", ":", "-", ";", "(", ")", "{", "}"}


def missing(tokenizer: str = "ptb") -> list[str]:
    """What is not installed, a line each. ConfigError for a tokenizer that there is not."""
    if tokenizer not in TOKENIZERS:
        raise ConfigError(f"tokenizer: expected one of {', '.join(TOKENIZERS)}; got {tokenizer!r}")
    absent = []
    try:
        version(LIBRARY)
    except PackageNotFoundError:
        absent.append(f"{LIBRARY} is not installed (pip install 'wamdiff2[language]')")
    if tokenizer == "ptb" and shutil.which("java") is None:
        absent.append("java is not installed, which the official words need (tokenizer: words gives our own split)")
    return absent


def text_scores(predictions: Sequence[str], references: Sequence[Sequence[str]], tokenizer: str = "ptb") -> dict:
    """BLEU-1 ... BLEU-4 over the corpus, mean ROUGE-L (0 to 1) and CIDEr (0 to 10) of predictions against their
    references, one or more each. An empty prediction scores 0 and counts.

    DataError for no sample, or a sample without a reference; ConfigError if `missing` says so.
    """
    absent = missing(tokenizer)
    if absent:
        raise ConfigError("; ".join(absent))
    if not predictions or len(predictions) != len(references):
        raise DataError(f"expected as many predictions as references, got {len(predictions)} and {len(references)}")
    if not all(references):
        raise DataError(f"sample {[bool(r) for r in references].index(False)} has no reference")
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    truth = _words(references, tokenizer)
    given = _words([[text] for text in predictions], tokenizer)
    bleu, _ = Bleu(4).compute_score(truth, given, verbose=0)
    rouge, _ = Rouge().compute_score(truth, given)
    cider, _ = Cider().compute_score(truth, given)
    names = [f"BLEU-{n}" for n in range(1, 5)]
    return {**dict(zip(names, map(float, bleu), strict=True)), "ROUGE-L": float(rouge), "CIDEr": float(cider)}


def _words(texts: Sequence[Sequence[str]], tokenizer: str) -> dict[int, list[str]]:
    """Texts by number, each as words with single spaces between them."""
    flat = {k: [" ".join(text.split()) for text in several] for k, several in enumerate(texts)}
    if tokenizer == "words":
        return {k: [own_words(text) for text in several] for k, several in flat.items()}
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    made = PTBTokenizer().tokenize({k: [{"caption": text} for text in several] for k, several in flat.items()})
    counts = {k: len(several) for k, several in flat.items()}
    if {k: len(several) for k, several in made.items()} != counts:
        raise DataError("the Penn Treebank tokenizer gave back another number of lines than it got")
    return made


def own_words(text: str) -> str:
    """Lower case, split into words and signs; full stops, commas and their like are left out, as officially."""
    return " ".join(word for word in _WORD.findall(text.lower()) if word not in _DROPPED)
