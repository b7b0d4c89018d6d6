"""The scaffold of a task's answers: what may stand where, and which positions are decided first."""

from __future__ import annotations

from types import ModuleType

from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.tasks import ask, detect, plan
from wamdiff2_core.tasks.grammar import Tokens

_MODULES: dict[str, ModuleType] = {"plan": plan, "detect": detect, "ask": ask}


def task_scaffold(task: str, tokenizer: Tokens, form: str) -> Scaffold | None:
    """None where the answer is free text."""
    allowed = _MODULES[task].allowed(tokenizer, form)
    return None if allowed is None else Scaffold(allowed, _MODULES[task].ranks(form) or ())
