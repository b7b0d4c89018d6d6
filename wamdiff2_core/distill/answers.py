"""Sequence-level distillation: a teacher's own greedy answers take the place of the truth.

Source: Kim and Rush 2016 (arXiv:1606.07947); that it is what parallel decoding needs: Gu et al. 2018
(arXiv:1711.02281). Tokens decided in one step do not know of each other. Where the world leaves several answers open
they mix them; a teacher always gives the same one, and there is nothing left to mix.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.distill.attention import Mask, attend, prepared
from wamdiff2_core.distill.batch import RingBatch
from wamdiff2_core.distill.forward import Pass, Visual, embedded, last_norm, mixed_in, projected, turns
from wamdiff2_core.distill.layout import Layout, Rows, answer_positions
from wamdiff2_core.distill.loss import head_logits
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.checkpoint import LoadedModel
from wamdiff2_core.model.tokenizer import TextTokenizer
from wamdiff2_core.scene import Failure
from wamdiff2_core.tasks import ask, detect, plan

_TASKS = {"plan": plan, "detect": detect, "ask": ask}
LOOK_EVERY = 16  # tokens between two looks at whether all answers have ended: each waits for the device


@dataclass(frozen=True)
class Answerer:
    """A frozen model that answers rows of training frames token by token, as B = 1 decoding with the scaffold does."""

    loaded: LoadedModel
    layout: Layout
    how: Pass

    @property
    def device(self) -> torch.device:
        return self.loaded.device

    @torch.no_grad()
    def look(self, batch: RingBatch) -> Visual:
        """The batch's images, encoded once for all tasks."""
        return batch.encoded(self.loaded.model.model.visual, self.how.encode)

    @torch.no_grad()
    def answers(self, task: str, batch: RingBatch, visual: Visual) -> tuple[Tensor, Tensor, Tensor]:
        """Of each row of a task: answer (R, C), its length (R,), and whether it can be used (R,) bool.

        visual: what `look` made of the batch.
        """
        rows = batch.parts[task]
        tokenizer = TextTokenizer.from_folder(str(self.loaded.folder))
        module = _TASKS[task]
        form = self.loaded.block_diffusion.get("answer_formats", {}).get(task, "text")
        allowed = module.allowed(tokenizer, form)
        table = None if allowed is None else Scaffold(allowed).table(self.loaded.vocab_size, self.device)
        answer, length = greedy(self.loaded.model, rows, visual, self.layout, self.how, table, tokenizer.eos_id)
        usable = [
            row > 0 and _reads(module, form, tokenizer, ids[: row - (ids[row - 1] == tokenizer.eos_id)])
            for ids, row in zip(answer.tolist(), torch.where(rows.prompt_length > 0, length, 0).tolist(), strict=True)
        ]
        return answer, length, torch.tensor(usable, device=self.device)


def load_answerer(folder: str, how: Pass, dtype: str, image_tokens: int, device: str) -> Answerer:
    """ConfigError unless it is an autoregressive reader of our prompts."""
    from wamdiff2_core.model.checkpoint import load_model

    loaded = load_model(folder, device=device, dtype=dtype)
    if (loaded.prediction, loaded.context) != ("next", "causal"):
        raise ConfigError(
            f"answers {folder}: expected prediction next and context causal, which answer token by token; "
            f"got {loaded.prediction} and {loaded.context}"
        )
    loaded.model.eval().requires_grad_(False)
    layout = Layout(loaded.prediction, loaded.context, loaded.config.image_token_id, image_tokens)
    return Answerer(loaded, layout, replace(how, checkpointing=False))


def _reads(module, form: str, tokenizer: TextTokenizer, ids: list[int]) -> bool:  # type: ignore[no-untyped-def]
    """Whether the parser takes the whole answer as it is."""
    result = module.parse(tokenizer.answer(ids, [1.0] * len(ids)), form)
    return not isinstance(result, Failure) and not getattr(result, "dropped", 0)


