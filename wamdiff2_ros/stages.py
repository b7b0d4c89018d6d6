"""Where the time of one scene goes, from the receipt of its newest frame to the publication of its first answer."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Stages:
    """Milliseconds by stage, in order; `received_s`: steady time at which the scene's newest frame came.

    busy: the worker was at an earlier scene. wait: from then, or from receipt, until it took this one. images: decoding
    and checking. prompt: the driver's own work around the model. inference: vision, prefill and decoding. convert:
    checks, smoothing, messages. publish: handing the first message to the middleware.
    """

    received_s: float
    busy_ms: float = 0.0
    wait_ms: float = 0.0
    images_ms: float = 0.0
    prompt_ms: float = 0.0
    inference_ms: float = 0.0
    convert_ms: float = 0.0
    publish_ms: float = 0.0

    def overhead_ms(self, published_s: float) -> float:
        """Receipt to publication (steady time) without the time in which a model worked."""
        return max(0.0, (published_s - self.received_s) * 1e3 - self.busy_ms - self.inference_ms)


def taken(received_s: float, free_since_s: float, taken_s: float) -> Stages:
    """The first two stages: its newest frame came, the worker got free, the worker took it (steady times)."""
    free_s = min(max(free_since_s, received_s), taken_s)
    return Stages(received_s, busy_ms=(free_s - received_s) * 1e3, wait_ms=(taken_s - free_s) * 1e3)


NAMES = tuple(field.name for field in fields(Stages) if field.name.endswith("_ms"))
