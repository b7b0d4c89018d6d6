"""The block being denoised, for all rows of a batch, and the rules that move it. Shared by decoder and reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wamdiff2_core.decode.accept import accept, quota
from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.sampling import draw
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.model.checkpoint import LoadedModel


@dataclass
class BlockState:
    """One block of R rows, all (R, B): tokens (mask id where undecided), decided, confidence, needed (by the limit).

    share (R,): tokens that static and sequential keep per step. steps (R,): denoising steps taken. rank (R, B): order
    of the scaffold, -1 where there is none.
    """

    tokens: Tensor
    decided: Tensor
    confidence: Tensor
    needed: Tensor
    share: Tensor
    steps: Tensor
    rank: Tensor

    @property
    def masked(self) -> Tensor:
        """Positions still to be decided."""
        return self.needed & ~self.decided

    def select(self, rows: Tensor) -> BlockState:
        """Only these rows."""
        fields = (self.tokens, self.decided, self.confidence, self.needed, self.share, self.steps, self.rank)
        return BlockState(*(one[rows] for one in fields))


@dataclass(frozen=True)
class Prediction:
    """What a forward pass says about W positions of R rows.

    tokens (R, W), probability (R, W) of these tokens, certainty (R, W): the largest probability at the position, which
    decides what a step keeps (greedy: the same as probability). usable (R,): the row's logits are numbers.
    """

    tokens: Tensor
    probability: Tensor
    certainty: Tensor
    usable: Tensor

    def widened(self, width: int) -> Prediction:
        """The same for `width` positions; those behind get token 0 with probability 0."""
        beyond = (0, width - self.tokens.shape[1])
        tokens, probability, certainty = (
            torch.nn.functional.pad(one, beyond) for one in (self.tokens, self.probability, self.certainty)
        )
        return Prediction(tokens, probability, certainty, self.usable)

    def select(self, rows: Tensor) -> Prediction:
        """Only these rows."""
        return Prediction(*(one[rows] for one in (self.tokens, self.probability, self.certainty, self.usable)))


@dataclass(frozen=True)
class Vocabulary:
    """Token ids a decoder must know. output_mask: upstream lets its mask token stand in an answer; nobody else does."""

    mask: int | None
    eos: Tensor
    size: int
    output_mask: bool

    @classmethod
    def of(cls, loaded: LoadedModel) -> Vocabulary:
        eos = torch.tensor(loaded.eos_token_ids, device=loaded.device)
        return cls(loaded.mask_token_id, eos, loaded.vocab_size, loaded.kind == "wam_diff2")


def open_block(
    given: Tensor, needed: Tensor, vocabulary: Vocabulary, config: DecodingConfig, rank: Tensor
) -> BlockState:
    """A fresh block: given (R, B) holds the scaffold's token or -1; everything else is masked. rank: see BlockState."""
    fixed = given >= 0
    fill = vocabulary.mask if vocabulary.mask is not None else int(vocabulary.eos[0])
    state = BlockState(
        tokens=torch.where(fixed, given, fill),
        decided=fixed.clone(),
        confidence=fixed.to(torch.float32),
        needed=needed,
        share=torch.zeros(len(given), dtype=torch.int64, device=given.device),
        steps=torch.zeros(len(given), dtype=torch.int64, device=given.device),
        rank=rank,
    )
    end_at_eos(state, vocabulary)
    state.share = quota(state.masked.sum(1), config.steps)
    return state


def apply_step(state: BlockState, seen: Prediction, vocabulary: Vocabulary, config: DecodingConfig) -> None:
    """One denoising step: keep some of the predictions (R, B), in place. Rows that are done do not move."""
    masked = state.masked
    state.steps += masked.any(1).to(torch.int64)
    # Rows of a batch that have something left have all taken the same number of steps.
    last = int(state.steps.max()) >= config.steps
    kept = accept(config, seen.certainty, masked, state.share, last, state.rank)
    state.tokens = torch.where(kept, seen.tokens, state.tokens)
    state.confidence = torch.where(kept, seen.probability, state.confidence)
    state.decided = state.decided | kept
    if vocabulary.output_mask and not last:
        # Upstream recognises undecided positions by the mask id: a predicted mask token is predicted again.
        state.decided = state.decided & (state.tokens != vocabulary.mask)
    end_at_eos(state, vocabulary)


def end_at_eos(state: BlockState, vocabulary: Vocabulary) -> None:
    """After the first decided end token come end tokens only, the padding of training: nothing left to predict."""
    ended = (state.decided & torch.isin(state.tokens, vocabulary.eos)).cumsum(1) > 0
    state.tokens = torch.where(ended & ~state.decided, vocabulary.eos[0], state.tokens)
    state.decided = state.decided | ended


def predict(
    logits: Tensor,
    allowed: Tensor | None,
    vocabulary: Vocabulary,
    uniforms: Tensor | None = None,
    temperature: Tensor | None = None,
) -> Prediction:
    """The most probable tokens of logits (R, W, V); with uniforms (R, W) tokens drawn at temperatures (R,).

    The softmax runs over the allowed tokens (R, W, V) only; the mask token is never among them, but for upstream.
    Probability and certainty are the model's own, without temperature.
    """
    logits = logits.float()
    usable = ~logits.isnan().any(-1).any(-1)
    if vocabulary.mask is not None and not vocabulary.output_mask:
        logits[..., vocabulary.mask] = -torch.inf
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    best, tokens = logits.max(-1)
    total = logits.logsumexp(-1)
    certainty = torch.exp(best - total)
    usable = usable & certainty.isfinite().all(-1)
    if uniforms is None or temperature is None:
        return Prediction(tokens, certainty, certainty, usable)
    tokens = draw(logits, uniforms, temperature)
    probability = torch.exp(logits.gather(-1, tokens[..., None])[..., 0] - total)
    return Prediction(tokens, probability, certainty, usable)


def block_ranks(scaffolds: Sequence[Scaffold | None], start: int, width: int, device: torch.device) -> Tensor:
    """Ranks (R, width) of positions [start, start + width), -1 where a scaffold has none."""
    ranks = torch.full((len(scaffolds), width), -1, dtype=torch.int64, device=device)
    for row, scaffold in enumerate(scaffolds):
        part = () if scaffold is None else scaffold.ranks[start : start + width]
        if part:
            ranks[row, : len(part)] = torch.tensor(part, device=device)
    return ranks


def scaffold_block(
    scaffolds: Sequence[Scaffold | None], start: int, width: int, vocabulary: Vocabulary
) -> tuple[Tensor, Tensor | None]:
    """Of positions [start, start + width): given tokens (R, width) or -1, and allowed tokens (R, width, V) or None."""
    device = vocabulary.eos.device
    given = torch.full((len(scaffolds), width), -1, device=device)
    alike: dict[int, tuple[Scaffold, list[int]]] = {}  # rows of a batch mostly share theirs
    for row, scaffold in enumerate(scaffolds):
        if scaffold is not None and len(scaffold.allowed) > start:
            alike.setdefault(id(scaffold), (scaffold, []))[1].append(row)
    if not alike:
        return given, None
    allowed = torch.ones(len(scaffolds), width, vocabulary.size, dtype=torch.bool, device=device)
    for scaffold, rows in alike.values():
        part = torch.tensor(scaffold.given[start : start + width], device=device)
        table = scaffold.table(vocabulary.size, device)[start : start + width]
        which = slice(None) if len(rows) == len(scaffolds) else torch.tensor(rows, device=device)
        given[which, : len(part)] = part
        allowed[which, : len(table)] = table
    return given, allowed
