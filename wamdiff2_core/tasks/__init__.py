"""The three tasks. Each module owns its prompt text, its answer grammar, its strict parser and its scaffold classes.

Every task module has the same functions, so that data generator, trainer and driver share one source of text:

- `prompt(...) -> str`: what the human says after the images,
- `serialise(value, form) -> str`: the answer text,
- `parse(answer, form) -> value | Failure`: strict, never raises on any text,
- `allowed(tokenizer, form) -> tuple | None`: token ids allowed at each answer position (the scaffold),
- `ranks(form) -> tuple | None`: which of these positions are decided first when denoising in order.

Nothing here needs torch.
"""

from __future__ import annotations

TASKS = ("plan", "detect", "ask")
