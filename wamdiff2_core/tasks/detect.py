"""Task detect: what is in front, as labelled boxes in relative units of the front camera's image.

Form "fixed": records of 16 tokens, `car 123456 234567;` = label, x1 y1 (three digits each), x2 y2; nothing between
records; largest box first, at most six; nothing at all means that nothing is there. Form "qwen3vl_json": Qwen3-VL's
list `[{"bbox_2d": [x1, y1, x2, y2], "label": "car"}]`, 0-1000.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import Box, Detections, Failure
from wamdiff2_core.tasks.grammar import AnswerText, Tokens, as_answer, not_parsed, out_of_range, unknown_form

FORMS = ("fixed", "qwen3vl_json")
LABELS = ("car", "truck", "pedestrian", "cyclist", "light")
MAX_BOXES = 6
RECORD_TOKENS = 16
PROMPT = "detect"
UPSTREAM_PROMPT = (
    "<image>\nDetect every car, truck, pedestrian, cyclist and traffic light facing us in the image. "
    'Answer as JSON: [{"bbox_2d": [x1, y1, x2, y2], "label": "car"}].'
)

_RECORD = re.compile(rf"({'|'.join(LABELS)}) ([0-9]{{3}})([0-9]{{3}}) ([0-9]{{3}})([0-9]{{3}});", re.ASCII)
_INT = r"\s{0,4}([0-9]{1,4})\s{0,4}"
_LABEL = r'"label"\s{0,4}:\s{0,4}"([^"\\\x00-\x1f]{1,64})"'
_BBOX = rf'"bbox_2d"\s{{0,4}}:\s{{0,4}}\[{_INT},{_INT},{_INT},{_INT}\]'
_ITEM = re.compile(rf"\{{\s{{0,8}}{_BBOX}\s{{0,8}},\s{{0,8}}{_LABEL}\s{{0,8}}\}}", re.ASCII)
_FENCE = re.compile(r"\s*```(?:json)?[ \t\r]*\n(.*)\n?```\s*", re.ASCII | re.DOTALL)


def prompt(scene: object = None) -> str:
    """The human text after the images; the same for every scene."""
    return PROMPT


def upstream_prompt(scene: object = None) -> str:
    """The human text for checkpoints that answer in Qwen3-VL's JSON."""
    return UPSTREAM_PROMPT


def serialise(boxes: Iterable[Box], form: str = "fixed") -> str:
    """The answer text: boxes by falling area, for form "fixed" at most six of the known labels and units up to 999."""
    ordered = sorted(boxes, key=lambda box: (-_area(box.xyxy), box.xyxy, box.label))
    for box in ordered:
        problem = _problem(box.xyxy)
        if problem:
            raise DataError(f"box {box.label} {box.xyxy}: {problem}")
    if form == "fixed":
        return "".join(_record(box) for box in ordered[:MAX_BOXES])
    if form == "qwen3vl_json":
        return json.dumps([{"bbox_2d": list(box.xyxy), "label": box.label} for box in ordered])
    raise unknown_form("detect", form, FORMS)


def parse(answer: AnswerText | str, form: str = "fixed") -> Detections | Failure:
    """Every character must belong to a box of the form; an empty list is a valid answer: nothing is there.

    A box that no rectangle has (x1 >= x2 and the like) is left out and counted in `dropped`; a RANGE failure when that
    leaves none of those that were said.
    """
    answer = as_answer(answer)
    if form == "fixed":
        found = _records(answer.text)
    elif form == "qwen3vl_json":
        found = _json_items(answer.text)
    else:
        raise unknown_form("detect", form, FORMS)
    if found is None:
        return not_parsed(f"a list of boxes in form {form}", answer.text)
    boxes, problems = [], []
    for label, xyxy, span in found:
        problem = _problem(xyxy)
        if problem:
            problems.append(f"box {label} {xyxy}: {problem}")
        else:
            boxes.append(Box(label, xyxy, answer.confidence(*span)))
    if problems and not boxes:
        return out_of_range(problems[0], answer.text)
    return Detections(tuple(boxes), answer.text, dropped=len(problems))


