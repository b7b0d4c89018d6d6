"""Task ask: a question in words, an answer in words."""

from __future__ import annotations

from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import Answer, Failure, FailureKind, Scene
from wamdiff2_core.tasks.grammar import AnswerText, Tokens, as_answer, not_parsed, unknown_form

FORMS = ("text",)
MAX_CHARACTERS = 2000


def prompt(scene: Scene) -> str:
    """The human text after the images; the scene must carry a question."""
    if scene.question is None or not scene.question.strip():
        raise DataError("task ask: expected a scene with a question, got none")
    return prompt_text(scene.question)


def prompt_text(question: str) -> str:
    return f"{question.strip()}; answer"


def upstream_prompt(scene: Scene) -> str:
    """Upstream checkpoints get the image and the bare question."""
    return "<image>\n" + prompt(scene).removesuffix("; answer")


def serialise(text: str, form: str = "text") -> str:
    """The answer on one line."""
    if form != "text":
        raise unknown_form("ask", form, FORMS)
    return " ".join(text.split())


def parse(answer: AnswerText | str, form: str = "text", question: str = "") -> Answer | Failure:
    """Any non-empty printable text is an answer."""
    if form != "text":
        raise unknown_form("ask", form, FORMS)
    answer = as_answer(answer)
    text = " ".join(answer.text.split())
    if not text:
        return Failure(FailureKind.EMPTY, "the answer holds no words", answer.text)
    if "\ufffd" in text or len(text) > MAX_CHARACTERS or not text.isprintable():
        return not_parsed(f"printable text of at most {MAX_CHARACTERS} characters", answer.text)
    return Answer(question, text, answer.confidence(0, len(answer.text)))


def allowed(tokenizer: Tokens, form: str = "text") -> tuple[tuple[int, ...] | None, ...] | None:
    """Words are free: no scaffold."""
    return None


def ranks(form: str = "text") -> tuple[int, ...] | None:
    """Words have no order but that of their probabilities."""
    return None
