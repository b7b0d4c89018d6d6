"""Step 2: one packed row [prompt | clean answer | noisy answer], who sees whom, and at which rotary position.

Inside a batch the three segments have fixed places: prompts are padded on the left to P, answers on the right to C, so
that slices replace gathers. Padding sees only itself and nobody sees it. Rotary positions are those that each token has
in decoding: a noisy copy has the position of its clean twin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from wamdiff2_core.model.masks import Labels, Part, attention_mask, concat


@dataclass(frozen=True)
class Layout:
    """How rows are laid out for one model.

    prediction: "next" | "same"; context: "causal" | "block_causal"; image_tokens: of one frame, all cameras together.
    """

    prediction: str
    context: str
    image_token_id: int
    image_tokens: int


@dataclass(frozen=True)
class Rows:
    """R conversations on one device. Answers end with the end token; what follows it is end tokens, too.

    prompt (R, P) ids; prompt_length (R,); prompt_positions (3, R, P) rotary positions of prompt tokens;
    answer (R, C) ids; answer_length (R,) up to and with the first end token; given (R, C) scaffold positions;
    frame (R,) index of the row's images in the batch; task (R,) number of the task; ranks (R, C) order in which answer
    positions are decided, -1 for none.
    """

    prompt: Tensor
    prompt_length: Tensor
    prompt_positions: Tensor
    answer: Tensor
    answer_length: Tensor
    given: Tensor
    frame: Tensor
    task: Tensor
    ranks: Tensor | None = None

    def select(self, index: Tensor | slice) -> Rows:
        """These rows only."""
        parts = {
            name: getattr(self, name)[index]
            for name in ("prompt", "prompt_length", "answer", "answer_length", "given", "frame", "task")
        }
        ranks = None if self.ranks is None else self.ranks[index]
        return replace(self, prompt_positions=self.prompt_positions[:, index], ranks=ranks, **parts)

    def packed(self, live: Tensor, block: Tensor, noisy: Tensor | None, how: Layout) -> Packed:
        """These rows as [prompt | clean] or, with K noisy answers (R, K * C), as [prompt | clean | noisy ...]."""
        return pack(self, live, block, noisy, how)

    def live_length(self, block: Tensor) -> Tensor:
        """(R,) answer positions in play: the answer filled with end tokens up to a whole block, at most C."""
        whole = torch.div(self.answer_length + block - 1, block, rounding_mode="floor") * block
        return whole.clamp(max=self.answer.shape[1])


@dataclass(frozen=True)
class Packed:
    """S sequences of L tokens, ready for the model, and where the answers of R conversations stand in them.

    ids (S, L), positions (3, S, L); mask: who sees whom, (S, L, L) bool (query, key) or a FlexAttention BlockMask;
    image_at (S, L): row of the table of image features, -1 for text. clean_at (R, C), noisy_at (R, K * C): place in the
    flattened (S * L) tokens of the one whose output predicts an answer token, from the clean and from the noisy stream
    (None: there is no noisy stream).
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor | BlockMask
    image_at: Tensor
    clean_at: Tensor
    noisy_at: Tensor | None


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


def packed_labels(rows: Rows, live: Tensor, block: Tensor, copies: int = 1) -> Labels:
    """Labels (R, P + C + copies * C) with the noisy copies behind the clean answer."""
    stream = stream_labels(rows, live, block)
    clean = stream[:, rows.prompt.shape[1] :]
    noisy = torch.where(clean.part == Part.CLEAN, int(Part.NOISY), clean.part)
    return concat([stream, *[Labels(noisy, clean.block, clean.order)] * copies])


def copies_apart(prompt: int, answer: int, copies: int, device: torch.device) -> Tensor:
    """(L, L) bool: True unless query and key stand in two different ones of the noisy copies."""
    copy = torch.arange(prompt + answer + copies * answer, device=device)
    copy = torch.div(copy - prompt, answer, rounding_mode="floor").clamp(min=0)  # 0: prompt and clean answer
    return (copy[None, :] == 0) | (copy[None, :] == copy[:, None])