def allowed(tokenizer: Tokens, form: str = "fixed") -> tuple[tuple[int, ...] | None, ...] | None:
    """Allowed token ids of the 97 answer positions. The end token may stand anywhere: behind the boxes all is end."""
    if form == "qwen3vl_json":
        return None
    if form != "fixed":
        raise unknown_form("detect", form, FORMS)
    end = (tokenizer.eos_id,)
    digits = tuple(tokenizer.single(digit) for digit in "0123456789") + end
    labels = tuple(tokenizer.single(label) for label in LABELS) + end
    space, semicolon = (tokenizer.single(" "), *end), (tokenizer.single(";"), *end)
    record = (labels, space, *[digits] * 6, space, *[digits] * 6, semicolon)
    return record * MAX_BOXES + (end,)


def ranks(form: str = "fixed") -> tuple[int, ...] | None:
    """Which of the 97 answer positions are decided first: labels and hundreds, then tens, then ones."""
    if form == "qwen3vl_json":
        return None
    if form != "fixed":
        raise unknown_form("detect", form, FORMS)
    numbers = (0, 1, 2) * 2
    return (0, 0, *numbers, 0, *numbers, 0) * MAX_BOXES + (0,)


_Found = list[tuple[str, tuple[int, int, int, int], tuple[int, int]]]


def _records(text: str) -> _Found | None:
    found: _Found = []
    at = 0
    while at < len(text):
        match = _RECORD.match(text, at)
        if match is None or len(found) == MAX_BOXES:
            return None
        found.append(_found(match, first=2, label=1))
        at = match.end()
    return found


def _json_items(text: str) -> _Found | None:
    """Items of the JSON list with their places in the text; a ```json fence around it is Qwen's habit and allowed."""
    fence = _FENCE.fullmatch(text)
    start, end = fence.span(1) if fence else (0, len(text))
    body = text[start:end]
    start += len(body) - len(body.lstrip(" \n\t"))
    end = start + len(body.strip(" \n\t"))
    if end - start < 2 or text[start] != "[" or text[end - 1] != "]":
        return None
    found: _Found = []
    at, end = _skip(text, start + 1), end - 1
    while at < end:
        if found:
            if text[at] != ",":
                return None
            at = _skip(text, at + 1)
        match = _ITEM.match(text, at, end)
        if match is None:
            return None
        found.append(_found(match, first=1, label=5))
        at = _skip(text, match.end())
    return found


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \n\t":
        at += 1
    return at


def _found(match: re.Match[str], first: int, label: int) -> tuple[str, tuple[int, int, int, int], tuple[int, int]]:
    x1, y1, x2, y2 = (int(match[first + index]) for index in range(4))
    return match[label], (x1, y1, x2, y2), match.span()


def _record(box: Box) -> str:
    if box.label not in LABELS:
        raise DataError(f"expected a label of {', '.join(LABELS)}; got {box.label!r}")
    x1, y1, x2, y2 = (min(999, value) for value in box.xyxy)
    # 1000 has no three digits; a box that lies wholly in the last unit keeps its width of one
    return f"{box.label} {min(x1, 998):03d}{min(y1, 998):03d} {x2:03d}{y2:03d};"


def _problem(xyxy: tuple[int, int, int, int]) -> str | None:
    x1, y1, x2, y2 = xyxy
    if min(xyxy) < 0 or max(xyxy) > 1000:
        return "expected units of 0 to 1000"
    return None if x1 < x2 and y1 < y2 else "expected x1 < x2 and y1 < y2"


def _area(xyxy: tuple[int, int, int, int]) -> int:
    return (xyxy[2] - xyxy[0]) * (xyxy[3] - xyxy[1])
