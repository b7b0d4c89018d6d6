"""Everything of a call that lies at fixed addresses: for R rows and blocks of B there is one lane."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from wamdiff2_core.decode.blocks import Vocabulary
from wamdiff2_core.decode.engine.pages import PageTable
from wamdiff2_core.decode.engine.request import Request
from wamdiff2_core.decode.engine.staging import Flags, Staged
from wamdiff2_core.decode.engine.state import Answers, Code


@dataclass(frozen=True)
class LaneSize:
    """rows; block_size; answer: most tokens of an answer; pages: of a row at most; hidden: the model's width."""

    rows: int
    block_size: int
    answer: int
    pages: int
    hidden: int


class Lane:
    """carry (R, H): hidden state of each row's last clean token ("next" prediction). uniforms (R, U) fp64: numbers for

    drawing tokens, B for each of a row's steps in turn. flags (2 R): which rows run, and which of these wait to go on.
    noisy: whether passes have noisy tokens; with "next" prediction and B = 1 they would tell nothing.
    """

    def __init__(
        self, size: LaneSize, vocabulary: Vocabulary, following: bool, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.size = size
        self.request = Request(size.rows, size.answer, size.block_size, device)
        self.answers = Answers(self.request, vocabulary, following)
        self.table = PageTable(size.rows, size.pages, device)
        self.carry = torch.zeros(size.rows, size.hidden, device=device, dtype=dtype)
        self.noisy = not (following and size.block_size == 1)
        self.flags = Flags(2 * size.rows, device)
        self.report = torch.zeros(size.rows, self._width(), dtype=torch.int64, device=device)
        self._report_host = torch.zeros_like(self.report, device="cpu", pin_memory=device.type == "cuda")
        self._device = device
        self._uniforms: Staged | None = None

    @property
    def uniforms(self) -> Staged:
        """Made when a call first draws: (R, places x min(B, 32)); see Engine for calls that need more."""
        if self._uniforms is None:
            count = self.request.places * min(self.size.block_size, 32)
            self._uniforms = Staged((self.size.rows, count), torch.float64, self._device)
        return self._uniforms

    def raise_flags(self) -> None:
        """Write the flags as the rows stand now, on the device."""
        running = self.answers.running
        waiting = running & ~self.answers.masked().any(1)
        self.flags.device.copy_(torch.cat((running, waiting)))

    def progress(self, ticket: int) -> tuple[bool, bool]:
        """Whether a row ran and whether one waited when the flags of this ticket were posted."""
        flags = self.flags.read(ticket)
        return any(flags[: self.size.rows]), any(flags[self.size.rows :])

    def _width(self) -> int:
        return 3 * self.request.places + self.answers.log.shape[1] + 3

    def write_report(self) -> None:
        """Lay down on the device what the rows have."""
        a = self.answers
        scalars = torch.stack((a.code, a.start, a.passes), 1)
        sure = a.confidence.view(torch.int32).long()
        self.report.copy_(torch.cat((a.tokens, a.decided.long(), sure, a.log, scalars), 1))

    def read(self) -> RowReports:
        """What the report says, on the host; waits for all work."""
        self._report_host.copy_(self.report)  # waits
        n, blocks = self.request.places, self.answers.log.shape[1]
        tokens, decided, sure, log, scalars = self._report_host.clone().split((n, n, n, blocks, 3), 1)
        return RowReports(
            tokens.tolist(),
            decided.bool().tolist(),
            sure.to(torch.int32).view(torch.float32).tolist(),
            log.tolist(),
            [Code(code) for code in scalars[:, 0].tolist()],
            scalars[:, 1].tolist(),
            scalars[:, 2].tolist(),
        )


@dataclass(frozen=True)
class RowReports:
    """Of all rows: see Answers."""

    tokens: list[list[int]]
    decided: list[list[bool]]
    confidence: list[list[float]]
    log: list[list[int]]
    code: list[Code]
    start: list[int]
    passes: list[int]
