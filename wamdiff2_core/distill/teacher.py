"""A frozen teacher: reads the student's corrupted sequence under its own block mask and gives hidden states and a head.

With a smaller block it knows more: the blocks of its own that lie before a token are shown to it clean.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from wamdiff2_core.distill.batch import Conversations
from wamdiff2_core.distill.corruption import Corruption
from wamdiff2_core.distill.forward import Pass, Visual, hidden_states, taken
from wamdiff2_core.distill.layout import Layout, decoding_at, first_of_block
from wamdiff2_core.errors import CheckpointError
from wamdiff2_core.model.checkpoint import LoadedModel, load_model, qwen3_vl_config, read_json


@dataclass(frozen=True)
class Teacher:
    """model: frozen and in eval mode, whatever the student does. block_size: 0 takes each row's own."""

    model: nn.Module
    layout: Layout
    how: Pass
    block_size: int = 0

    @property
    def head(self) -> Tensor:
        """(V, Ht) output matrix."""
        return self.model.lm_head.weight

    def blocks(self, block: Tensor) -> Tensor:
        """(R,) teacher's block sizes beside the student's; never larger than those: it shall know at least as much."""
        return block if not self.block_size else block.clamp(max=self.block_size)

    @torch.no_grad()
    def hidden(
        self, rows: Conversations, visual: Visual | None, live: Tensor, block: Tensor, noise: Corruption
    ) -> Tensor:
        """(R, K * C, Ht): outputs that predict each token of K draws, as the teacher's decoder would have them."""
        own = self.blocks(block)
        causal = self.block_size == 1 and self.layout.prediction == "next"  # every token follows from clean ones
        packed = rows.packed(live, own, None if causal else noise.noisy, self.layout)
        first = first_of_block(own, packed.clean_at.shape[1])
        if packed.noisy_at is None:
            copies = noise.noisy.shape[1] // packed.clean_at.shape[1]
            at = packed.clean_at.repeat(1, copies)  # the same for every draw
        else:
            at = decoding_at(packed, first, self.layout.prediction)
        return taken(hidden_states(self.model, packed, visual, self.how), at)


def load_teacher(
    folder: Path | str, student: LoadedModel, block_size: int, how: Pass, dtype: str, image_tokens: int = 0
) -> Teacher:
    """Load and freeze. CheckpointError unless both speak the same tokens and see the same images.

    image_tokens: see layout.Layout.
    """
    assert student.folder is not None  # a model in training was loaded from a folder
    check_folders(Path(folder), student.folder, "teacher")  # before gigabytes are read
    loaded = load_model(folder, device=str(student.device), dtype=dtype)
    check_pair(loaded, student, block_size)
    model = loaded.model.eval().requires_grad_(False)
    layout = Layout(loaded.prediction, loaded.context, loaded.config.image_token_id, image_tokens)
    return Teacher(model, layout, how, block_size)


def check_pair(teacher: LoadedModel, student: LoadedModel, block_size: int = 0) -> None:
    """Answers end alike for both, and a teacher of blocks knows the student's mask."""
    assert teacher.folder is not None  # it was loaded from one
    if teacher.eos_token_ids != student.eos_token_ids:
        raise _differ("teacher", teacher.folder, "end tokens", teacher.eos_token_ids, student.eos_token_ids)
    if teacher.mask_token_id not in (None, student.mask_token_id):
        raise _differ("teacher", teacher.folder, "mask token", teacher.mask_token_id, student.mask_token_id)
    if teacher.mask_token_id is None and not (block_size == 1 and teacher.prediction == "next"):
        raise CheckpointError(
            f"teacher {teacher.folder}: names no mask token, so it cannot teach blocks: expected teacher_block_size 1, "
            f"or a model that was converted (training.adopt, then stage 1); got {block_size}"
        )


def check_folders(teacher: Path, student: Path, who: str) -> None:
    """CheckpointError unless `who` speaks the student's tokens and sees images alike; from their files alone."""
    theirs, mine = _facts(teacher), _facts(student)
    for what, value in theirs.items():
        if value != mine[what]:
            raise _differ(who, teacher, what, value, mine[what])
    spoken, known = _tokens(teacher), _tokens(student)
    other = sorted(index for index in spoken.keys() | known.keys() if spoken.get(index) != known.get(index))
    if other:
        raise _differ(
            who, teacher, f"token {other[0]} (of {len(other)})", repr(spoken.get(other[0])), repr(known.get(other[0]))
        )


def _facts(folder: Path) -> dict[str, object]:
    config = qwen3_vl_config(read_json(folder / "config.json"), folder)
    vision = config.vision_config
    return {
        "vocab_size": config.text_config.vocab_size,
        "image token": config.image_token_id,
        "image size rule": (vision.patch_size, vision.spatial_merge_size),
    }


def _tokens(folder: Path) -> dict[int, str]:
    """What each id of the tokenizer stands for."""
    definition = read_json(folder / "tokenizer.json")
    found = {int(index): str(text) for text, index in definition["model"]["vocab"].items()}
    return found | {int(token["id"]): str(token["content"]) for token in definition.get("added_tokens", ())}


def _differ(who: str, folder: Path, what: str, theirs: object, mine: object) -> CheckpointError:
    return CheckpointError(
        f"{who} {folder}: {what} is {theirs}, the student's is {mine}; both must have the same tokens and images"
    )
