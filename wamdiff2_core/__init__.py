"""Block-diffusion driving model: checkpoints, decoder, tasks. Importing this package is cheap (no torch yet)."""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> module that defines it. Loaded on first use, so that tools that only need types start fast.
_EXPORTS = {
    "load_model": "wamdiff2_core.model.checkpoint",
    "BlockDecoder": "wamdiff2_core.decode.decoder",
    "DecodingConfig": "wamdiff2_core.decode.config",
    "Driver": "wamdiff2_core.driver",
    "Scene": "wamdiff2_core.scene",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    """Import the module behind a public name on first access (PEP 562)."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