def _labels(part: Part, order: Tensor, real: Tensor, block: Tensor) -> Labels:
    number = torch.div(order, block[:, None], rounding_mode="floor")
    return Labels(torch.where(real, int(part), int(Part.PAD)), number, order)


def answer_positions(rows: Rows) -> Tensor:
    """(3, R, C) rotary positions of the answer: text goes on after the largest position of the prompt."""
    start = rows.prompt_positions.amax((0, 2)) + 1
    at = start[:, None] + torch.arange(rows.answer.shape[1], device=start.device)
    return at.expand(3, -1, -1)


def pack(rows: Rows, live: Tensor, block: Tensor, noisy: Tensor | None, how: Layout) -> Packed:
    """Put the segments of padded rows together; without `noisy` it is the plain row [prompt | clean]."""
    at = answer_positions(rows)
    (prompt, room), copies = (rows.prompt.shape[1], rows.answer.shape[1]), 0
    ids, positions, labels = [rows.prompt, rows.answer], [rows.prompt_positions, at], stream_labels(rows, live, block)
    if noisy is not None:
        copies = noisy.shape[1] // room
        ids, positions = [*ids, noisy], [*positions, *[at] * copies]
        labels = packed_labels(rows, live, block, copies)
    joined = torch.cat(ids, 1)
    clean_at, noisy_at = predictors(rows, joined.shape[1], how.prediction, copies)
    image_at = F.pad(image_slots(rows, how), (0, joined.shape[1] - prompt), value=-1)
    mask = attention_mask(labels, labels, how.context)
    if copies > 1:
        mask &= copies_apart(prompt, room, copies, mask.device)
    return Packed(joined, torch.cat(positions, 2), mask, image_at, clean_at, noisy_at if noisy is not None else None)


def predictors(rows: Rows, length: int, prediction: str, copies: int = 1) -> tuple[Tensor, Tensor]:
    """(R, C), (R, copies * C): where in rows of `length` tokens the predictors of answer tokens stand, clean and noisy.

    Clean: position i - 1 predicts i; the last prompt token predicts the first. Noisy "next": likewise inside the noisy
    copy, whose first token has nothing before it and repeats itself (never used); "same": position i.
    """
    (count, room), prompt = rows.answer.shape, rows.prompt.shape[1]
    device = rows.answer.device
    place = torch.arange(room, device=device)
    start = torch.arange(count, device=device)[:, None] * length
    before = (place - 1).clamp(min=0) if prediction == "next" else place
    noisy = [start + prompt + room * (1 + copy) + before for copy in range(max(1, copies))]
    return start + prompt - 1 + place, torch.cat(noisy, 1)


def image_slots(rows: Rows, how: Layout) -> Tensor:
    """(R, P) row of the feature table of each image token in the prompts, -1 for text."""
    is_image = rows.prompt == how.image_token_id
    number = is_image.cumsum(1) - 1
    slot = rows.frame[:, None] * how.image_tokens + number.clamp(max=how.image_tokens - 1)
    return torch.where(is_image, slot, -1)


def first_of_block(block: Tensor, positions: int) -> Tensor:
    """(R, C) bool: answer positions that open a block of their row's size; block (R,)."""
    return torch.arange(positions, device=block.device) % block[:, None] == 0


def decoding_at(packed: Packed, first: Tensor, prediction: str) -> Tensor:
    """(R, K * C): the predictors that the decoder uses. With "next" a block's first token follows from a clean one.
    first (R, C), see `first_of_block`."""
    assert packed.noisy_at is not None  # masked answers have a noisy stream
    if prediction != "next":
        return packed.noisy_at
    copies = packed.noisy_at.shape[1] // packed.clean_at.shape[1]
    return torch.where(first.repeat(1, copies), packed.clean_at.repeat(1, copies), packed.noisy_at)
