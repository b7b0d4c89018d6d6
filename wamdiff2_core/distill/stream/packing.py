"""Samples side by side in flat streams: [prompt | clean | noisy] [prompt | clean | noisy] ... padding.

A stream is one long sequence of the model; every token knows its sample, and sees nothing of any other. Rotary
positions begin anew with each sample, as in decoding. A picture that several samples of a batch show is encoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor, nn

from wamdiff2_core.distill.attention import stream_mask
from wamdiff2_core.distill.forward import Visual
from wamdiff2_core.distill.layout import Layout, Packed
from wamdiff2_core.distill.stream.encode import Encoded, Encoder
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.images import ImageFormat, patchify
from wamdiff2_core.model.masks import Labels, Part
from wamdiff2_core.model.tokens import Grid


@dataclass(frozen=True)
class StreamBatch:
    """R samples in S streams of L tokens, and the pictures they show.

    Per token: ids (S, L), end tokens where answers will be put in; positions (3, S, L); part (S, L) with the whole
    room of an answer as CLEAN or NOISY; order (S, L) place inside the part; document (S, L) sample number, -1 behind
    the last sample; image_at (S, L) row of the table of image features, -1 for text.
    Per sample: answer (R, C) ids, filled up with end tokens; answer_length (R,); given (R, C) scaffold places;
    task (R,) number or -1; room (R,) places for the answer; start (R,) flat place of its first clean token in (S * L).
    images: uint8 (H, W, 3), each with a grid of patches; shown: which of them each sample shows, in order;
    names of the samples. copies: 1 without noisy rooms.
    """

    ids: Tensor
    positions: Tensor
    part: Tensor
    order: Tensor
    document: Tensor
    image_at: Tensor
    answer: Tensor
    answer_length: Tensor
    given: Tensor
    task: Tensor
    room: Tensor
    start: Tensor
    images: tuple[Tensor, ...]
    grids: tuple[Grid, ...]
    shown: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    form: ImageFormat
    copies: int = 2
    ranks: Tensor | None = None
    attention: str = "dense"

    @property
    def parts(self) -> dict[str, StreamBatch]:
        """All tasks share the streams, so it is one part."""
        return {"answers": self}

    @property
    def pictures(self) -> int:
        """How many distinct images there are."""
        return len(self.images)

    @property
    def used(self) -> float:
        """Share of the streams' places that samples fill."""
        return float((self.document >= 0).float().mean())

    def live_length(self, block: Tensor) -> Tensor:
        """(R,) answer positions in play: the answer filled with end tokens up to a whole block, at most its room."""
        whole = torch.div(self.answer_length + block - 1, block, rounding_mode="floor") * block
        return torch.minimum(whole, self.room)

    def packed(self, live: Tensor, block: Tensor, noisy: Tensor | None, how: Layout) -> Packed:
        """As a step asks for it; see `pack_stream`."""
        return pack_stream(self, live, block, noisy, how.context, how.prediction)

    def pixel_values(self) -> list[Tensor]:
        """Patches (n, values) of each picture, cut and normalised on the device."""
        return [patchify(image[None], self.form)[0] for image in self.images]

    def encoded(self, visual: nn.Module, encode: Callable[..., Tensor]) -> Visual | None:
        """Features of all pictures in the order of the table, those of one size in one pass; None without pictures."""
        if not self.images:
            return None
        patches = self.pixel_values()
        features: list[Tensor] = list(patches)
        for grid in dict.fromkeys(self.grids):
            members = [index for index, other in enumerate(self.grids) if other == grid]
            found = encode(visual, torch.stack([patches[index] for index in members]), grid)  # (1 + levels, G, m, H)
            for place, index in enumerate(members):
                features[index] = found[:, place]
        return Visual.of(torch.cat(features, 1))

    def to(self, device: torch.device | str) -> StreamBatch:
        """On a device, without waiting for the copies."""
        moved = {
            item.name: value.to(device, non_blocking=True)
            for item in fields(self)
            if isinstance(value := getattr(self, item.name), Tensor)
        }
        images = tuple(image.to(device, non_blocking=True) for image in self.images)
        return replace(self, images=images, **moved)


def pack_stream(
    batch: StreamBatch, live: Tensor, block: Tensor, noisy: Tensor | None, context: str, prediction: str
) -> Packed:
    """Put clean answers and `noisy` ones (R, C) in their rooms and label the tokens for block sizes `block` (R,).

    live (R,): answer positions in play; the rest of a room is padding, and so are noisy rooms without `noisy`.
    """
    if noisy is not None and batch.copies < 2:
        raise ConfigError("this stream has no room for noisy answers: expected one packed with noisy=True")
    row, column = batch.document.clamp(min=0), batch.order.clamp(max=batch.answer.shape[1] - 1)
    clean, hidden = batch.part == Part.CLEAN, batch.part == Part.NOISY
    ids = torch.where(clean, batch.answer[row, column], batch.ids)
    dead = (clean | hidden) & (batch.order >= live[row])
    if noisy is None:
        dead = dead | hidden
    else:
        ids = torch.where(hidden, noisy[row, column], ids)
    part = torch.where(dead, int(Part.PAD), batch.part)
    number = torch.div(batch.order, block[row], rounding_mode="floor")
    mask = stream_mask(Labels(part, number, batch.order), batch.document, context, batch.attention)
    clean_at, noisy_at = _predictors(batch, prediction)
    return Packed(ids, batch.positions, mask, batch.image_at, clean_at, noisy_at if noisy is not None else None)


