"""Step 2: one packed row [prompt | clean answer | noisy answer], who sees whom, and at which rotary position.

Inside a batch the three segments have fixed places: prompts are padded on the left to P, answers on the right to C, so
that slices replace gathers. Padding sees only itself and nobody sees it. Rotary positions are those that each token has
in decoding: a noisy copy has the position of its clean twin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wamdiff2_core.model.masks import Labels, Part, attention_mask, concat


@dataclass(frozen=True)
class Rows:
    """R conversations on one device. Answers end with the end token; what follows it is end tokens, too.

    prompt (R, P) ids; prompt_length (R,); prompt_positions (3, R, P) rotary positions of prompt tokens;
    answer (R, C) ids; answer_length (R,) up to and with the first end token; given (R, C) scaffold positions;
    frame (R,) index of the row's images in the batch; task (R,) number of the task.
    """

    prompt: Tensor
    prompt_length: Tensor
    prompt_positions: Tensor
    answer: Tensor
    answer_length: Tensor
    given: Tensor
    frame: Tensor
    task: Tensor

    def select(self, index: Tensor | slice) -> Rows:
        """These rows only."""
        parts = {
            name: getattr(self, name)[index]
            for name in ("prompt", "prompt_length", "answer", "answer_length", "given", "frame", "task")
        }
        return replace(self, prompt_positions=self.prompt_positions[:, index], **parts)

    def live_length(self, block: Tensor) -> Tensor:
        """(R,) answer positions in play: the answer filled with end tokens up to a whole block, at most C."""
        whole = torch.div(self.answer_length + block - 1, block, rounding_mode="floor") * block
        return whole.clamp(max=self.answer.shape[1])


@dataclass(frozen=True)
class Packed:
    """ids (R, L), positions (3, R, L), mask (R, L, L) bool (query, key); L = P + C, or P + 2C with a noisy stream."""

    ids: Tensor
    positions: Tensor
    mask: Tensor
    prompt: int
    answer: int


def stream_labels(rows: Rows, live: Tensor, block: Tensor) -> Labels:
    """Labels (R, P + C) of prompt and clean answer; `block` (R,) cuts the answer, and the prompt for
    "block_causal" models.
    """
    prompt_at = torch.arange(rows.prompt.shape[1], device=live.device) - (
        rows.prompt.shape[1] - rows.prompt_length[:, None]
    )
    answer_at = torch.arange(rows.answer.shape[1], device=live.device).expand(live.shape[0], -1)
    prompt = _labels(Part.PROMPT, prompt_at, prompt_at >= 0, block)
    return concat([prompt, _labels(Part.CLEAN, answer_at, answer_at < live[:, None], block)])


def packed_labels(rows: Rows, live: Tensor, block: Tensor) -> Labels:
    """Labels (R, P + 2C) with the noisy copy behind the clean answer."""
    stream = stream_labels(rows, live, block)
    clean = stream[:, rows.prompt.shape[1] :]
    noisy = torch.where(clean.part == Part.CLEAN, int(Part.NOISY), clean.part)
    return concat([stream, Labels(noisy, clean.block, clean.order)])


def _labels(part: Part, order: Tensor, real: Tensor, block: Tensor) -> Labels:
    number = torch.div(order, block[:, None], rounding_mode="floor")
    return Labels(torch.where(real, int(part), int(Part.PAD)), number, order)


def answer_positions(rows: Rows) -> Tensor:
    """(3, R, C) rotary positions of the answer: text goes on after the largest position of the prompt."""
    start = rows.prompt_positions.amax((0, 2)) + 1
    at = start[:, None] + torch.arange(rows.answer.shape[1], device=start.device)
    return at.expand(3, -1, -1)


def pack(rows: Rows, live: Tensor, block: Tensor, noisy: Tensor | None = None, context: str = "causal") -> Packed:
    """Put the segments together; without `noisy` it is the plain row [prompt | clean]."""
    at = answer_positions(rows)
    ids, positions, labels = [rows.prompt, rows.answer], [rows.prompt_positions, at], stream_labels(rows, live, block)
    if noisy is not None:
        ids, positions, labels = [*ids, noisy], [*positions, at], packed_labels(rows, live, block)
    mask = attention_mask(labels, labels, context)
    return Packed(torch.cat(ids, 1), torch.cat(positions, 2), mask, rows.prompt.shape[1], rows.answer.shape[1])