@torch.no_grad()
def greedy(
    model: nn.Module, rows: Rows, visual: Visual | None, layout: Layout, how: Pass, allowed: Tensor | None, end: int
) -> tuple[Tensor, Tensor]:
    """The most probable token, one after the other: answer (R, C), `end` behind it; length (R,) with its first `end`.

    allowed (>= C, V) bool: what may stand at each position. All rows go on until the last has ended.
    """
    text, head = model.model.language_model, model.lm_head.weight
    (count, room), prompt = rows.answer.shape, rows.prompt.shape[1]
    positions = answer_positions(rows)
    hidden, keep = _prompt(text, rows, visual, layout, how, room)
    answer = torch.full_like(rows.answer, end)
    open_rows = torch.ones(count, dtype=torch.bool, device=answer.device)
    unseen = torch.arange(prompt, device=answer.device) < prompt - rows.prompt_length[:, None]
    floor = torch.zeros(count, 1, 1, prompt + room, dtype=how.cast, device=answer.device)
    floor[:, 0, 0, :prompt].masked_fill_(unseen, torch.finfo(how.cast).min)
    for at in range(room):
        logits = head_logits(hidden, head)
        if allowed is not None:
            logits = logits.masked_fill(~allowed[at], -torch.inf)
        answer[:, at] = torch.where(open_rows, logits.argmax(-1), end)
        open_rows &= answer[:, at] != end
        if at + 1 == room or (at % LOOK_EVERY == LOOK_EVERY - 1 and not open_rows.any()):
            break
        hidden = _token(text, answer[:, at : at + 1], positions[:, :, at : at + 1], keep, prompt + at, floor, how)
    ended = (answer == end).cumsum(1) == 0
    return answer, (ended.sum(1) + 1).clamp(max=room)


def _prompt(
    text: nn.Module, rows: Rows, visual: Visual | None, layout: Layout, how: Pass, room: int
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Run the prompts: outputs (R, H) of their last tokens, and keys and values with room for the answers."""
    none = rows.answer[:, :0]
    alone = replace(rows, answer=none, given=rows.given[:, :0])
    packed = alone.packed(torch.zeros_like(rows.answer_length), torch.ones_like(rows.answer_length), None, layout)
    hidden, deep = embedded(text, packed, visual)
    cos, sin = turns(text, hidden, packed.positions, how.cast)
    mask, keep = prepared(packed.mask, how.cast), []
    for number, layer in enumerate(text.layers):
        query, key, value = projected(layer, hidden, cos, sin, how.cast)
        hidden = mixed_in(layer, hidden, attend(query, key, value, mask, layer.self_attn.scaling))
        if number < len(deep):
            hidden = hidden + deep[number].to(hidden.dtype)
        wide = (*key.shape[:2], key.shape[2] + room, key.shape[3])
        keep.append((key.new_zeros(wide), value.new_zeros(wide)))
        for part, new in zip(keep[-1], (key, value), strict=True):
            part[:, :, : new.shape[2]] = new
    return last_norm(text, hidden[:, -1]), keep


def _token(
    text: nn.Module,
    ids: Tensor,
    positions: Tensor,
    keep: list[tuple[Tensor, Tensor]],
    at: int,
    floor: Tensor,
    how: Pass,
) -> Tensor:
    """Outputs (R, H) of one more token (R, 1), whose keys and values go to place `at`."""
    hidden = text.embed_tokens(ids).float()
    cos, sin = turns(text, hidden, positions, how.cast)
    mask = Mask(how.cast, added=floor[..., : at + 1])
    for layer, (keys, values) in zip(text.layers, keep, strict=True):
        query, key, value = projected(layer, hidden, cos, sin, how.cast)
        keys[:, :, at : at + 1], values[:, :, at : at + 1] = key, value
        mixed = attend(query, keys[:, :, : at + 1], values[:, :, : at + 1], mask, layer.self_attn.scaling)
        hidden = mixed_in(layer, hidden, mixed)
    return last_norm(text, hidden[:, 0])
