"""LingoQA's judge: a text classifier that reads question, reference and answer, loaded from a folder on this machine.

Whether the folder holds the official judge is checked, not believed: the sizes of its model and its published example.
Anything else judges too, under another name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import CheckpointError, DataError

OFFICIAL = "Lingo-Judge"
STAND_IN = "text classifier that is not Lingo-Judge"
MAX_TOKENS = 128
ARCHITECTURE = "DebertaV2ForSequenceClassification"
SIZES = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 128100}
# The example that is published with the judge: an answer that it takes for right.
EXAMPLE = ("Are there any pedestrians crossing the road? If yes, how many?", "1", "Yes, there is one")
WRONG = (
    "No, there are none",
    "The traffic light is green",
)  # answers to it that no judge of its quality takes for right


@dataclass(frozen=True)
class Verdict:
    """logit: of the reference that fits the answer best; right: it is above 0."""

    logit: float

    @property
    def right(self) -> bool:
        return self.logit > 0.0


class LingoJudge:
    """A classifier with one output, in evaluation mode.

    name: `Lingo-Judge` if the folder passes the checks, else `STAND_IN`; why_not: which check it failed.
    weights: sha256 of its weight files, 16 digits.
    """

    def __init__(self, folder: Path | str, device: str = "cpu") -> None:
        """CheckpointError if the folder holds no such classifier in safetensors."""
        from safetensors import SafetensorError
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        from wamdiff2_core.model.checkpoint import torch_device

        self.folder = Path(folder)
        self._check_files()
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
            self._model, info = AutoModelForSequenceClassification.from_pretrained(
                self.folder, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"{self.folder}: cannot be loaded as a judge: {error}") from error
        self._check_model(info)
        self._model = self._model.to(torch_device(device)).eval()
        self.weights = _sha256(self.folder)
        self.why_not = self._difference()
        self.name = STAND_IN if self.why_not else OFFICIAL

    def verdicts(
        self, questions: Sequence[str], references: Sequence[Sequence[str]], answers: Sequence[str]
    ) -> list[Verdict]:
        """A verdict per answer. Official form: answers and references in lower case without outer spaces, the question
        as it is. DataError for a question without a reference, or a judge that gives no number.
        """
        return [Verdict(self._best(*sample)) for sample in zip(questions, references, answers, strict=True)]

    def _best(self, question: str, references: Sequence[str], answer: str) -> float:
        import torch

        if not references:
            raise DataError(f"question {question!r} has no reference")
        start = self._tokenizer.cls_token
        said = answer.lower().strip()
        texts = [f"{start}\nQuestion: {question}\nAnswer: {ref.lower().strip()}\nStudent: {said}" for ref in references]
        tokens = self._tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=MAX_TOKENS)
        with torch.inference_mode():
            logits = self._model(**{name: part.to(self._model.device) for name, part in tokens.items()}).logits
        best = float(logits.squeeze(-1).float().max())
        if best != best:
            raise DataError(f"{self.folder}: the judge gave no number for question {question!r}")
        return best

    def _check_files(self) -> None:
        if not (self.folder / "config.json").is_file():
            raise CheckpointError(f"{self.folder} holds no judge: it has no config.json")
        if not list(self.folder.glob("*.safetensors")):
            raise CheckpointError(f"{self.folder}: expected weights in safetensors, found none (.bin files run code)")

    def _check_model(self, info: dict[str, Any]) -> None:
        kind, labels = type(self._model).__name__, self._model.config.num_labels
        if kind != ARCHITECTURE or labels != 1:
            raise CheckpointError(f"{self.folder}: expected {ARCHITECTURE} with one output, got {kind} with {labels}")
        if info["missing_keys"]:
            raise CheckpointError(f"{self.folder}: weights are missing: {', '.join(sorted(info['missing_keys'])[:5])}")

    def _difference(self) -> str:
        """What tells this judge from the official one; empty: nothing that can be seen here."""
        for name, value in SIZES.items():
            if getattr(self._model.config, name) != value:
                return f"{name} is {getattr(self._model.config, name)}, that of Lingo-Judge is {value}"
        question, reference, answer = EXAMPLE
        if not self._best(question, [reference], answer) > 0.0:
            return "it takes the answer of the published example for wrong"
        for wrong in WRONG:
            if self._best(question, [reference], wrong) > 0.0:
                return f"it takes {wrong!r} for a right answer to the published example"
        return ""


def _sha256(folder: Path) -> str:
    seen = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as source:
            seen.update(hashlib.file_digest(source, "sha256").digest())
    return seen.hexdigest()[:16]
