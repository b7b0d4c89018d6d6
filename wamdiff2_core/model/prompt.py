"""A human turn with images as the token ids of Qwen's chat, for our checkpoints and for upstream's alike.

`<|im_start|>user\\n` + parts + `<|im_end|>\\n<|im_start|>assistant\\n`; an image is `<|vision_start|>`, then one
`<|image_pad|>` for each of its tokens, then `<|vision_end|>`. Our texts put all images first, so that all tasks of a
scene share them as a prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wamdiff2_core.errors import DataError
from wamdiff2_core.model.tokenizer import END, TextTokenizer

IMAGE = "<image>"


@dataclass(frozen=True)
class Prompt:
    """Token ids up to where the answer begins; `images_end`: how many of them lead up to the end of the last image."""

    ids: tuple[int, ...]
    images_end: int


def human_text(text: str, images: int) -> str:
    """Our human turn as written in samples: all images, then the text of the task."""
    return f"{IMAGE}\n" * images + text


def chat_prompt(tokenizer: TextTokenizer, human: str, image_tokens: Sequence[int]) -> Prompt:
    """Ids of a human turn whose first `len(image_tokens)` placeholders `<image>` stand for images of so many tokens.

    Further placeholders are plain text, as is every control token written out. Texts between images lose their outer
    white space. Raises DataError when there are fewer placeholders than images.
    """
    parts = human.split(IMAGE, len(image_tokens))
    if len(parts) != len(image_tokens) + 1:
        raise DataError(f"expected {len(image_tokens)} placeholders {IMAGE} for the images, got {len(parts) - 1}")
    ids = [tokenizer.control("<|im_start|>"), *tokenizer.encode("user\n"), *tokenizer.encode(parts[0].strip())]
    images_end = 0
    for count, text in zip(image_tokens, parts[1:], strict=True):
        pads = [tokenizer.control("<|image_pad|>")] * count
        ids += [tokenizer.control("<|vision_start|>"), *pads, tokenizer.control("<|vision_end|>")]
        images_end = len(ids)
        ids += tokenizer.encode(text.strip())
    ids += [
        tokenizer.control(END),
        *tokenizer.encode("\n"),
        tokenizer.control("<|im_start|>"),
        *tokenizer.encode("assistant\n"),
    ]
    return Prompt(tuple(ids), images_end)


def answer_ids(tokenizer: TextTokenizer, text: str) -> list[int]:
    """Ids of an answer and the end token behind it."""
    return [*tokenizer.encode(text), tokenizer.eos_id]