def _predictors(batch: StreamBatch, prediction: str) -> tuple[Tensor, Tensor]:
    """(R, C) twice: flat places of the predictors of answer tokens, as layout.predictors says; the places of dead

    answer positions repeat the last one of the sample's room.
    """
    place = torch.arange(batch.answer.shape[1], device=batch.start.device)
    place = torch.minimum(place[None], batch.room[:, None] - 1)
    before = (place - 1).clamp(min=0) if prediction == "next" else place
    clean = batch.start[:, None] + place - 1
    return clean, (batch.start + batch.room)[:, None] + before


def collate(
    streams: Sequence[Sequence[Encoded]],
    length: int,
    fill: int,
    copies: int,
    encoder: Encoder,
    attention: str = "dense",
) -> StreamBatch:
    """Lay samples out in streams of `length` tokens, in the order given. ConfigError when they do not fit."""
    samples = [sample for stream in streams for sample in stream]
    table = _ImageTable(samples, encoder.form)
    widest = max((sample.room(fill) for sample in samples), default=fill)
    answer = torch.full((len(samples), widest), encoder.tokenizer.eos_id)
    given = torch.zeros(len(samples), widest, dtype=torch.bool)
    token = _Tokens(len(streams), length, encoder.tokenizer.eos_id)
    starts: list[int] = []
    for number, stream in enumerate(streams):
        at = 0
        for sample in stream:
            row = len(starts)
            end = at + sample.tokens(fill, copies)
            if end > length:
                raise ConfigError(f"stream of {length} tokens: {sample.name} would end at {end}")
            answer[row, : len(sample.answer)] = sample.answer
            scaffold = sample.given[:widest]
            given[row, : len(scaffold)] = scaffold
            token.put(number, at, row, sample, fill, copies, table.rows(sample))
            starts.append(number * length + at + len(sample.prompt))
            at = end
    return StreamBatch(
        **vars(token),
        answer=answer,
        answer_length=torch.tensor([len(sample.answer) for sample in samples], dtype=torch.int64),
        given=given,
        task=torch.tensor([sample.task for sample in samples], dtype=torch.int64),
        room=torch.tensor([sample.room(fill) for sample in samples], dtype=torch.int64),
        start=torch.tensor(starts, dtype=torch.int64),
        images=tuple(torch.from_numpy(picture) for picture in table.pictures),
        grids=tuple(table.grids),
        shown=tuple(table.numbers(sample) for sample in samples),
        names=tuple(sample.name for sample in samples),
        form=encoder.form,
        copies=copies,
        attention=attention,
    )


class _Tokens:
    """The per-token tensors of a batch while samples are put in."""

    def __init__(self, streams: int, length: int, filling: int) -> None:
        self.ids = torch.full((streams, length), filling)
        self.positions = torch.zeros(3, streams, length, dtype=torch.int64)
        self.part = torch.full((streams, length), int(Part.PAD))
        self.order = torch.zeros(streams, length, dtype=torch.int64)
        self.document = torch.full((streams, length), -1)
        self.image_at = torch.full((streams, length), -1)

    def put(self, stream: int, at: int, row: int, sample: Encoded, fill: int, copies: int, image_rows: Tensor) -> None:
        """One sample from place `at` on."""
        prompt, room = len(sample.prompt), sample.room(fill)
        head = slice(at, at + prompt)
        self.ids[stream, head] = sample.prompt
        self.positions[:, stream, head] = sample.positions
        self.part[stream, head] = int(Part.PROMPT)
        self.order[stream, head] = torch.arange(prompt)
        self.image_at[stream, head] = image_rows
        for copy, part in enumerate((Part.CLEAN, Part.NOISY)[:copies]):
            body = slice(at + prompt + copy * room, at + prompt + (copy + 1) * room)
            self.positions[:, stream, body] = sample.next_position + torch.arange(room)
            self.part[stream, body] = int(part)
            self.order[stream, body] = torch.arange(room)
        self.document[stream, at : at + prompt + copies * room] = row


class _ImageTable:
    """The distinct pictures of a batch and where the features of each begin."""

    def __init__(self, samples: Sequence[Encoded], form: ImageFormat) -> None:
        self.pictures: list[np.ndarray] = []
        self.grids: list[Grid] = []
        self._first: dict[str, tuple[int, int]] = {}  # key: first row of the feature table, rows; in table order
        total = 0
        for sample in samples:
            for key, picture, grid in zip(sample.keys, sample.images, sample.grids, strict=True):
                if key not in self._first:
                    count = form.tokens((picture.shape[1], picture.shape[0]))
                    self._first[key] = (total, count)
                    self.pictures.append(picture)
                    self.grids.append(grid)
                    total += count

    def numbers(self, sample: Encoded) -> tuple[int, ...]:
        """Which of the pictures a sample shows."""
        order = list(self._first)
        return tuple(order.index(key) for key in sample.keys)

    def rows(self, sample: Encoded) -> Tensor:
        """(P,) feature row of each prompt token, -1 for text."""
        out = torch.full((len(sample.prompt),), -1)
        rows = [torch.arange(first, first + count) for first, count in (self._first[key] for key in sample.keys)]
        if rows:
            out[sample.is_image] = torch.cat(rows)
        return out
