"""What a judge is asked: DriveBench's own prompts, read from its file, or a short rubric of ours under its own name."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wamdiff2_core.errors import DataError

# What the files of DriveBench's repository hash to, in both of its versions: the name is theirs alone.
OFFICIAL_FILES = ("5f13aacd", "55dc2c6f")
NAMES = ("PERCEPTION_MCQ", "PERCEPTION_VQA", "PREDICTION_VQA", "PLANNING_VQA", "BEHAVIOR_MCQ")
OWN_TEXT = """Rate the predicted answer to a driver's question from 0 to 100: how far does it say what the
correct one says? 100: nothing is missing, wrong or added. 0: nothing of it is right. Take points for wrong objects,
places, states, reasons and actions; style does not count.

Question: "{QUESTION}"
What the object looks like, if known: "{DESC}"
Correct answer: "{GT}"
Predicted answer: "{PRED}"

End with one line of this form, a whole number in it:
Total Score: """


@dataclass(frozen=True)
class Rubric:
    """Prompts by name (`NAMES`). name: what figures made with it are called after. opening: said before each prompt."""

    name: str
    texts: Mapping[str, str]
    opening: str = ""
    official: bool = False

    def prompt(self, which: str, question: str, truth: str, answer: str, description: str | None) -> str:
        """The prompt with its places filled in; braces in the texts stay as they are."""
        text = self.texts[which]
        places = {"QUESTION": question, "GT": truth, "PRED": answer, "DESC": description or ""}
        parts = text.split("{")
        filled = [f"{self.opening}\n{parts[0]}" if self.opening else parts[0]]
        for part in parts[1:]:
            name, brace, rest = part.partition("}")
            filled.append(places[name] + rest if brace and name in places else "{" + part)
        return "".join(filled)


def own_rubric() -> Rubric:
    """Ours, the same for every kind of question."""
    return Rubric("wamdiff2's rubric", dict.fromkeys(NAMES, OWN_TEXT))


def official_rubric(path: Path) -> Rubric:
    """Prompts out of DriveBench's `evaluate/prompts.py`, and the opening out of `request.py` beside it; both are read
    and never run. DataError if they are other files.

    The name holds the files' hash: the prompts are part of the measure. Others of the same form are not `official`.
    """
    source, tree = _parsed(path)
    beside, request = _parsed(path.with_name("request.py"))
    texts = {name.removesuffix("_PROMPT"): text for name, text in _texts(tree)}
    absent = [name for name in NAMES if name not in texts]
    if absent:
        raise DataError(f"{path}: expected texts named {', '.join(f'{name}_PROMPT' for name in absent)}, found none")
    for name in NAMES:
        if any(place not in texts[name] for place in ("{QUESTION}", "{GT}", "{PRED}")):
            raise DataError(f"{path}: {name}_PROMPT: expected the places {{QUESTION}}, {{GT}} and {{PRED}} in it")
    openings = [text for name, text in _texts(request) if name == "system_message"]
    if len(openings) != 1:
        raise DataError(f"{path.with_name('request.py')}: expected one text system_message, found {len(openings)}")
    digest = hashlib.sha256((source + beside).encode()).hexdigest()[:8]
    official = digest in OFFICIAL_FILES
    name = f"DriveBench's prompts ({digest})" if official else f"prompts that are not DriveBench's ({digest})"
    return Rubric(name, {name: texts[name] for name in NAMES}, openings[0], official)


def _parsed(path: Path) -> tuple[str, ast.Module]:
    try:
        source = path.read_text(encoding="utf-8")
        return source, ast.parse(source)
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: expected a file of DriveBench's folder evaluate/: {error}") from error


def _texts(tree: ast.Module) -> list[tuple[str, str]]:
    """(name, text) of all texts that are given a name."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found += [(target.id, node.value.value) for target in node.targets if isinstance(target, ast.Name)]
    return found
