"""Small inputs that the host writes and the device reads, without waiting and without new memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Staged:
    """A tensor on the device with a twin on the host: fill `host`, then `send`."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.device = torch.zeros(*shape, dtype=dtype, device=device)
        self._host = torch.zeros(*shape, dtype=dtype, pin_memory=self._cuda) if self._cuda else self.device
        self._sent = torch.cuda.Event() if self._cuda else None

    @property
    def host(self) -> Tensor:
        """The host's twin, to be written; what was sent before is on the device by then."""
        if self._sent is not None:
            self._sent.synchronize()  # waits for the copy only, which was made long ago
        return self._host

    def send(self) -> None:
        """Copy to the device, in order with its other work."""
        if self._sent is not None:
            self.device.copy_(self._host, non_blocking=True)
            self._sent.record()


class Flags:
    """A few integers that the device writes after every launch and the host reads behind the next one."""

    def __init__(self, count: int, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.device = torch.zeros(count, dtype=torch.int64, device=device)
        self._host = torch.zeros(2, count, dtype=torch.int64, pin_memory=self._cuda)
        self._events = [torch.cuda.Event() for _ in range(2)] if self._cuda else []
        self._posted = 0

    def post(self) -> int:
        """Ask for the flags as the work launched so far leaves them: a ticket for `read`."""
        slot = self._posted % 2
        self._host[slot].copy_(self.device, non_blocking=self._cuda)
        if self._cuda:
            self._events[slot].record()
        self._posted += 1
        return self._posted - 1

    def read(self, ticket: int) -> list[int]:
        """The flags of this ticket, one of the last two; waits until they are there."""
        if self._cuda:
            self._events[ticket % 2].synchronize()
        return self._host[ticket % 2].tolist()
