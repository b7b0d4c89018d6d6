"""The tokenizer of a checkpoint folder: text to ids and back, with the places of tokens in the text.

Text given by users never becomes a control token: `encode` does not know control tokens at all, they are put in by id
(see prompt.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from wamdiff2_core.errors import CheckpointError
from wamdiff2_core.tasks.grammar import AnswerText

END = "<|im_end|>"
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    END,
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|mask|>",
)
_NO_TEXT = "\ufffd".encode()


class TextTokenizer:
    """Byte-level BPE of a Hugging Face tokenizer.json (Qwen's format)."""

    def __init__(self, definition: dict[str, Any]) -> None:
        """`definition`: the content of tokenizer.json. Raises CheckpointError when it is not a byte-level BPE."""
        model = definition.get("model", {})
        if model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
            raise CheckpointError(f"tokenizer.json: expected a BPE model with a vocab, got {model.get('type')!r}")
        self.special = {token["content"]: int(token["id"]) for token in definition.get("added_tokens", ())}
        self._encoder = Tokenizer.from_str(json.dumps({**definition, "added_tokens": [], "post_processor": None}))
        specials = set(self.special.values())
        letters = _byte_letters()
        self._bytes = {
            index: _piece(piece, letters) for piece, index in model["vocab"].items() if index not in specials
        }
        self.vocab_size = 1 + max((*model["vocab"].values(), *specials))
        self.eos_id = self.control(END)

    @classmethod
    def from_folder(cls, folder: Path | str) -> TextTokenizer:
        """Reads `folder`/tokenizer.json; CheckpointError when it is missing or broken."""
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(
                f"{path}: expected a tokenizer in Hugging Face's tokenizer.json format, found no such file"
            )
        try:
            definition = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CheckpointError(f"{path}: expected JSON, got {error}") from error
        return cls(definition)

    def control(self, name: str) -> int:
        """The id of a control token such as `<|im_start|>`; CheckpointError when there is none of that name."""
        if name not in self.special:
            raise CheckpointError(
                f"tokenizer: expected the control token {name}, found {', '.join(self.special) or 'none'}"
            )
        return self.special[name]

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; words like `<|im_end|>` in it are spelt out, never a control token."""
        return list(self._encoder.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; ids without text (control tokens, unused rows) become U+FFFD, which no grammar accepts."""
        return b"".join(self._bytes.get(index, _NO_TEXT) for index in ids).decode("utf-8", errors="replace")

    def answer(self, ids: Sequence[int], probabilities: Sequence[float]) -> AnswerText:
        """The text with the place and probability of each token. Places are exact for text without broken UTF-8."""
        pieces = [self._bytes.get(index, _NO_TEXT) for index in ids]
        tokens, at, seen = [], 0, b""
        for piece, probability in zip(pieces, probabilities, strict=True):
            seen += piece
            end = at + len(piece) if piece.isascii() else len(seen.decode("utf-8", errors="replace"))
            tokens.append((at, end, float(probability)))
            at = end
        return AnswerText(seen.decode("utf-8", errors="replace"), tuple(tokens))

    def single(self, text: str) -> int:
        """The id of the one token that `text` is; CheckpointError when the tokenizer splits it."""
        ids = self.encode(text)
        if len(ids) != 1:
            raise CheckpointError(
                f"tokenizer: the fixed answer formats need {text!r} as one token, it takes {len(ids)}"
            )
        return ids[0]


def _byte_letters() -> dict[str, int]:
    """The letter that stands for each byte in a byte-level vocabulary: printable ones stand for themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(others)}


def _piece(piece: str, letters: dict[str, int]) -> bytes:
    try:
        return bytes(letters[letter] for letter in piece)
    except KeyError as error:
        raise CheckpointError(f"tokenizer: {piece!r} is not a piece of a byte-level vocabulary") from error
